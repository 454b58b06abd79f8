"""The ONNX graph of an encoder, a Vision Transformer, or a decoder without a cache."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from headjax.core.serialize import kind_of
from headjax.hub.onnx_attention import Tokens, attention
from headjax.hub.onnx_nodes import BOOL, FLOAT, INT32, INT64, Graph, Node
from headjax.hub.table import InexpressibleError
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import LARGEST, EncoderConfig
from headjax.models.model import Model
from headjax.models.tasks import DistilledClassification, MaskedLanguageModel, NoTask, Pretraining
from headjax.models.tasks.task_output import LinearLogits
from headjax.models.vision import VisionConfig
from headjax.nn.block import Block
from headjax.nn.embeddings import Positions, RelativePositionBias
from headjax.nn.norms import BEFORE, Residual
from headjax.nn.projections import FeedForward, Pooler

LAST = 2**31 - 1


def onnx_graph(model: Model, *, segmented: bool, bits: int = 0) -> Graph:
    """Return the graph of `last_hidden_state` and, where a model has any, `logits`.

    Its inputs are `pixel_values`, or `input_ids` and `attention_mask`, with `token_type_ids` if `segmented`.

    Raises:
        InexpressibleError: the graph has no form for a part of the model; the message names the part.
    """
    graph, config, parts = Graph(bits), model.config, cast(Any, model)
    if isinstance(config, VisionConfig):
        hidden = _stack(graph, parts.encoder, _patches(graph, model), Tokens())
    elif isinstance(config, EncoderConfig | DecoderConfig):
        x, tokens = _embedded(graph, model, segmented)
        hidden = _stack(graph, parts.decoder if isinstance(config, DecoderConfig) else parts.encoder, x, tokens)
    else:
        raise InexpressibleError(f"layout onnx: is for encoders, decoders and images, not for {kind_of(config)} models")
    logits = _logits(graph, model, hidden)
    for name, tensor in {"last_hidden_state": hidden, "logits": logits}.items():
        if tensor is not None:
            graph.nodes.append(Node("Identity", (tensor,), (name,), "", {}))
            graph.outputs.append(name)
    return graph


def _embedded(graph: Graph, model: Any, segmented: bool) -> tuple[str, Tokens]:
    """Return what enters the stack, and the tokens as it reads them."""
    config: Any = model.config
    module: Any = model.embeddings
    causal = isinstance(config, DecoderConfig)
    positions = _positions(graph, module.positions, counts_mask=causal)
    graph.token = graph.coded(np.asarray(module.token[...], np.float32), "token", axis=1)
    x = graph.rows(*graph.token, "input_ids")
    x = graph.times(x, math.sqrt(module.token.shape[-1]) if module.scaled else 1.0)
    if module.position is not None:
        rows = graph.op("Add", positions, module.positions.offset)
        x = graph.op("Add", x, graph.op("Gather", module.position[...], rows))
    elif module.positions.kind != "none":
        raise InexpressibleError(f"layout onnx: has no positions of the kind {module.positions.kind}")
    if module.segment is not None:
        row = "token_type_ids" if segmented else [[0]]
        x = graph.op("Add", x, graph.op("Gather", module.segment[...], row))
    x = graph.norm(module.norm, x)
    if module.projection is not None:
        x = graph.linear(x, module.projection[...], None if module.projection_bias is None else module.projection_bias)
    relative = getattr(config, "position_bias", None) is not None
    bias = _position_bias(graph, model.encoder.position_bias) if relative else None
    allowed = None
    if causal or getattr(config, "causal", False):
        allowed = graph.unsqueeze(graph.op("LessOrEqual", _distances(graph), 0), 0, 1)
    cap = getattr(config, "attention_softcap", None)
    return x, Tokens("attention_mask", positions, allowed, bias, cap)


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
    at = _indices(graph)
    return graph.op("Sub", graph.unsqueeze(at, 0), graph.unsqueeze(at, 1))


def _position_bias(graph: Graph, module: RelativePositionBias) -> str:
    """Return the bias `[1, heads, query, key]`: buckets are equal beyond the largest distance, so a table holds all."""
    far = module.config.max_distance
    table = np.asarray(module.table[...])[np.asarray(module.bucket(jnp.arange(-far, far + 1)))]  # [distances, heads]
    near = graph.op("Add", graph.op("Clip", _distances(graph), -far, far), far)
    return graph.unsqueeze(graph.op("Gather", table.T, near, axis=1), 0)


def _patches(graph: Graph, model: Any) -> str:
    """Return the tokens and patches of images `[batch, length, width]`."""
    module: Any = model.patches
    kernel = np.moveaxis(np.asarray(module.kernel[...]), -1, 0)  # [width, channels, patch, patch]
    width, _, *sides = kernel.shape
    bias = () if module.bias is None else (module.bias[...],)
    grid = graph.op("Conv", "pixel_values", kernel, *bias, strides=sides)
    patches = graph.op("Transpose", graph.reshape(grid, 0, width, -1), perm=[0, 2, 1])
    first = [token[...] for token in (module.class_token, module.distillation_token) if token is not None]
    batch = graph.op("Shape", "pixel_values", start=0, end=1)
    shape = graph.op("Concat", batch, [len(first), width], axis=0)
    tokens = graph.op("Concat", graph.op("Expand", np.stack(first)[None], shape), patches, axis=1)
    return graph.norm(module.norm, graph.op("Add", tokens, module.position[...][None]))


def _stack(graph: Graph, stack: Any, x: str, tokens: Tokens) -> str:
    """Return the output of a stack's layers, normalised if it has a final norm."""
    for group in stack.config.groups:
        for number, layer in enumerate(group.each(getattr(stack, group.name)), start=group.start):
            x = _layer(graph, layer, x, _of_layer(graph, stack, number, tokens))
    return graph.norm(stack.final_norm, x)


