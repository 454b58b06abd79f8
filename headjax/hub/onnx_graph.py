"""The ONNX graph of an encoder, a Vision Transformer, or a decoder without a cache."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from headjax.core.serialize import kind_of
from headjax.hub.onnx_nodes import BOOL, FLOAT, INT32, INT64, MICROSOFT, Graph
from headjax.hub.table import InexpressibleError
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import LARGEST, EncoderConfig
from headjax.models.model import Model
from headjax.models.tasks import DistilledClassification, MaskedLanguageModel, NoTask, Pretraining
from headjax.models.tasks.task_output import LinearLogits
from headjax.models.vision import VisionConfig
from headjax.nn.block import Block
from headjax.nn.collaborative import CollaborativeAttention
from headjax.nn.embeddings import Positions, RelativePositionBias
from headjax.nn.latent import CompressedAttention, LatentAttention
from headjax.nn.module import NoHeadsAttention
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import BEFORE, Residual
from headjax.nn.projections import FeedForward, Pooler
from headjax.nn.rotary import RotaryHalves

LAST = 2**31 - 1
MASKED = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens that a stack attends to; what is None does not exist."""

    present: str | None = None  # [batch, length] int64, 0 at padding
    positions: str | None = None  # [batch or 1, length] int64
    allowed: str | None = None  # [batch or 1, 1, query, key] bool
    bias: str | None = None  # [1, heads, query, key], added to the logits
    softcap: float | None = None


def onnx_graph(model: Model, *, segmented: bool, bits: int = 0) -> Graph:
    """Return the graph of `last_hidden_state` and, where a model has any, `logits`.

    Its inputs are `pixel_values`, or `input_ids` and `attention_mask`, with `token_type_ids` if `segmented`.

    Raises:
        InexpressibleError: the graph has no form for a part of the model; the message names the part.
    """
    graph, config, parts = Graph(bits), model.config, cast(Any, model)
    if isinstance(config, VisionConfig):
        hidden = _stack(graph, parts.encoder, _patches(graph, parts.patches), Tokens())
    elif isinstance(config, EncoderConfig | DecoderConfig):
        x, tokens = _embedded(graph, model, segmented)
        hidden = _stack(graph, parts.decoder if isinstance(config, DecoderConfig) else parts.encoder, x, tokens)
    else:
        raise InexpressibleError(f"layout onnx: is for encoders, decoders and images, not for {kind_of(config)} models")
    for name, tensor in {"last_hidden_state": hidden, "logits": _logits(graph, model, hidden)}.items():
        if tensor is not None:
            graph.outputs.append(graph.op("Identity", tensor, name=name))
    return graph


def _embedded(graph: Graph, model: Any, segmented: bool) -> tuple[str, Tokens]:
    """Return what enters the stack, and the tokens as it reads them."""
    config, module = model.config, model.embeddings
    decoder = isinstance(config, DecoderConfig)
    positions = _positions(graph, module.positions, counts_mask=decoder)
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
    if decoder or config.causal:
        allowed = graph.unsqueeze(graph.op("LessOrEqual", _distances(graph), 0), 0, 1)
    return x, Tokens("attention_mask", positions, allowed, bias, getattr(config, "attention_softcap", None))


def _positions(graph: Graph, table: Positions, *, counts_mask: bool) -> str:
    """Return the positions `[batch or 1, length]`."""
    if counts_mask:
        return graph.op("Max", graph.op("Sub", graph.op("CumSum", "attention_mask", 1), 1), 0)
    if table.kind == "learned_present":
        padding = graph.op("Equal", "input_ids", table.offset - 1)
        present = graph.op("Cast", graph.op("Not", padding), to=INT64)
        return graph.op("Sub", graph.op("Mul", graph.op("CumSum", present, 1), present), 1)
    return graph.unsqueeze(_indices(graph), 0)


def _indices(graph: Graph) -> str:
    """Return 0, 1, ... of the length of the texts, `[length]`."""
    length = graph.op("Squeeze", graph.op("Shape", "input_ids", start=1, end=2), [0])
    return graph.op("Range", 0, length, 1)


def _distances(graph: Graph) -> str:
    """Return key index - query index, `[query, key]`."""
    indices = _indices(graph)
    return graph.op("Sub", graph.unsqueeze(indices, 0), graph.unsqueeze(indices, 1))


