"""`headjax export`."""

from __future__ import annotations

import argparse

from headjax.commands.command import Command, Result
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model directory")
    parser.add_argument("directory", metavar="HF_DIR", help="where the Hugging Face directory goes")
    parser.add_argument(
        "--layout",
        default="auto",
        metavar="LAYOUT",
        help="auto, native (the model's own shapes), padded (zeros for removed heads), pruned_heads (transformers 4), "
        "onnx (default %(default)s)",
    )
    parser.add_argument("--family", metavar="TYPE", help="model_type (default: what the model came from, or fits)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of an example, for onnx (default 128)")
    parser.add_argument("--check", action="store_true", help="read it again and compare outputs")


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Writes a model as a Hugging Face directory that computes the same, or says why none can."""
    from headjax.hub import to_huggingface
    from headjax.hub.exporting import max_difference, to_onnx
    from headjax.models.model import load

    model = load(options.model)
    if options.layout == "onnx":
        exported = to_onnx(model, options.directory, length=options.length)
    else:
        exported = to_huggingface(model, options.directory, options.layout, family=options.family, progress=progress)
        if options.check:
            exported = exported._replace(max_difference=max_difference(model, options.directory))
    data = exported._asdict() | {"directory": str(options.directory)}
    rows = [
        ("family", exported.family),
        ("layout", exported.layout),
        ("tensors", numbers.count(exported.tensors)),
        ("size", numbers.size(exported.bytes)),
    ]
    if exported.max_difference is not None:
        rows.append(("largest difference of outputs", f"{exported.max_difference:.2g}"))
    return Result(data, [Table((Column("Exported"), Column("")), rows)], f"directory: {options.directory}")


COMMAND = Command("export", "a Hugging Face directory from a model", arguments, run)
