"""Write ONNX files, check that onnxruntime computes the same, and quantise them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.hub.checking import ONNX, example_batch
from headjax.hub.onnx_graph import onnx_graph
from headjax.hub.onnx_nodes import FLOAT, INT64, MICROSOFT, Graph
from headjax.models.model import Model
from headjax.models.vision import VisionConfig

TOLERANCE = 1e-4
"""Largest relative difference between the outputs of a model and of onnxruntime."""

OPSET, IR_VERSION = 20, 9
"""The first operator set with `Gelu`, and the format that came with it."""

LARGEST = 1_900_000_000
"""Bytes of the largest model of one file; Protobuf ends at 2 GiB."""

QUANTIZED = {
    "int8": "onnx/model_qint8_avx512_vnni.onnx",
    "int8:avx2": "onnx/model_qint8_avx2.onnx",
    "int8:arm64": "onnx/model_qint8_arm64.onnx",
}
"""Files of quantised graphs by kind, named as sentence-transformers looks for them."""

INSTALL = "pip install '.[onnx]' from a checkout"


def write_onnx(model: Model, folder: Path, length: int | None = None) -> float:
    """Write `onnx/model.onnx`, which computes the same as the model; return the largest difference of an example.

    The number of examples is free, and the number of tokens unless a length is asked for.
    """
    onnx, onnxruntime = _libraries()
    batch = example_batch(model, length)
    graph = onnx_graph(model, segmented="token_type_ids" in batch)
    ours = model(batch)
    outputs = {"last_hidden_state": ours.hidden, "logits": ours.logits}
    expected = {name: np.asarray(array) for name, array in outputs.items() if array is not None}
    free = length is None and not isinstance(model.config, VisionConfig)
    shapes = {name: ["batch", "length"] if free else ["batch", *array.shape[1:]] for name, array in batch.items()}
    file = folder / ONNX
    file.parent.mkdir()
    size = sum(array.nbytes for array in graph.initializers.values())
    apart = {"save_as_external_data": True, "location": f"{file.name}.data"} if size > LARGEST else {}
    onnx.save(_proto(onnx, graph, shapes, list(expected)), str(file), **apart)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found = session.run(list(expected), {name: _widest(array) for name, array in batch.items()})
    return _checked_difference(list(expected.values()), found)


def quantize_onnx(folder: Path, kind: str) -> None:
    """Write the graph of a folder quantised.

    Weights are int8 by output channel, activations by the range of each call (`quantize_dynamic` of onnxruntime);
    `int8:avx2` leaves a bit of the weights free, whose products would overflow there.
    """
    _libraries()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = {"per_channel": True, "reduce_range": kind == "int8:avx2"}
    logging.disable(logging.WARNING)  # it advises preparations that this graph does not need
    try:
        quantize_dynamic(folder / ONNX, folder / QUANTIZED[kind], weight_type=QuantType.QInt8, **options)
    finally:
        logging.disable(logging.NOTSET)


def _proto(onnx: Any, graph: Graph, shapes: dict[str, list[Any]], outputs: list[str]) -> Any:
    """Return the ONNX model of a graph."""
    helper = onnx.helper
    nodes = [
        helper.make_node(one.kind, one.inputs, one.outputs, name=one.outputs[0], domain=one.domain, **one.attributes)
        for one in graph.nodes
    ]
    types = {name: FLOAT if name == "pixel_values" else INT64 for name in shapes}
    inputs = [helper.make_tensor_value_info(name, types[name], shape) for name, shape in shapes.items()]
    # Quantisers ask for the types of products behind operators that ONNX does not know.
    unknown = [node.outputs[0] for node in graph.nodes if node.domain == MICROSOFT]
    results, inner = (
        [helper.make_tensor_value_info(name, FLOAT, None) for name in names] for names in (outputs, unknown)
    )
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in graph.initializers.items()]
    proto = helper.make_graph(nodes, "headjax", inputs, results, tensors, value_info=inner)
    sets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(proto, producer_name="headjax", opset_imports=sets, ir_version=IR_VERSION)


def _libraries() -> tuple[Any, Any]:
    """Return onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise HeadjaxError(f"layout onnx: needs onnx and onnxruntime; {INSTALL}") from None
    return onnx, onnxruntime


def _widest(array: np.ndarray) -> np.ndarray:
    """Return integers as int64, which tokenizers and runtimes take."""
    return array.astype(np.int64) if np.issubdtype(array.dtype, np.integer) else array


def _checked_difference(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """Return the largest difference of onnxruntime's outputs, relative to the model's."""
    pairs = zip(expected, found, strict=True)
    worst = max(float(np.max(np.abs(ours - theirs)) / max(1.0, np.max(np.abs(ours)))) for ours, theirs in pairs)
    if not worst <= TOLERANCE:  # also where one is no number
        raise HeadjaxError(f"layout onnx: outputs of onnxruntime differ from the model's by {worst:.2g} of their size")
    return worst