def _position_bias(graph: Graph, module: RelativePositionBias) -> str:
    """Return the bias `[1, heads, query, key]`: buckets are equal beyond the largest distance, so a table holds all."""
    far = module.config.max_distance
    table = np.asarray(module.table)[np.asarray(module.bucket(jnp.arange(-far, far + 1)))]  # [distances, heads]
    near = graph.op("Add", graph.op("Clip", _distances(graph), -far, far), far)
    return graph.unsqueeze(graph.op("Gather", table.T, near, axis=1), 0)


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


def _stack(graph: Graph, stack: Any, x: str, tokens: Tokens) -> str:
    """Return the output of a stack's layers, normalised if it has a final norm.

    A layer sees the tokens through its window, with the position bias of the heads that it has.
    """
    for group in stack.config.groups:
        for number, layer in enumerate(group.each(getattr(stack, group.name)), start=group.start):
            config, bias, allowed = stack.config.layers[number], tokens.bias, tokens.allowed
            if bias is not None and config.attention.ids != tuple(range(stack.position_bias.config.num_heads)):
                bias = graph.op("Gather", bias, np.asarray(config.attention.ids, np.int64), axis=1)
            if config.window is not None:
                near = graph.unsqueeze(graph.op("Less", graph.op("Abs", _distances(graph)), config.window), 0, 1)
                allowed = near if allowed is None else graph.op("And", allowed, near)
            x = _layer(graph, layer, x, dataclasses.replace(tokens, bias=bias, allowed=allowed))
    return graph.norm(stack.final_norm, x)


def _layer(graph: Graph, layer: Block, x: str, tokens: Tokens) -> str:
    """Return the stream after a layer, see `Residual`."""
    entered = x
    for slot in layer.slots:
        residual: Residual = getattr(layer, f"{slot}_residual")
        before = residual.kind in BEFORE
        inputs = graph.norm(residual.norm if before else None, entered if residual.kind == "parallel_norm" else x)
        module: Any = getattr(layer, slot)
        if slot == "feed_forward":
            outputs = _feed_forward(graph, module, inputs)
        else:
            outputs = attention(module, graph, inputs, inputs, tokens)
        if residual.after is not None:
            x = graph.op("Add", x, graph.norm(residual.after, outputs))
            continue
        shortcut, branch = residual.factors()
        x = graph.op("Add", graph.times(x, np.asarray(shortcut)), graph.times(outputs, np.asarray(branch)))
        x = graph.norm(None if before else residual.norm, x)
    return x


def _feed_forward(graph: Graph, module: FeedForward, x: str) -> str:
    """Return phi(x W_1 + b_1) W_2 + b_2, see `FeedForward`."""
    if module.hidden == 0:
        return graph.nothing(x, module.down_bias)
    inner = graph.linear(x, module.up, module.up_bias, "up")
    if module.gate is None:
        inner = graph.activation(module.activation, inner)
    else:
        gate = graph.linear(x, module.gate, module.gate_bias, "gate")
        inner = graph.op("Mul", graph.activation(module.activation, gate), inner)
    return graph.linear(inner, module.down, module.down_bias, "down", by_row=True)


def _logits(graph: Graph, model: Any, hidden: str) -> str | None:
    """Return the logits of a model's task; None where it has none."""
    output, task = model.output, getattr(model.config, "task", None)
    if isinstance(task, NoTask):
        return None
    if task is None:
        return graph.capped(_over_vocabulary(graph, hidden, output.kernel, output.bias), output.softcap)
    if isinstance(task, DistilledClassification):
        maps = enumerate((getattr(output, "class"), output.distillation))
        both = [graph.linear(_token(graph, hidden, index), each.kernel, each.bias) for index, each in maps]
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
        return _token(graph, states, 0) if pooled else states
    if not pooled:
        return hidden
    if isinstance(config, DecoderConfig) or getattr(config, "end_token", None) is not None:
        return graph.op("GatherND", hidden, graph.unsqueeze(_last_token(graph, config), 1), batch_dims=1)
    if reads == "mean":
        shown = graph.op("Cast", "attention_mask", to=FLOAT)
        sums = graph.op("Squeeze", graph.op("MatMul", graph.unsqueeze(shown, 1), hidden), [1])
        x = graph.op("Div", sums, graph.op("Max", graph.op("ReduceSum", shown, [1], keepdims=1), 1.0))
    else:
        x = _token(graph, hidden, 0)
    x = x if pooler is None else _pooled(graph, pooler, x)
    x = graph.norm(getattr(model, "pooled_norm", None), x)
    if getattr(config, "patch_mean", False):
        patches = graph.op("Slice", hidden, [1 + config.distillation_token], [LAST], [1])
        x = graph.op("Concat", x, graph.op("ReduceMean", patches, [1], keepdims=0), axis=1)
    return x


