"""ONNX files of encoders, images' models and decoders without a cache, and models as onnxruntime computes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.serialize import kind_of
from headjax.core.tensors import map_tensors
from headjax.hub.onnx_graph import BOOL, FLOAT, INT32, INT64, MICROSOFT, Graph, Tokens, libraries, stack
from headjax.hub.sentences import without_pipeline
from headjax.hub.table import InexpressibleError
from headjax.models.config import Batch, ModelConfig, Output
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import LARGEST, EncoderConfig
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.model import Model
from headjax.models.tasks import DistilledClassification, MaskedLanguageModel, NoTask, Pretraining, SentenceSimilarity
from headjax.models.tasks.task_output import Features, LinearLogits
from headjax.models.vision import VisionConfig

TOLERANCE = 1e-4
"""Largest relative difference between the outputs of a model and of onnxruntime."""

OPSET, IR_VERSION = 20, 9  # the first operator set with `Gelu`, and the format that came with it
END = 2**31 - 1  # of a slice that reaches to the last element

MOST_PARAMETERS = 475_000_000
"""Parameters of the largest model of one file; Protobuf ends at 2 GiB."""

ONNX = "onnx/model.onnx"
QUANTIZED = {
    "int8": "onnx/model_qint8_avx512_vnni.onnx",
    "int8:avx2": "onnx/model_qint8_avx2.onnx",
    "int8:arm64": "onnx/model_qint8_arm64.onnx",
}
"""Files of quantised graphs by kind, named as sentence-transformers looks for them."""


LENGTH = 16
"""Largest number of tokens of the sequences on which an export is checked."""


def example_batch(model: Model, length: int | None = None) -> dict[str, np.ndarray]:
    """Return a batch of two random examples for the model, the second padded."""
    generator, config = np.random.default_rng(0), model.config
    if isinstance(config, VisionConfig):
        size = (2, config.channels, config.image_size, config.image_size)
        return {"pixel_values": generator.standard_normal(size, dtype=np.float32)}
    tokens: int = config.vocab_size
    length = min(LENGTH, longest(model) or LENGTH) if length is None else length
    sizes = {"input_ids": tokens}
    if getattr(config, "segments", 0) > 1:
        sizes["token_type_ids"] = config.segments
    if isinstance(config, EncoderDecoderConfig):
        sizes["decoder_input_ids"] = config.target_tokens
    mask = np.ones((2, length), np.int32)
    mask[1, length // 2 :] = 0
    drawn = {name: generator.integers(0, size, (2, length), dtype=np.int32) for name, size in sizes.items()}
    return drawn | {"attention_mask": mask}


def longest(model: Model) -> int | None:
    """Return the length in tokens of the longest sequence that the model reads; None where there is no limit."""
    return getattr(model.config, "max_length", None)


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
        onnx.save(proto, str(folder / file), **external if model.num_parameters > MOST_PARAMETERS else {})
    ours, theirs = model(batch), _run(_session(folder / ONNX), batch)
    expected = {"last_hidden_state": ours.hidden, "logits": ours.logits}
    arrays = [(np.asarray(array), theirs[name]) for name, array in expected.items() if array is not None]
    worst = max(float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(a)))) for a, b in arrays)
    if not worst <= TOLERANCE:  # also where one is no number
        raise HeadjaxError(f"layout onnx: outputs of onnxruntime differ from the model's by {worst:.2g} of their size")
    return worst


def check_graph(model: Model, config: ModelConfig) -> None:
    """Raise `InexpressibleError` if a model with another config has no graph; weights of no size stand for its own."""
    zeros = map_tensors(lambda _, tensor: np.broadcast_to(np.float32(0.0), tensor.shape), config.tensors())
    onnx_graph(without_pipeline(model.replace(config=config, params=zeros)), segmented=False)


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


def _proto(model: Model, batch: Batch, kind: str, *, fixed: bool = False) -> Any:
    """Return the ONNX model of a model that reads batches like this one."""
    onnx, _ = libraries()
    helper = onnx.helper
    bits = {"": 0, "int8:avx2": 7}.get(kind, 8)  # sums of products of 8 bits overflow without VNNI
    graph = onnx_graph(model, segmented="token_type_ids" in batch, bits=bits)
    free = not fixed and not isinstance(model.config, VisionConfig)
    inputs = []
    for name, array in batch.items():
        shape = ["batch", "length"] if free else ["batch", *array.shape[1:]]
        inputs.append(helper.make_tensor_value_info(name, FLOAT if name == "pixel_values" else INT64, shape))
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in graph.outputs]
    # Quantisers ask for the types of products behind operators that ONNX does not know.
    unknown = [node.output[0] for node in graph.nodes if node.domain == MICROSOFT]
    inner = [helper.make_tensor_value_info(name, FLOAT, None) for name in unknown]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in graph.initializers.items()]
    proto = helper.make_graph(graph.nodes, "headjax", inputs, outputs, tensors, value_info=inner)
    sets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(proto, producer_name="headjax", opset_imports=sets, ir_version=IR_VERSION)


def onnx_graph(model: Model, *, segmented: bool, bits: int = 0) -> Graph:
    """Return the graph of `last_hidden_state` and, where a model has any, `logits`.

    Its inputs are `pixel_values`, or `input_ids` and `attention_mask`, with `token_type_ids` if `segmented`.

    Raises:
        InexpressibleError: the graph has no form for a part of the model; the message names the part.
    """
    graph, config, parts = Graph(bits), model.config, cast(Any, model)
    if isinstance(config, VisionConfig):
        x = _patches(graph, parts.patches)
        hidden = stack(graph, parts.encoder, x, Tokens(graph.indices(x)))
    elif isinstance(config, EncoderConfig | DecoderConfig):
        x, tokens = _embedded(graph, model, segmented)
        hidden = stack(graph, parts.decoder if isinstance(config, DecoderConfig) else parts.encoder, x, tokens)
    else:
        raise InexpressibleError(f"layout onnx: is for encoders, decoders and images, not for {kind_of(config)} models")
    for name, tensor in {"last_hidden_state": hidden, "logits": _logits(graph, model, hidden)}.items():
        if tensor is not None:
            graph.outputs.append(graph.op("Identity", tensor, name=name))
    return graph


def _patches(graph: Graph, module: Any) -> str:
    """Return the tokens and patches of images `[batch, length, width]`."""
    kernel = np.moveaxis(np.asarray(module.kernel), -1, 0)  # [width, channels, patch, patch]
    width, _, *sides = kernel.shape
    bias = () if module.bias is None else (module.bias,)
    grid = graph.op("Conv", "pixel_values", kernel, *bias, strides=sides)
    patches = graph.transpose(graph.reshape(grid, 0, width, -1), 0, 2, 1)
    first = [token[...] for token in (module.class_token, module.distillation_token) if token is not None]
    shape = graph.op("Concat", graph.op("Shape", "pixel_values", start=0, end=1), [len(first), width], axis=0)
    tokens = graph.op("Concat", graph.op("Expand", np.stack(first)[None], shape), patches, axis=1)
    return graph.norm(module.norm, graph.op("Add", tokens, module.position[...][None]))


def _embedded(graph: Graph, model: Any, segmented: bool) -> tuple[str, Tokens]:
    """Return what enters the stack, and the tokens as its layers attend to them."""
    config, module = model.config, model.embeddings
    positions = _positions(graph, module.positions, counts_mask=isinstance(config, DecoderConfig))
    graph.token = graph.matrix(np.asarray(module.token, np.float32), "token", axis=1)
    x = graph.rows(*graph.token, "input_ids")
    x = graph.times(x, math.sqrt(module.token.shape[-1]) if module.scaled else 1.0)
    if module.position is not None:
        rows = graph.op("Add", positions, module.positions.offset)
        x = graph.op("Add", x, graph.op("Gather", module.position, rows))
    elif module.positions.kind != "none":
        raise InexpressibleError(f"layout onnx: has no positions of the kind {module.positions.kind}")
    if module.segment is not None:
        x = graph.op("Add", x, graph.op("Gather", module.segment, "token_type_ids" if segmented else [[0]]))
    x = graph.norm(module.norm, x)
    if module.projection is not None:
        x = graph.linear(x, module.projection, module.projection_bias)
    bias = allowed = None
    if getattr(config, "position_bias", None) is not None:
        bias = _position_bias(graph, model.encoder.position_bias)
    if isinstance(config, DecoderConfig) or config.causal:
        allowed = graph.unsqueeze(graph.op("LessOrEqual", graph.distances(), 0), 0, 1)
    return x, Tokens(positions, "attention_mask", allowed, bias, getattr(config, "attention_softcap", None))


def _positions(graph: Graph, table: Any, *, counts_mask: bool) -> str:
    """Return the positions `[batch or 1, length]`; those of `learned_present` are -1 at padding."""
    if counts_mask:
        return graph.op("Max", graph.op("Sub", graph.op("CumSum", "attention_mask", 1), 1), 0)
    if table.kind == "learned_present":
        padding = graph.op("Equal", "input_ids", table.offset - 1)
        present = graph.op("Cast", graph.op("Not", padding), to=INT64)
        return graph.op("Sub", graph.op("Mul", graph.op("CumSum", present, 1), present), 1)
    return graph.indices()


def _position_bias(graph: Graph, module: Any) -> str:
    """Return the bias `[1, heads, query, key]`: buckets are equal beyond the largest distance, so a table holds all."""
    far = module.config.max_distance
    table = np.asarray(module.table)[np.asarray(module.bucket(jnp.arange(-far, far + 1)))]  # [distances, heads]
    near = graph.op("Add", graph.op("Clip", graph.distances(), -far, far), far)
    return graph.unsqueeze(graph.op("Gather", table.T, near, axis=1), 0)


def _logits(graph: Graph, model: Any, hidden: str) -> str | None:
    """Return the logits of a model's task; None where it has none."""
    output, task = model.output, getattr(model.config, "task", None)
    if isinstance(task, NoTask):
        return None
    if task is None:
        return graph.capped(_over_vocabulary(graph, hidden, output.kernel, output.bias), output.softcap)
    if isinstance(task, DistilledClassification):
        maps = enumerate((getattr(output, "class"), output.distillation))
        both = [graph.linear(graph.op("Gather", hidden, index, axis=1), each.kernel, each.bias) for index, each in maps]
        return graph.times(graph.op("Add", *both), 0.5)
    if isinstance(task, MaskedLanguageModel | Pretraining):
        masked = output.masked if isinstance(task, Pretraining) else output
        inner = graph.linear(_features(graph, model, hidden, pooled=False), masked.transform, masked.transform_bias)
        inner = graph.norm(masked.norm, graph.activation(masked.config.activation, inner))
        return _over_vocabulary(graph, inner, masked.kernel, masked.bias)
    if not isinstance(output, LinearLogits):
        raise InexpressibleError(f"layout onnx: has no task output of the kind {kind_of(task)}")
    return graph.linear(_features(graph, model, hidden, pooled=task.needs_pooler), output.kernel, output.bias)


