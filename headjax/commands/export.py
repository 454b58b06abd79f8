"""`headjax export`."""

from __future__ import annotations

import dataclasses

from headjax.commands.options import OverwriteOptions, Result, argument, option, require_new
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(OverwriteOptions):
    """Options of `headjax export`."""

    model: str = argument("MODEL", "model directory")
    out: str = argument("HF_DIR", "folder of the Hugging Face files", also=("--out",))
    layout: str = option(
        "auto",
        "auto, native (the model's own shapes), padded (zeros for removed heads), pruned_heads (transformers 4), onnx",
        "LAYOUT",
    )
    family: str | None = option(None, "model_type (default: the one that the model came from, or that fits)", "TYPE")
    length: Size | None = option(None, "tokens of an example, for onnx (default: 128)")
    check: bool = option(False, "read the files again and compare outputs")


def run(options: Options, progress: Progress) -> Result:
    """Writes a model as a Hugging Face directory that computes the same, or says why none can."""
    from headjax.hub import to_huggingface
    from headjax.hub.exporting import max_difference, to_onnx
    from headjax.models.model import load

    require_new(options.out, options)
    if options.layout == "onnx":
        exported = to_onnx(load(options.model), options.out, length=options.length)
    else:
        model = load(options.model, lazy=True)
        exported = to_huggingface(model, options.out, options.layout, family=options.family, progress=progress)
        if options.check:
            exported = exported._replace(max_difference=max_difference(load(options.model), options.out))
    padding = exported.padding
    data = exported._asdict() | {"directory": str(options.out)}
    rows = [
        ("family", exported.family),
        ("layout", exported.layout),
        ("tensors", numbers.count(exported.tensors)),
        ("size", numbers.size(exported.bytes)),
    ]
    if exported.max_difference is not None:
        rows.append(("largest difference of outputs", f"{exported.max_difference:.2g}"))
    message = f"directory: {options.out}"
    if padding is not None:
        data["padding"] = padding._asdict()
        message = (
            f"padding to the family's shapes: {_more(padding.bytes)} of weights, "
            f"{padding.flops:+.1%} operations at {padding.length} tokens, "
            f"{_more(padding.cache_bytes_per_token)} of cache a token; {message}"
        )
    return Result(data, [Table((Column("Exported"), Column("")), rows)], message)


def _more(size: int) -> str:
    return f"{'+' * (size >= 0)}{numbers.size(size)}"
