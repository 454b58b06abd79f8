"""`headjax import`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from headjax.commands.options import CommandOptions, Result, argument, option
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax import`."""

    directory: str = argument("HF_DIR", "folder of config.json, safetensors and tokenizer files", reads=True)
    out: str = argument("OUT", "folder of the new model", also=("--out",), writes="new")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "type to convert weights to (default: as they are)"
    )


def run(options: Options, progress: Progress) -> Result:
    """Reads a Hugging Face directory, strictly, and writes it as a model directory."""
    from headjax.core.tensors import flatten
    from headjax.hub import from_huggingface
    from headjax.models.model import save
    from headjax.models.summary import summarize

    model = from_huggingface(options.directory, dtype=options.dtype, lazy=True)
    save(model, options.out, progress)
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
        ("tokenizer", "yes" if data["tokenizer"] else _no_tokenizer(model, options.directory)),
    ]
    return Result(data, [Table((Column("Imported"), Column("")), rows)], f"model: {options.out}")


def _no_tokenizer(model: Model, directory: str) -> str:
    """Return why there is none: no file of the names that were looked for."""
    from headjax.models.vision import VisionModel
    from headjax.tokenizers.files import looked_for

    if isinstance(model.config, VisionModel):
        return "none, the model reads images"
    return f"none: {directory} has no {', '.join(looked_for(model.history[-1]['family']))}"
