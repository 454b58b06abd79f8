"""Write ONNX files, compute with them in onnxruntime, and check that it computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.hub.checking import ONNX, example_batch
from headjax.hub.onnx_graph import onnx_graph
from headjax.hub.onnx_nodes import FLOAT, INT64, MICROSOFT, libraries
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


def write_onnx(model: Model, folder: Path, length: int | None = None, quantize: str | None = None) -> float:
    """Write `onnx/model.onnx`, which computes the same as the model; return the largest difference of an example.

    The number of examples is free, and the number of tokens unless a length is asked for. `quantize` is the kind of a
    second file in int8.
    """
    onnx, _ = libraries()
    batch = example_batch(model, length)
    (folder / ONNX).parent.mkdir()
    for kind, file in {"": ONNX, **({quantize: QUANTIZED[quantize]} if quantize else {})}.items():
        external = {"save_as_external_data": True, "location": f"{Path(file).name}.data"}
        proto = _proto(model, batch, kind, fixed=length is not None)
        onnx.save(proto, str(folder / file), **external if model.num_parameters > LARGEST else {})
    ours, theirs = model(batch), _run(_session(folder / ONNX), batch)
    expected = {"last_hidden_state": ours.hidden, "logits": ours.logits}
    arrays = [(np.asarray(array), theirs[name]) for name, array in expected.items() if array is not None]
    worst = max(float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(a)))) for a, b in arrays)
    if not worst <= TOLERANCE:  # also where one is no number
        raise HeadjaxError(f"layout onnx: outputs of onnxruntime differ from the model's by {worst:.2g} of their size")
    return worst


class OnnxModel:
    """A model as onnxruntime computes it, in float32 or in the int8 of a kind: a batch goes in, an `Output` comes out.

    Sentences that are packed in one row are computed in rows of their own.
    """

    def __init__(self, model: Model, kind: str = "") -> None:
        self.model: Any = model
        plain = without_pipeline(model)
        self._session = _session(_proto(plain, example_batch(plain), kind).SerializeToString())

    def __call__(self, batch: Batch) -> Output:
        outputs: dict[str, Any] = self.run(batch)
        if isinstance(getattr(self.model.config, "task", None), SentenceSimilarity):
            features = Features(outputs["last_hidden_state"], None, None, batch)
            output: Output = self.model.output(features, None)
            return output
        return Output(outputs["last_hidden_state"], outputs.get("logits"))

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return the graph's outputs by name."""
        if batch.get("segment_ids") is None:
            return _run(self._session, batch)
        ids = np.asarray(batch["segment_ids"])
        ids = np.where(ids > 0, ids + np.arange(len(ids))[:, None] * (ids.max() + 1), 0)
        sentences = [np.flatnonzero(ids == number) for number in np.unique(ids[ids > 0])]
        lengths = np.array([*map(len, sentences)])
        mask = np.arange(lengths.max()) < lengths[:, None]  # [sentences, length]
        tokens, index = np.concatenate(sentences), np.zeros(mask.shape, np.int64)
        index[mask] = tokens
        unpacked = {name: np.ravel(batch[name])[index] for name in ("input_ids", "token_type_ids") if name in batch}
        outputs = _run(self._session, {**unpacked, "attention_mask": mask})
        packed = {name: np.zeros((ids.size, *array.shape[2:]), array.dtype) for name, array in outputs.items()}
        for name, array in outputs.items():
            packed[name][tokens] = array[mask]
        return {name: array.reshape(*ids.shape, *array.shape[1:]) for name, array in packed.items()}


def _proto(model: Model, batch: Batch, kind: str, *, fixed: bool = False) -> Any:
    """Return the ONNX model of a model that reads batches like this one."""
    onnx, _ = libraries()
    helper = onnx.helper
    graph = onnx_graph(model, segmented="token_type_ids" in batch, bits=BITS[kind])
    free = not fixed and not isinstance(model.config, VisionConfig)
    inputs = [
        helper.make_tensor_value_info(
            name,
            FLOAT if name == "pixel_values" else INT64,
            ["batch", "length"] if free else ["batch", *array.shape[1:]],
        )
        for name, array in batch.items()
    ]
    # Quantisers ask for the types of products behind operators that ONNX does not know.
    unknown = [node.output[0] for node in graph.nodes if node.domain == MICROSOFT]
    outputs, inner = (
        [helper.make_tensor_value_info(name, FLOAT, None) for name in names] for names in (graph.outputs, unknown)
    )
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in graph.initializers.items()]
    proto = helper.make_graph(graph.nodes, "headjax", inputs, outputs, tensors, value_info=inner)
    sets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(proto, producer_name="headjax", opset_imports=sets, ir_version=IR_VERSION)


def _session(source: Path | bytes) -> Any:
    """Return the session of a file or its content, whose threads sleep between calls."""
    _, onnxruntime = libraries()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _run(session: Any, batch: Batch) -> dict[str, np.ndarray]:
    """Return a session's outputs by name; it takes integers as int64, as tokenizers give them."""
    shape = np.shape(next(iter(batch.values())))[:2]
    absent = {"attention_mask": np.ones(shape), "token_type_ids": np.zeros(shape)}
    inputs = {}
    for entry in session.get_inputs():
        array = np.asarray(batch.get(entry.name, absent.get(entry.name)))
        inputs[entry.name] = array if entry.name == "pixel_values" else array.astype(np.int64)
    return dict(zip([entry.name for entry in session.get_outputs()], session.run(None, inputs), strict=True))
