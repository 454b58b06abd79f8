"""`headjax export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from headjax.commands.options import MODEL, QUANTIZE, CommandOptions, Quantized, argument, option
from headjax.commands.outputs import CommandResult, key, record, summary
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.hub.exporting import Exported

Layout = Literal["auto", "native", "remote", "padded", "onnx", "maxtext"]
"""Layouts by name, for which nothing has to be imported."""


class Options(CommandOptions):
    model: str = argument("MODEL", MODEL, reads="model")
    out: str = argument("HF_DIR", "folder of the Hugging Face files", writes="new")
    layout: Layout = option(
        "auto", "native: the model's own shapes; remote: the same, with their code; padded: zeros for removed heads"
    )
    family: str | None = option(None, "model_type (default: the one that the model came from, or that fits)", "TYPE")
    length: Size | None = option(None, "tokens of an example, for onnx (default: any number)")
    quantize: Quantized | None = option(None, QUANTIZE, "KIND")
    check: bool = option(False, "read the files again and compare outputs")


class Result(CommandResult):
    exported: Exported = record("headjax.hub.exporting.Exported")
    directory: str = key()

    def tables(self) -> Sequence[Table]:
        done = self.exported
        rows = {"family": done.family, "layout": done.layout, "tensors": numbers.count(done.tensors)}
        rows["size"] = numbers.size(done.bytes)
        if done.bytes_before is not None:
            rows["size when imported"] = numbers.size(done.bytes_before)
        if done.max_difference is not None:
            rows["largest difference of outputs"] = numbers.significant(done.max_difference)
        if done.bytes_before is not None and done.bytes < done.bytes_before:
            rows["smaller by"] = f"{1.0 - done.bytes / done.bytes_before:.0%}"
        return [summary("Exported", rows)]

    def message(self) -> str:
        return "; ".join((*self.exported.notes, f"directory: {self.directory}"))


def run(options: Options, progress: Progress) -> Result:
    """Writes a model as a Hugging Face directory that computes the same, or says why none can."""
    from headjax.hub import to_huggingface
    from headjax.hub.either import max_difference, read_model

    if options.length and options.layout != "onnx":
        raise HeadjaxError("--length: needs --layout onnx")
    if options.check and options.layout == "maxtext":
        raise HeadjaxError("--check: what MaxText reads is not read here; use --layout native")
    model = read_model(options.model)
    chosen: dict[str, Any] = {"family": options.family, "length": options.length, "quantize": options.quantize}
    exported = to_huggingface(model, options.out, options.layout, **chosen, progress=progress)
    if options.check and options.layout != "onnx":  # a graph is compared in any case
        exported = exported._replace(max_difference=max_difference(model, options.out))
    return Result(exported=exported, directory=str(options.out))