def _of_layer(graph: Graph, stack: Any, number: int, tokens: Tokens) -> Tokens:
    """Return the tokens as a layer sees them: through its window, with the position bias of the heads that it has."""
    layer, bias, allowed = stack.config.layers[number], tokens.bias, tokens.allowed
    if bias is not None and layer.attention.ids != tuple(range(stack.position_bias.config.num_heads)):
        bias = graph.op("Gather", bias, np.asarray(layer.attention.ids, np.int64), axis=1)
    if layer.window is not None:
        near = graph.unsqueeze(graph.op("Less", graph.op("Abs", _distances(graph)), layer.window), 0, 1)
        allowed = near if allowed is None else graph.op("And", allowed, near)
    return dataclasses.replace(tokens, bias=bias, allowed=allowed)


def _layer(graph: Graph, layer: Block, x: str, tokens: Tokens) -> str:
    entered = x
    for slot in layer.slots:
        residual: Residual = getattr(layer, f"{slot}_residual")
        inputs = entered if residual.kind == "parallel_norm" else x
        inputs = graph.norm(residual.norm, inputs) if residual.kind in BEFORE else inputs
        module: Any = getattr(layer, slot)
        if slot == "feed_forward":
            outputs = _feed_forward(graph, module, inputs)
        else:
            outputs = attention(module, graph, inputs, inputs, tokens)
        x = _joined(graph, residual, x, outputs)
    return x


def _joined(graph: Graph, residual: Residual, x: str, outputs: str) -> str:
    """Return the stream after a sub-layer, see `Residual.join`."""
    if residual.after is not None:
        return graph.op("Add", x, graph.norm(residual.after, outputs))
    shortcut, branch = residual.factors()
    total = graph.op("Add", graph.times(x, np.asarray(shortcut)), graph.times(outputs, np.asarray(branch)))
    return total if residual.kind in BEFORE else graph.norm(residual.norm, total)


def _feed_forward(graph: Graph, module: FeedForward, x: str) -> str:
    """Return phi(x W_1 + b_1) W_2 + b_2, see `FeedForward`."""
    if module.hidden == 0:
        return graph.nothing(x, module.down_bias)
    inner = graph.linear(x, module.up[...], module.up_bias, "up")
    if module.gate is None:
        inner = graph.activation(module.activation, inner)
    else:
        gate = graph.linear(x, module.gate[...], module.gate_bias, "gate")
        inner = graph.op("Mul", graph.activation(module.activation, gate), inner)
    return graph.linear(inner, module.down[...], module.down_bias, "down", by_row=True)


