"""`headjax import`."""

from __future__ import annotations

import argparse

from headjax.commands.command import Command, Result
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("directory", metavar="HF_DIR", help="config.json, safetensors and tokenizer files")
    parser.add_argument("out", metavar="OUT", help="where the model directory goes")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="type to convert weights to (default: as they are)"
    )


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Reads a Hugging Face directory, strictly, and writes it as a model directory."""
    from headjax.core.tensors import flatten
    from headjax.hub import from_huggingface
    from headjax.models.summary import summarize

    model = from_huggingface(options.directory, dtype=options.dtype, progress=progress)
    model.save(options.out)
    entry = model.history[-1]
    data = {
        "family": entry["family"],
        "tensors": entry["tensors"],
        "parameters": model.num_parameters,
        "heads": summarize(model.config, 1).heads,
        "dtype": sorted({str(array.dtype) for array in flatten(model.params).values()}),
        "tokenizer": model.tokenizer is not None,
        "model": str(options.out),
    }
    rows = [
        ("family", data["family"]),
        ("tensors", numbers.count(data["tensors"])),
        ("parameters", numbers.count(data["parameters"])),
        ("heads", numbers.count(data["heads"])),
        ("weights", ", ".join(data["dtype"])),
        ("tokenizer", "yes" if data["tokenizer"] else "none that can be read"),
    ]
    return Result(data, [Table((Column("Imported"), Column("")), rows)], f"model: {options.out}")


COMMAND = Command("import", "a model from a Hugging Face directory", arguments, run)
