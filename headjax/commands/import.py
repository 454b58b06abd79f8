"""`headjax import`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from headjax.commands.options import CommandOptions, argument, option
from headjax.commands.outputs import CommandResult, key, record, summary
from headjax.core import numbers
from headjax.core.progress import Progress, printable
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.models.summary import ModelSummary


class Options(CommandOptions):
    directory: str = argument("HF_DIR", "folder of config.json, safetensors and tokenizer files", reads="model")
    out: str = argument("OUT", "folder of the new model", writes="new")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "type to convert weights to (default: as they are)"
    )
    family: str | None = option(None, "model to read of a directory that holds several", "TYPE")


class Result(CommandResult):
    family: str = key("`model_type`")
    tensors: int = key()
    sizes: ModelSummary = record("headjax.models.summary.ModelSummary", "parameters", "heads")
    dtype: Sequence[str] = key("types of the weights")
    tokenizer: bool = key("whether it has one")
    model: str = key("its folder")

    def tables(self) -> Sequence[Table]:
        rows = {name: numbers.count(getattr(self.sizes, name)) for name in ("parameters", "heads")}
        rows = {"family": self.family, "tensors": numbers.count(self.tensors), **rows}
        tokenizer = "yes" if self.tokenizer else "none"
        return [summary("Imported", {**rows, "weights": ", ".join(self.dtype), "tokenizer": tokenizer})]

    def message(self) -> str:
        return f"model: {self.model}"


def run(options: Options, progress: Progress) -> Result:
    """Reads a Hugging Face directory, strictly, and writes it as a model directory."""
    from headjax.core.tensors import flatten
    from headjax.hub import from_huggingface
    from headjax.models.summary import summarize
    from headjax.models.vision import VisionConfig
    from headjax.tokenizers.files import VOCABULARIES

    model = from_huggingface(options.directory, family=options.family, dtype=options.dtype, progress=progress)
    model.save(options.out)
    if model.tokenizer is None and not isinstance(model.config, VisionConfig):
        print(
            f"headjax: note: {printable(options.directory)} has no tokenizer ({', '.join(VOCABULARIES)})",
            file=sys.stderr,
        )
    entry = model.history[-1]
    return Result(
        family=entry["family"],
        tensors=entry["tensors"],
        sizes=summarize(model.config, 1),
        dtype=sorted({str(array.dtype) for array in flatten(model.params).values()}),
        tokenizer=model.tokenizer is not None,
        model=str(options.out),
    )
