"""Models as onnxruntime computes them, and the option that writes them in int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from headjax.commands.options import WritingOptions, option
from headjax.core.errors import HeadjaxError

if TYPE_CHECKING:
    from headjax.hub.onnx import OnnxModel
    from headjax.models.config import ModelConfig
    from headjax.models.model import Model

Quantized = Literal["int8", "int8:avx2", "int8:arm64"]
"""Kinds of integers, see `headjax.hub.onnx.QUANTIZED`."""

QUANTIZE = "also write an onnx graph in int8 (AVX-512 with VNNI), int8:avx2 or int8:arm64"
"""Help of `--quantize`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizingOptions(WritingOptions):
    """Options of commands that write a model made of another one, and graphs of it."""

    quantize: Quantized | None = option(None, QUANTIZE, "KIND")


def check_quantize(options: WritingOptions, model: Model, config: ModelConfig) -> None:
    """Check before the work that graphs can be written beside the result, which has this config."""
    from headjax.hub.onnx import check_graph
    from headjax.hub.table import InexpressibleError

    if options.quantize is None:
        return
    if options.kind() == "headjax":
        use = f"use {options.kind_option()} huggingface"
        raise HeadjaxError(f"--quantize: a directory of headjax has no place for it; {use}")
    try:
        check_graph(model, config)
    except InexpressibleError as error:
        raise HeadjaxError(f"--quantize: {error}") from None


def graphs_of(models: Sequence[Model], options: WritingOptions) -> list[OnnxModel]:
    """Return models as onnxruntime computes them, the last one also in int8 if asked for.

    None are returned of decoders unless their graph is asked for, and of models that no single file holds.
    """
    from headjax.hub.onnx import MOST_PARAMETERS, OnnxModel
    from headjax.hub.table import InexpressibleError
    from headjax.models.encoder import EncoderConfig

    usual = all(map(find_spec, ("onnx", "onnxruntime"))) and isinstance(models[0].config, EncoderConfig)
    if not (usual or options.quantize) or any(model.num_parameters > MOST_PARAMETERS for model in models):
        return []
    try:
        graphs = [OnnxModel(model) for model in models]
    except InexpressibleError:
        return []
    return graphs if options.quantize is None else [*graphs, OnnxModel(models[-1], options.quantize)]


def written_graph(out: str, kind: str | None) -> dict[str, Any]:
    """Return the name and size of the quantised graph in a directory; an empty dict without one."""
    from headjax.hub.onnx import QUANTIZED
    from headjax.storage.paths import path_of, size_of

    file = QUANTIZED.get(kind or "", "")
    return {"file": file, "bytes": size_of(path_of(out) / file)} if file and (path_of(out) / file).is_file() else {}
