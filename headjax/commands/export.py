"""`headjax export`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headjax.commands.options import CommandOptions, Result, argument, option
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.hub.checking import Peer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax export`."""

    model: str = argument("MODEL", "model directory", reads=True)
    out: str = argument("HF_DIR", "folder of the Hugging Face files", also=("--out",), writes="new")
    layout: str = option(
        "auto",
        "auto, native (the model's own shapes), padded (zeros for removed heads), pruned_heads (transformers 4), onnx",
        "LAYOUT",
    )
    family: str | None = option(None, "model_type (default: the one that the model came from, or that fits)", "TYPE")
    length: Size | None = option(None, "tokens of an example, for onnx (default: 128)")
    check: bool = option(
        False, "read the files again and compare outputs; where transformers is installed, also its tokens and its text"
    )


def run(options: Options, progress: Progress) -> Result:
    """Writes a model as a Hugging Face directory that computes the same, or says why none can."""
    from headjax.hub import to_huggingface
    from headjax.hub.checking import PROMPT, max_difference, read_by_transformers
    from headjax.hub.onnx import to_onnx
    from headjax.models.model import load

    peer: Peer | None = None
    if options.layout == "onnx":
        exported = to_onnx(load(options.model), options.out, length=options.length)
    else:
        model = load(options.model, lazy=True)
        exported = to_huggingface(model, options.out, options.layout, family=options.family, progress=progress)
        if options.check:
            whole = load(options.model)
            exported = exported._replace(max_difference=max_difference(whole, options.out))
            peer = read_by_transformers(whole, options.out)
    padding = exported.padding
    data = exported._asdict() | {"directory": str(options.out), "transformers": peer and peer._asdict()}
    rows = [
        ("family", exported.family),
        ("layout", exported.layout),
        ("tensors", numbers.count(exported.tensors)),
        ("size", numbers.size(exported.bytes)),
    ]
    if exported.max_difference is not None:
        rows.append(("largest difference of outputs", f"{exported.max_difference:.2g}"))
    if peer is not None and peer.texts is not None:
        rows.append(("tokens in transformers", f"the same of {peer.texts} texts"))
    if peer is not None and peer.generated is not None:
        rows.append(("text in transformers", f"the same: {PROMPT}{peer.generated}"))
    message = "; ".join((*exported.notes, f"directory: {options.out}"))
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