def _pooled(graph: Graph, pooler: Pooler, x: str) -> str:
    """Return norm(phi(x W + b)), see `Pooler`."""
    x = graph.linear(x, pooler.kernel, pooler.bias, "pooler")
    return graph.norm(pooler.norm, graph.activation(pooler.activation, x))


def _token(graph: Graph, hidden: str, index: int) -> str:
    return graph.op("Gather", hidden, index, axis=1)


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
    return graph.op("ReduceMax", graph.op("Where", shown, _indices(graph), 0), [1], keepdims=0)


# Attention: onnxruntime's `MultiHeadAttention` wherever that computes the formulation, else its logits.


@functools.singledispatch
def attention(module: Any, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    """Return the outputs of an attention module `[batch, query, width]`, from queries x and the tokens attended to."""
    raise InexpressibleError(f"layout onnx: has no attention of the kind {kind_of(module)}")


@attention.register
def _(module: NoHeadsAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    return graph.nothing(x, module.output.bias)


@attention.register
def _(module: GroupedAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    query = graph.linear(x, module.query, module.query_bias, "query")
    key = graph.linear(memory, module.key, module.key_bias, "key")
    value = graph.linear(memory, module.value, module.value_bias, "value")
    query = _rotated(graph, query, module, module.num_heads, module.query_norm, tokens)
    key = _rotated(graph, key, module, module.kv_heads, module.key_norm, tokens)
    if module.groups != tuple(range(module.num_heads)):
        by_head = (graph.reshape(each, 0, 0, module.kv_heads, -1) for each in (key, value))
        key, value = (graph.reshape(graph.op("Gather", each, module.groups, axis=2), 0, 0, -1) for each in by_head)
    return _combined(graph, module, query, key, value, tokens)


@attention.register
def _(module: LatentAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    if module.rotary is not None:
        raise InexpressibleError("layout onnx: has no latent attention with rotary keys")
    latent = graph.norm(module.latent_norm, graph.linear(memory, module.latent))
    x = graph.norm(module.query_norm, x if module.query_latent is None else graph.linear(x, module.query_latent))
    query = graph.linear(x, module.query, module.query_bias, "query")
    key = graph.linear(latent, module.key, None, "key")
    value = graph.linear(latent, module.value, module.value_bias, "value")
    return _combined(graph, module, query, key, value, tokens)


@attention.register
def _(module: CompressedAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    return attention(module.inner, graph, x, graph.linear(memory, module.latent), tokens)


@attention.register
def _(module: CollaborativeAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    scale = 1.0 / math.sqrt(module.kind.head_dim)
    query = graph.linear(x, module.query, module.query_bias, "query")  # [batch, query, shared_dim]
    mixing = np.asarray(module.mixing)[:, None]  # [heads, 1, shared_dim]
    query = graph.op("Mul", graph.unsqueeze(query, 1), scale * mixing)
    key = graph.transpose(graph.linear(memory, module.key, module.key_bias, "key"), 0, 2, 1)
    logits = graph.op("MatMul", query, graph.unsqueeze(key, 1))
    if module.content_bias is not None:
        content = graph.transpose(graph.linear(memory, scale * module.content_bias[...]), 0, 2, 1)
        logits = graph.op("Add", logits, graph.unsqueeze(content, 2))
    value = graph.linear(memory, module.value, module.value_bias, "value")
    return _from_logits(graph, module, logits, value, tokens)


def _rotated(graph: Graph, x: str, module: GroupedAttention, heads: int, norm: Any, tokens: Tokens) -> str:
    """Return queries or keys `[batch, length, heads * head_dim]`, normalised by head and rotated to their positions.

    Dimension i becomes x_i cos(t r_i) + x_j sin(t r_i), where j is the other dimension of its pair and r_i its rate,
    negative for the first of a pair, see `Rotary`; dimensions that do not turn have the rate 0.
    """
    rotary, size = module.rotary, module.query.shape[-1]
    if norm is None and rotary is None:
        return x
    x = graph.norm(norm, graph.reshape(x, 0, 0, heads, size))
    if rotary is not None:
        frequencies, halves = module.kind.options.get("frequencies"), isinstance(rotary, RotaryHalves)
        rates = np.asarray(rotary.angles(jnp.ones((1, 1)), size))[0]  # an angle is its position times a rate
        rates = rates if frequencies is None else rates[0][np.asarray(frequencies)]  # [heads or 1, dim / 2]
        half, dim = rates.shape[-1], 2 * rates.shape[-1]
        rates = np.stack([-rates, rates], axis=1 if halves else 2).reshape(-1, dim)
        at = graph.unsqueeze(graph.op("Cast", tokens.positions or "", to=FLOAT), 2, 3)
        angles = graph.op("Mul", at, np.pad(rates, ((0, 0), (0, size - dim))))  # [batch or 1, length, heads or 1, size]
        if halves:  # where `Gather` is many times slower
            spans = ((half, dim), (0, half), (dim, size))
            slices = [graph.op("Slice", x, [start], [stop], [3]) for start, stop in spans if start < stop]
            other = graph.op("Concat", *slices, axis=3)
        else:
            other = graph.op("Gather", x, np.r_[np.arange(dim) ^ 1, dim:size], axis=3)
        x = graph.op("Mul", x, graph.op("Cos", angles))
        x = graph.op("Add", x, graph.op("Mul", other, graph.op("Sin", angles)))
    return graph.reshape(x, 0, 0, heads * size)


def _combined(graph: Graph, module: Any, query: str, key: str, value: str, tokens: Tokens) -> str:
    """Return the outputs of heads with queries, keys and values of their own, `[batch, length, heads * size]` each."""
    heads, scale = module.num_heads, float(module.scale)
    if tokens.softcap is not None:
        query, key = (graph.reshape(x, 0, 0, heads, -1) for x in (graph.times(query, scale), key))
        logits = graph.op("MatMul", graph.transpose(query, 0, 2, 1, 3), graph.transpose(key, 0, 2, 3, 1))
        return _from_logits(graph, module, logits, value, tokens)
    present, bias = "", tokens.bias or ""
    if tokens.allowed is not None:  # together with padding, so that a query that sees nothing sees all alike, as here
        hidden = graph.op("Where", _visible(graph, tokens), 0.0, MASKED)
        bias = graph.op("Add", bias, hidden) if bias else hidden
    elif tokens.present is not None:
        present = graph.op("Cast", tokens.present, to=INT32)
    options: dict[str, Any] = {"num_heads": heads, "scale": scale, "mask_filter_value": MASKED}
    context = graph.op("MultiHeadAttention", query, key, value, "", present, bias, domain=MICROSOFT, **options)
    return _output(graph, module, context)


def _from_logits(graph: Graph, module: Any, logits: str, value: str, tokens: Tokens) -> str:
    """Return the outputs of heads from logits `[batch, heads, query, key]` and values `[batch, key, heads * size]`."""
    if tokens.bias is not None:
        logits = graph.op("Add", logits, tokens.bias)
    logits = graph.capped(logits, tokens.softcap)
    if tokens.allowed is not None or tokens.present is not None:
        logits = graph.op("Where", _visible(graph, tokens), logits, MASKED)
    value = graph.transpose(graph.reshape(value, 0, 0, module.num_heads, -1), 0, 2, 1, 3)
    context = graph.op("MatMul", graph.op("Softmax", logits, axis=-1), value)
    return _output(graph, module, graph.reshape(graph.transpose(context, 0, 2, 1, 3), 0, 0, -1))


def _visible(graph: Graph, tokens: Tokens) -> str:
    """Return which keys a query sees, `[batch or 1, 1, query or 1, key]` bool; some are masked."""
    if tokens.present is None:
        return tokens.allowed or ""
    keys = graph.unsqueeze(graph.op("Cast", tokens.present, to=BOOL), 1, 2)
    return keys if tokens.allowed is None else graph.op("And", keys, tokens.allowed)


def _output(graph: Graph, module: Any, context: str) -> str:
    """Return the contexts `[batch, query, heads * value_dim]` times W_O, plus b_O."""
    kernel = module.output.kernel[...]
    return graph.linear(context, kernel.reshape(-1, kernel.shape[-1]), module.output.bias, "output")