def _over_vocabulary(graph: Graph, x: str, kernel: Any, bias: Any) -> str:
    """Return logits of all tokens, by the token embeddings where there is no kernel."""
    if kernel is not None:
        return graph.linear(x, kernel, bias, "vocabulary")
    matrix, scale = (each and graph.transpose(each, 1, 0) for each in graph.token)
    logits = graph.product(x, matrix or "", scale)
    return logits if bias is None else graph.op("Add", logits, bias)


def _features(graph: Graph, model: Any, hidden: str, *, pooled: bool) -> str:
    """Return what a task reads: the pooled vector `[batch, width]`, or the states of the tokens."""
    config, pooler = model.config, getattr(model, "pooler", None)
    reads = getattr(config, "pooler_reads", "first")
    if pooler is not None and reads == "tokens":
        states = _pooled(graph, pooler, hidden)
        return graph.op("Gather", states, 0, axis=1) if pooled else states
    if not pooled:
        return hidden
    if isinstance(config, DecoderConfig) or getattr(config, "end_token", None) is not None:
        return graph.op("GatherND", hidden, graph.unsqueeze(_last_token(graph, config), 1), batch_dims=1)
    if reads == "mean":
        shown = graph.op("Cast", "attention_mask", to=FLOAT)
        sums = graph.op("Squeeze", graph.op("MatMul", graph.unsqueeze(shown, 1), hidden), [1])
        x = graph.op("Div", sums, graph.op("Max", graph.op("ReduceSum", shown, [1], keepdims=1), 1.0))
    else:
        x = graph.op("Gather", hidden, 0, axis=1)
    x = x if pooler is None else _pooled(graph, pooler, x)
    x = graph.norm(getattr(model, "pooled_norm", None), x)
    if getattr(config, "patch_mean", False):
        patches = graph.op("Slice", hidden, [1 + config.distillation_token], [END], [1])
        x = graph.op("Concat", x, graph.op("ReduceMean", patches, [1], keepdims=0), axis=1)
    return x


def _pooled(graph: Graph, pooler: Any, x: str) -> str:
    """Return norm(phi(x W + b)), see `Pooler`."""
    x = graph.linear(x, pooler.kernel, pooler.bias, "pooler")
    return graph.norm(pooler.norm, graph.activation(pooler.activation, x))


def _last_token(graph: Graph, config: EncoderConfig | DecoderConfig) -> str:
    """Return the index of each text's last token, `[batch]`: the first `end_token`, or the last that is no padding."""
    if isinstance(config, EncoderConfig):
        marks = "input_ids"
        if config.end_token != LARGEST:
            marks = graph.op("Cast", graph.op("Equal", marks, config.end_token), to=INT32)
        return graph.op("ArgMax", marks, axis=1, keepdims=0)
    shown = graph.op("Cast", "attention_mask", to=BOOL)
    if config.padding_token is not None:
        shown = graph.op("And", shown, graph.op("Not", graph.op("Equal", "input_ids", config.padding_token)))
    return graph.op("ReduceMax", graph.op("Where", shown, graph.indices(), 0), [1], keepdims=0)