def _logits(graph: Graph, model: Any, hidden: str) -> str | None:
    """Return the logits of a model's task; None where it has none."""
    config, output = model.config, model.output
    task: Any = getattr(config, "task", None)
    if isinstance(task, NoTask):
        return None
    if task is None:
        logits = _over_vocabulary(graph, model, hidden, output.kernel, output.bias)
        return logits if output.softcap is None else graph.capped(logits, output.softcap)
    if isinstance(task, DistilledClassification):
        maps = getattr(output, "class"), output.distillation
        both = [graph.linear(_token(graph, hidden, i), one.kernel[...], one.bias) for i, one in enumerate(maps)]
        return graph.times(graph.op("Add", *both), 0.5)
    states, pooled = _features(graph, model, hidden, needs_pooler=task.needs_pooler)
    if isinstance(task, MaskedLanguageModel | Pretraining):
        masked = output.masked if isinstance(task, Pretraining) else output
        inner = graph.linear(states, masked.transform[...], masked.transform_bias)
        inner = graph.norm(masked.norm, graph.activation(masked.config.activation, inner))
        return _over_vocabulary(graph, model, inner, masked.kernel, masked.bias)
    if not isinstance(output, LinearLogits):
        raise InexpressibleError(f"layout onnx: has no task output of the kind {kind_of(task)}")
    return graph.linear(pooled if task.needs_pooler else states, output.kernel[...], output.bias)


def _over_vocabulary(graph: Graph, model: Any, x: str, kernel: Any, bias: Any) -> str:
    """Return logits of all tokens, by the token embeddings where there is no kernel."""
    if kernel is not None:
        return graph.linear(x, kernel[...], bias, "vocabulary")
    matrix, scale = (each and graph.op("Transpose", each, perm=[1, 0]) for each in graph.token)
    logits = graph.product(x, matrix or "", scale)
    return logits if bias is None else graph.op("Add", logits, bias[...])


def _features(graph: Graph, model: Any, hidden: str, *, needs_pooler: bool) -> tuple[str, str]:
    """Return the states of the tokens and the pooled vector that a task reads."""
    config: Any = model.config
    if isinstance(config, VisionConfig):
        pooled = _token(graph, hidden, 0)
        pooled = _pooled(graph, model.pooler, pooled) if config.pooler is not None else pooled
        pooled = graph.norm(model.pooled_norm, pooled) if config.pooled_norm else pooled
        if config.patch_mean:
            patches = graph.op("Slice", hidden, [1 + config.distillation_token], [LAST], [1])
            pooled = graph.op("Concat", pooled, graph.op("ReduceMean", patches, [1], keepdims=0), axis=1)
        return hidden, pooled
    if isinstance(config, DecoderConfig):
        return hidden, _at(graph, hidden, _last_token(graph, config)) if needs_pooler else hidden
    if config.end_token is not None:
        marks = "input_ids"
        if config.end_token != LARGEST:
            marks = graph.op("Cast", graph.op("Equal", marks, config.end_token), to=INT32)
        return hidden, _at(graph, hidden, graph.op("ArgMax", marks, axis=1, keepdims=0))
    if config.pooler is None:
        return hidden, hidden
    if config.pooler_reads == "tokens":
        states = _pooled(graph, model.pooler, hidden)
        return states, _token(graph, states, 0)
    read = _token(graph, hidden, 0) if config.pooler_reads == "first" else _mean(graph, hidden)
    return hidden, _pooled(graph, model.pooler, read)


def _pooled(graph: Graph, pooler: Pooler, x: str) -> str:
    """Return norm(phi(x W + b)), see `Pooler`."""
    x = graph.linear(x, pooler.kernel[...], pooler.bias, "pooler")
    return graph.norm(pooler.norm, graph.activation(pooler.activation, x))


def _token(graph: Graph, hidden: str, number: int) -> str:
    """Return the states of one token, `[batch, width]`."""
    return graph.op("Gather", hidden, number, axis=1)


def _mean(graph: Graph, hidden: str) -> str:
    """Return the mean of the tokens that are no padding, `[batch, width]`."""
    shown = graph.op("Cast", "attention_mask", to=FLOAT)
    sums = graph.op("Squeeze", graph.op("MatMul", graph.unsqueeze(shown, 1), hidden), [1])
    return graph.op("Div", sums, graph.op("Max", graph.op("ReduceSum", shown, [1], keepdims=1), 1.0))


def _last_token(graph: Graph, config: DecoderConfig) -> str:
    """Return where the last token of each example is that is no padding, `[batch]`."""
    shown = graph.op("Cast", "attention_mask", to=BOOL)
    if config.padding_token is not None:
        padding = graph.op("Equal", "input_ids", config.padding_token)
        shown = graph.op("And", shown, graph.op("Not", padding))
    return graph.op("ReduceMax", graph.op("Where", shown, _indices(graph), 0), [1], keepdims=0)


def _at(graph: Graph, hidden: str, places: str) -> str:
    """Return the state at a place of each example, `[batch, width]`."""
    return graph.op("GatherND", hidden, graph.unsqueeze(places, 1), batch_dims=1)
