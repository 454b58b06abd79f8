"""`headjax import`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Literal

from headjax.commands.options import CommandOptions, argument, option
from headjax.commands.outputs import CommandResult, key
from headjax.core import numbers
from headjax.core.progress import Progress, printable
from headjax.report.tables import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax import`."""

    directory: str = argument("HF_DIR", "folder of config.json, safetensors and tokenizer files", reads="model")
    out: str = argument("OUT", "folder of the new model", writes="new")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "type to convert weights to (default: as they are)"
    )
    family: str | None = option(None, "model to read of a directory that holds several", "TYPE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(CommandResult):
    """A model from a Hugging Face directory."""

    title = "Imported"

    family: str = key("`model_type`", "family")
    tensors: int = key("", "tensors", numbers.count)
    parameters: int = key("", "parameters", numbers.count)
    heads: int = key("", "heads", numbers.count)
    dtype: Sequence[str] = key("types of the weights", "weights", ", ".join)
    tokenizer: bool = key("whether it has one")
    model: str = key("its folder", said="model")

    def tables(self) -> Sequence[Table]:
        return [self.summary(("tokenizer", "yes" if self.tokenizer else "none"))]


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
        parameters=model.num_parameters,
        heads=summarize(model.config, 1).heads,
        dtype=sorted({str(array.dtype) for array in flatten(model.params).values()}),
        tokenizer=model.tokenizer is not None,
        model=str(options.out),
    )
