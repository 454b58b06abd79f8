"""Write ONNX files, compute with them in onnxruntime, and check that it computes the same."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.hub.checking import ONNX, example_batch
from headjax.hub.onnx_graph import onnx_graph
from headjax.hub.onnx_nodes import FLOAT, INT64, MICROSOFT
from headjax.hub.sentences import without_pipeline
from headjax.models.config import Batch, Output
from headjax.models.model import Model
from headjax.models.tasks import SentenceSimilarity
from headjax.models.tasks.task_output import Features
from headjax.models.vision import VisionConfig

TOLERANCE = 1e-4
"""Largest relative difference between the outputs of a model and of onnxruntime."""

OPSET, IR_VERSION = 20, 9
"""The first operator set with `Gelu`, and the format that came with it."""

LARGEST = 475_000_000
"""Parameters of the largest model of one file; Protobuf ends at 2 GiB."""

QUANTIZED = {
    "int8": "onnx/model_qint8_avx512_vnni.onnx",
    "int8:avx2": "onnx/model_qint8_avx2.onnx",
    "int8:arm64": "onnx/model_qint8_arm64.onnx",
}
"""Files of quantised graphs by kind, named as sentence-transformers looks for them."""

BITS = {"": 0, "int8": 8, "int8:avx2": 7, "int8:arm64": 8}
"""Bits of the weights by kind: sums of 8 bits overflow in products without VNNI."""

INSTALL = "pip install '.[onnx]' from a checkout"


def write_onnx(model: Model, folder: Path, length: int | None = None, quantize: str | None = None) -> float:
    """Write `onnx/model.onnx`, which computes the same as the model; return the largest difference of an example.

    The number of examples is free, and the number of tokens unless a length is asked for. `quantize` is the kind of a
    second file in int8.
    """
    onnx, _ = _libraries()
    batch = example_batch(model, length)
    ours = model(batch)
    outputs = {"last_hidden_state": ours.hidden, "logits": ours.logits}
    expected = {name: np.asarray(array) for name, array in outputs.items() if array is not None}
    (folder / ONNX).parent.mkdir()
    for kind, file in {"": ONNX, **({quantize: QUANTIZED[quantize]} if quantize else {})}.items():
        apart = {"save_as_external_data": True, "location": f"{Path(file).name}.data"}
        proto = _proto(model, batch, kind, fixed=length is not None)
        onnx.save(proto, str(folder / file), **apart if model.num_parameters > LARGEST else {})
    return _checked_difference(expected, _run(_session(folder / ONNX), batch))


class OnnxModel:
    """A model as onnxruntime computes it, in float32 or in the int8 of a kind: a batch goes in, an `Output` comes out.

    Sentences that are packed in one row are computed in rows of their own.
    """

    def __init__(self, model: Model, kind: str = "") -> None:
        self.model: Any = model
        plain = without_pipeline(model)
        self._session = _session(_proto(plain, example_batch(plain), kind).SerializeToString())

    def __call__(self, batch: Batch) -> Output:
        found: dict[str, Any] = self.run(batch)
        if isinstance(getattr(self.model.config, "task", None), SentenceSimilarity):
            features = Features(found["last_hidden_state"], None, None, batch)
            output: Output = self.model.output(features, None)
            return output
        return Output(found["last_hidden_state"], found.get("logits"))

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return the graph's outputs by name."""
        if batch.get("segment_ids") is None:
            return _run(self._session, batch)
        numbers = np.asarray(batch["segment_ids"])
        numbers = np.where(numbers > 0, numbers + np.arange(len(numbers))[:, None] * (numbers.max() + 1), 0)
        places = [np.flatnonzero(numbers == number) for number in np.unique(numbers[numbers > 0])]
        present = np.arange(max(map(len, places))) < np.array([*map(len, places)])[:, None]  # [sentences, length]
        packed, index = np.concatenate(places), np.zeros(present.shape, np.int64)
        index[present] = packed
        apart = {name: np.ravel(batch[name])[index] for name in ("input_ids", "token_type_ids") if name in batch}
        found = _run(self._session, {**apart, "attention_mask": present})
        return {name: _packed(array[present], packed, numbers.shape) for name, array in found.items()}


def _packed(rows: np.ndarray, places: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return rows at places of arrays of a shape, zeros elsewhere."""
    array = np.zeros((np.prod(shape), *rows.shape[1:]), rows.dtype)
    array[places] = rows
    return array.reshape(*shape, *rows.shape[1:])


def _proto(model: Model, batch: Batch, kind: str, *, fixed: bool = False) -> Any:
    """Return the ONNX model of a model that reads batches like this one."""
    onnx, _ = _libraries()
    helper = onnx.helper
    graph = onnx_graph(model, segmented="token_type_ids" in batch, bits=BITS[kind])
    nodes = [
        helper.make_node(one.kind, one.inputs, one.outputs, name=one.outputs[0], domain=one.domain, **one.attributes)
        for one in graph.nodes
    ]
    free = not fixed and not isinstance(model.config, VisionConfig)
    shapes = {name: ["batch", "length"] if free else ["batch", *array.shape[1:]] for name, array in batch.items()}
    types = {name: FLOAT if name == "pixel_values" else INT64 for name in shapes}
    inputs = [helper.make_tensor_value_info(name, types[name], shape) for name, shape in shapes.items()]
    # Quantisers ask for the types of products behind operators that ONNX does not know.
    unknown = [node.outputs[0] for node in graph.nodes if node.domain == MICROSOFT]
    results, inner = (
        [helper.make_tensor_value_info(name, FLOAT, None) for name in names] for names in (graph.outputs, unknown)
    )
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in graph.initializers.items()]
    proto = helper.make_graph(nodes, "headjax", inputs, results, tensors, value_info=inner)
    sets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(proto, producer_name="headjax", opset_imports=sets, ir_version=IR_VERSION)


@functools.cache
def _libraries() -> tuple[Any, Any]:
    """Return onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise HeadjaxError(f"layout onnx: needs onnx and onnxruntime; {INSTALL}") from None
    return onnx, onnxruntime


def _session(source: Path | bytes) -> Any:
    """Return the session of a file or its content, whose threads sleep between calls."""
    _, onnxruntime = _libraries()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _run(session: Any, batch: Batch) -> dict[str, np.ndarray]:
    """Return a session's outputs by name; it takes integers as int64, as tokenizers give them."""
    inputs, shape = [entry.name for entry in session.get_inputs()], np.shape(next(iter(batch.values())))[:2]
    absent = {"attention_mask": np.ones(shape), "token_type_ids": np.zeros(shape)}
    arrays = {name: np.asarray(batch.get(name, absent.get(name))) for name in inputs}
    given = {name: array if name == "pixel_values" else array.astype(np.int64) for name, array in arrays.items()}
    return dict(zip([entry.name for entry in session.get_outputs()], session.run(None, given), strict=True))


def _checked_difference(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference of onnxruntime's outputs, relative to the model's."""
    worst = max(
        float(np.max(np.abs(ours - found[name])) / max(1.0, np.max(np.abs(ours)))) for name, ours in expected.items()
    )
    if not worst <= TOLERANCE:  # also where one is no number
        raise HeadjaxError(f"layout onnx: outputs of onnxruntime differ from the model's by {worst:.2g} of their size")
    return worst
