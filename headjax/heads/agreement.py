"""Agreement of two models on examples without labels, and what a small error of a sub-layer's output costs of it.

With r(y) the output of the model of which |r - r'|^2 / 2 is the measure of damage (`rooted`), an error e of a
sub-layer's output costs |J e|^2 / 2 to second order, J the Jacobian of r (Gauss-Newton). For random normal z

    E[(z^T J e)^2] = |J e|^2,   z^T J e = sum over tokens of g . e,   g = J^T z

so that one backward pass for each z prices every error of every sub-layer, those that tokens have in common included.
The rise of a loss has besides a part of first order, whose g is the gradient of the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.timing import finished
from headjax.heads.batches import examples_in, sum_over
from headjax.heads.head_id import HeadLayer
from headjax.heads.refit import Change
from headjax.heads.sums import replicated_sums
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch, ModelConfig, Output, declared_model, head_stack_at
from headjax.models.decoding import GenerativeConfig
from headjax.models.inputs import counted_at, device_batch, on_device
from headjax.models.model import Model
from headjax.models.tasks import MaskedLanguageModel, NoTask, Pretraining, Regression, SentenceSimilarity, Span
from headjax.models.tasks.similarity import sentences, unit
from headjax.models.walk import FEED_FORWARD, LayerBlock, SubLayerSeen, blocks_of, embed, step
from headjax.nn.block import Compute, State

AgreementKind = Literal["kl", "cosine", "squared_difference"]
"""Measures of agreement: KL(first || second) of predictions in nats, cosine of embeddings, difference of numbers."""


class Agreement(NamedTuple):
    """Agreement of two models, a mean over the predictions."""

    kind: AgreementKind
    value: float

    @property
    def distance(self) -> float:
        """Distance of the models: 0 if they agree."""
        return 1.0 - self.value if self.kind == "cosine" else self.value


class Predictions(NamedTuple):
    """Predictions of one batch."""

    values: jax.Array  # [..., n], logits, embeddings or numbers
    weight: jax.Array  # [...], 1.0 at predictions, 0.0 at padding


def agreement_kind(config: ModelConfig) -> AgreementKind:
    """Return the measure of agreement for a model: cosines of embeddings where it has no task but to embed."""
    task = getattr(config, "task", None)
    if isinstance(task, NoTask | SentenceSimilarity):
        return "cosine"
    return "squared_difference" if isinstance(task, Regression) else "kl"


def agreement(first: Model, second: Model, batches: Iterable[Batch]) -> Agreement:
    """Return how far two models of one task agree, as a mean over the predictions on these examples.

    Models with logits are compared by KL(first || second) of every prediction, in nats; regressions by the squared
    difference; and models that embed sentences or texts by the cosine between both models' embeddings.
    """
    return agreements(first, [second], batches)[0]


def agreements(first: Model, others: Sequence[Model], batches: Iterable[Batch]) -> list[Agreement]:
    """Return how far each of several models agrees with one, whose predictions are computed once; see `agreement`."""
    kind = agreement_kind(first.config)

    def compared(batch: Batch) -> list[Any]:
        arrays = device_batch(first.config, batch)
        predictions = predict(first, arrays)
        return [compare(kind, predictions, predict(model, arrays)) for model in others]

    batches = (part for batch in batches for part in in_parts(first, [batch]))
    parts = list(finished(map(compared, batches), None))
    return [mean_agreement(kind, [part[number] for part in parts]) for number in range(len(others))]


def rooted(kind: AgreementKind, predictions: Predictions) -> jax.Array:
    """Return r `[..., n]` of which |r - r'|^2 / 2 is the measure between predictions that are near each other.

    That is 1 - cosine of embeddings, and the squared difference, at any distance. KL(p || p') nears twice the squared
    distance of sqrt(p) and sqrt(p').
    """
    values = predictions.values
    if kind == "cosine":
        root = unit(values)
    elif kind == "squared_difference":
        root = values * jnp.sqrt(2.0 / values.shape[-1])
    else:
        root = 2.0 * jnp.exp(0.5 * jax.nn.log_softmax(values, axis=-1))
    return jnp.where(predictions.weight[..., None] > 0, root, 0.0)


def mean_agreement(kind: AgreementKind, parts: Iterable[Any]) -> Agreement:
    """Return the mean of sums that `compare` has returned."""
    total, weight = sum_over(parts)
    return Agreement(kind, float(total / max(weight, 1.0)))


@jax.jit
def predict(model: Model, batch: Any) -> Predictions:
    """Return a model's predictions for a batch."""
    return predictions_of(model.config, model.forward(batch), batch)


def predictions_of(config: ModelConfig, output: Output, batch: Any) -> Predictions:
    """Return the predictions that a model's output holds."""
    task = getattr(config, "task", None)
    if isinstance(task, SentenceSimilarity):
        return Predictions(output.require_embeddings(), sentences(batch, output.hidden).max(axis=2))
    present = counted_at(declared_model(config).valid_tokens(batch), output.hidden.shape[:2])  # [batch, length]
    if isinstance(task, NoTask):
        return Predictions(jnp.einsum("bt,btd->bd", present, output.hidden), present.max(axis=1))
    logits = output.require_logits().astype(jnp.float32)
    if isinstance(task, Regression):
        return Predictions(logits, present.max(axis=1))
    if isinstance(task, Span):
        logits = jnp.where(present[:, :, None] > 0, logits, -1e9)
        return Predictions(jnp.swapaxes(logits, 1, 2), jnp.stack([present.max(axis=1)] * 2, axis=1))
    return Predictions(logits, present.max(axis=1) if logits.ndim == 2 else present)


def divergence(first: jax.Array, second: jax.Array, temperature: float | jax.Array = 1.0) -> jax.Array:
    """Return KL(softmax(first / T) || softmax(second / T)) of logits `[..., choices]`, in nats, `[...]`."""
    log_p, log_q = (jax.nn.log_softmax(logits / temperature, axis=-1) for logits in (first, second))
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


@functools.partial(jax.jit, static_argnames="kind")
def compare(kind: AgreementKind, first: Predictions, second: Predictions) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the measure over the predictions of one batch, and their number."""
    x, y = first.values, second.values
    if kind == "cosine":
        lengths = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)
        each = (x * y).sum(axis=-1) / jnp.maximum(lengths, 1e-12)
    elif kind == "squared_difference":
        each = jnp.square(x - y).mean(axis=-1)
    else:
        each = divergence(x, y)
    return jnp.where(first.weight > 0, each, 0.0).sum(), first.weight.sum()


PROBES = 4
"""Backward passes, each for another z."""

LOGITS = 2**26
"""Most logits of a part of a batch whose gradients are read, which holds about eight numbers of 4 bytes for each."""

LOSSES = 4
"""As many times that are the most of a part whose losses alone are read, which holds about two numbers for each."""


class Seen(NamedTuple):
    """A sub-layer on a batch of evaluation examples: its state, its output, and g `[probes, batch, length, width]`."""

    state: State
    layer: SubLayerSeen
    gradient: jax.Array


def in_parts(model: Model, batches: Sequence[Batch], times: int = 1) -> list[Batch]:
    """Return batches in equal parts of at most `times * LOGITS` logits over a vocabulary, at least one example each.

    Batches on several devices stay whole.
    """
    config, parts = model.config, list[Batch]()
    task = getattr(config, "task", None)
    language = isinstance(config, GenerativeConfig) and task is None
    if not language and not isinstance(task, MaskedLanguageModel | Pretraining):
        return list(batches)
    for batch in batches:
        count, arrays = examples_in(batch), [array for array in jax.tree.leaves(dict(batch)) if array.ndim > 1]
        numbers = max(array.shape[1] for array in arrays) * int(getattr(config, "vocab_size", 1))
        sharded = any(isinstance(array, jax.Array) and len(array.devices()) > 1 for array in arrays)
        fitting = max(times * LOGITS // numbers, 1)
        rows = count if sharded else max(size for size in range(1, count + 1) if size <= fitting and count % size == 0)
        for start in range(0, count, rows):
            parts.append({name: array[start : start + rows] for name, array in batch.items()})
    return parts


class Sensitivity:
    """The original model on the examples that damages are evaluated on."""

    def __init__(self, model: Model, compute: Compute = Compute(), *, labels: bool = False) -> None:
        self._model, self._compute, self._labels = model, compute, labels
        self._batches, self._count = 0, 0.0

    def back(self, batch: Batch) -> Iterator[tuple[Any, State, Any, dict[str, Seen]]]:
        """Yield each block, the last one first: the state before it, the cotangents after it, and its sub-layers."""
        states = [embed(self._model, batch, self._compute)]
        for block in blocks_of(self._model):
            states.append(step(block, states[-1], self._compute))
        number = np.uint32(self._batches)
        cotangent, weight = _read(self._model, states.pop(), number, self._labels, self._compute)
        self._batches, self._count = self._batches + 1, self._count + float(weight)
        for block in blocks_of(self._model, backwards=True):
            state, after = states.pop(), cotangent
            cotangent, sub_layers = _pulled(block, state, after, self._compute)
            yield block, state, after, {slot: Seen(state, *seen) for slot, seen in sub_layers.items()}

    def at(self, block: LayerBlock, state: State, after: Any) -> dict[str, Seen]:
        sub_layers = _pulled(block, state, after, self._compute)[1]
        return {slot: Seen(state, *seen) for slot, seen in sub_layers.items()}

    def damages(self, products: Sequence[Any], what: str) -> np.ndarray:
        """Return the damage of each error, from its `products` on every batch."""
        sums = np.concatenate([np.asarray(batch, np.float64) for batch in products], axis=2)
        if not np.isfinite(sums).all():
            raise HeadjaxError(f"{what}: the output is not finite")
        squares: np.ndarray = np.square(sums[:, :PROBES]).sum(axis=(1, 2)) / (2.0 * PROBES)
        return (squares + sums[:, PROBES:].sum(axis=(1, 2))) / max(self._count, 1.0)


def prices(
    model: Model,
    batches: Sequence[Batch],
    changes: Mapping[tuple[HeadLayer, ...], Change],
    compute: Compute,
    tell: Callable[[float], None],
) -> Iterator[np.ndarray]:
    """Yield the damage of each change of attentions' output maps by itself, `[changes]`, a mean over the predictions.

    The changed layer is computed as it is, since large changes bend the feed-forward behind an attention. A change is
    made at all of its layers together. Its arrays have an axis of alternatives in front. States of one batch and a copy
    of one layer are held at a time. `tell` is told the share of the work that is done.
    """
    sensitivity = Sensitivity(model, compute)
    layers_of = {layer: layers for layers in changes for layer in layers}
    placed = {
        key: jax.tree.map(lambda array: on_device(np.asarray(array, np.float32)), changes[key]) for key in changes
    }
    by_batch: dict[tuple[HeadLayer, ...], list[Any]] = {layers: [] for layers in changes}
    parts, blocks = in_parts(model, batches), len(model.blocks())
    for number, batch in enumerate(parts):
        sums: dict[tuple[HeadLayer, ...], Any] = {}
        for done, (block, state, after, seen) in enumerate(sensitivity.back(batch), start=1):
            for slot in (slot for slot in seen if slot != FEED_FORWARD):
                layers = layers_of.get((head_stack_at(block.stack, slot), block.place.value))
                if layers is not None:
                    product = _stream_products(block, state, after[0], slot, placed[layers], compute)
                    sums[layers] = sums[layers] + product if layers in sums else product
            jax.block_until_ready(after)  # of the block before, so that the device stays ahead
            tell((number + done / blocks) / len(parts))
        for layers, of_batch in fetch(sums).items():
            by_batch[layers].append(of_batch)
    yield from (sensitivity.damages(each, "reconstruction") for each in by_batch.values())


def products(changes: Change, evaluated: Seen, seen: SubLayerSeen | None = None) -> jax.Array:
    """Return the sums over tokens of g . e of changed maps, `[changes, probes, batch]`; `seen` has other features."""
    layer = evaluated.layer if seen is None else seen
    return _products(layer.features, layer.output, evaluated.layer.output, evaluated.gradient, changes)


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def _stream_products(
    block: LayerBlock, state: State, cotangent: Any, slot: str, changes: Change, compute: Compute
) -> jax.Array:
    """Return the sums over tokens of g . e of changed maps: e is the error of the stream after the layer."""
    original, seen = block.sub_layers(state, compute)

    def product(change: Change) -> jax.Array:
        added = jnp.einsum("btn,nw->btw", seen[slot].features, change.weight) + change.bias[None, None]
        after, _ = block.sub_layers(state, compute, {slot: added.astype(original.x.dtype)})
        return jnp.einsum("btw,kbtw->kb", (after.x - original.x).astype(jnp.float32), cotangent.astype(jnp.float32))

    return replicated_sums(jax.vmap(product)(changes))


@jax.jit
def _products(
    features: jax.Array, output: jax.Array, target: jax.Array, gradient: jax.Array, changes: Change
) -> jax.Array:
    """Return the sums of `products`; `output` is that before the change."""
    error = (output - target).astype(jnp.float32)
    features, gradient = features.astype(jnp.float32), gradient.astype(jnp.float32)

    def product(change: Change) -> jax.Array:
        error_after = error + jnp.einsum("btn,nw->btw", features, change.weight) + change.bias[None, None]
        return jnp.einsum("btw,kbtw->kb", error_after, gradient)

    return replicated_sums(jax.lax.map(product, changes))


@functools.partial(jax.jit, static_argnames=("labels", "compute"))
def _read(model: Model, state: State, number: Any, labels: bool, compute: Compute) -> tuple[Any, jax.Array]:
    """Return the cotangents of the stream and the memory after the last block, and the number of predictions.

    The number of the batch is the seed of its probes.
    """
    kind = agreement_kind(model.config)

    def root(x: jax.Array, memory: jax.Array | None) -> tuple[Any, jax.Array]:
        output = model.finish(state._replace(x=x, memory=memory), compute)
        predictions = predictions_of(model.config, output, state.batch)
        if not labels:
            return (rooted(kind, predictions),), predictions.weight.sum()
        loss = model.losses(output, state.batch, smoothed=False)
        return (rooted(kind, predictions), loss.total.sum()), loss.weight.sum()

    roots, pull, weight = jax.vjp(root, state.x, state.memory, has_aux=True)

    def probe(key: jax.Array) -> Any:
        z = jax.random.normal(key, roots[0].shape, roots[0].dtype)
        return pull((z, *map(jnp.zeros_like, roots[1:])))

    key = jax.random.fold_in(jax.random.key(0), number)
    cotangents = jax.lax.map(probe, jax.random.split(key, PROBES))
    if labels:
        slope = pull((jnp.zeros_like(roots[0]), jnp.ones_like(roots[1])))
        cotangents = jax.tree.map(lambda probes, last: jnp.concatenate([probes, last[None]]), cotangents, slope)
    return cotangents, weight


@functools.partial(jax.jit, static_argnames="compute")
def _pulled(block: Any, state: State, cotangent: Any, compute: Compute) -> tuple[Any, dict[str, Any]]:
    """Return the cotangents before a block, and its sub-layers with the gradients of their outputs."""

    def run(x: jax.Array, memory: jax.Array | None, added: Any) -> tuple[Any, Any]:
        before, seen = state._replace(x=x, memory=memory), dict[str, SubLayerSeen]()
        if isinstance(block, LayerBlock):
            after, seen = block.sub_layers(before, compute, added)
        else:
            after = block(before, compute)
        return (after.x, after.memory), seen

    added = {}
    if isinstance(block, LayerBlock):
        added = dict.fromkeys(block.layer.config.slots, jnp.zeros(state.x.shape, state.x.dtype))
    _, pull, seen = jax.vjp(run, state.x, state.memory, added, has_aux=True)
    x, memory, gradients = jax.vmap(pull)(cotangent)
    return (x, memory), {slot: (layer, gradients[slot]) for slot, layer in seen.items()}
