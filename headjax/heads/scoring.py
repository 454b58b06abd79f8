"""Every score of the heads of any model, from gradients of gates in one pass over the data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.numbers import brief
from headjax.core.progress import Update
from headjax.heads.head_id import HeadId, Values
from headjax.heads.loss_checks import checked
from headjax.heads.program import Applied, Loss, Losses, Program, compiled, each_example, prepare
from headjax.heads.seam import Notes
from headjax.heads.site import AttentionSite, Gates, Sites, filled, to_values
from headjax.heads.statistics import STATISTICS, sum_over
from headjax.nn.state import Compute

GRADIENT_SCORES: Mapping[str, str] = {
    "importance": "mean over examples of |dL/dxi_h|: Michel et al. 2019, equation 2",
    "importance_layer": "importance over the l2 norm of its layer's: so Michel et al. compare heads of all layers",
    "importance_token": "mean over tokens of |dL/dxi_(h,t)|: Michel et al.'s published code (absolute value per token)",
    "fisher": "sum over examples of (dL/dxi_h)^2, the empirical Fisher diagonal: Kwon et al. 2022",
}
"""Definitions of the scores that need a backward pass, by name."""

SCORES: Mapping[str, str] = {
    **GRADIENT_SCORES,
    "hies": "0.5 min-max importance + 0.5 (1 - min-max normalized_entropy): arXiv 2510.13832",
}
"""Definitions of the scores that order heads, the least first."""

DESCRIPTIONS: Mapping[str, str] = {
    **SCORES,
    "entropy": "mean attention entropy, nats",
    "normalized_entropy": "mean attention entropy over log(number of visible keys)",
    "distance": "mean attention distance, positions",
}
"""Definitions of the scores, and of statistics of a head's attention, which do not measure importance."""

NO_TARGET = "there is no example with a target to score heads on"


class Scores(NamedTuple):
    """Scores of all heads.

    Attributes:
        values: By name in `DESCRIPTIONS`, one number per head.
        loss: Mean loss per target, nats.
        examples: Number of examples that had a target.
        seconds: Wall-clock time of the pass, compilation included.
    """

    values: dict[str, dict[HeadId, float]]
    loss: float
    examples: int
    seconds: float

    def __repr__(self) -> str:
        return brief(self)

    def score(self, name: str) -> dict[HeadId, float]:
        """Return the values of one score."""
        if name not in self.values:
            raise HeadjaxError(f"score: {unknown_name('score', name, self.values)}")
        return self.values[name]


def score_heads(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    gates: Mapping[str, Any] | None = None,
    statistics: Sequence[str] | None = None,
    compute: Compute | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Scores:
    """Score every head by `headjax.heads.scoring.DESCRIPTIONS`, with one forward and backward pass per batch.

    The loss L(x) of an example is what `loss` returns for it. A model that has a method `loss(batch)` brings its own;
    that of headjax's models is the sum of the targets' negative log-likelihoods, so that -L(x) is the log-likelihood
    of the example, as Fisher information needs. Examples without a target do not count. The model is scored in
    evaluation mode. The statistics need the probabilities that layers of headjax show; with them padding is what the
    batch says, elsewhere what cannot change the loss.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> scores = headjax.score_heads(model, batches)
        >>> importance = scores.score("importance")
        >>> len(importance), str(min(importance, key=importance.get))
        (32, 'decoder/1/6')

    Args:
        model: Any `nnx.Module`, or a function of a tree of arrays (Linen, Equinox) as `(apply, params, sites)`, with
            the path of W_O in the tree and the axis of its heads for each site, `{"layer_0": ("layer_0/out/kernel",
            0)}`, and the number of heads where the axis holds `heads * head_dim` entries; loss gets the applied tree.
        batches: Arrays by Hugging Face's names with labels; for your loss, trees of arrays, examples first.
        loss: Function of a model and a batch that returns the losses of the examples, `[batch]`. If it returns one
            number, which must be the sum or mean of those of its examples alone, it is taken on batches of one example
            each. None is the model's own. What Python reads in it is read anew in every call.
        gates: Gates at which to score, by the path of the site, of its `shape`. None is all ones.
        statistics: Names in `headjax.heads.statistics.STATISTICS`; None is all where the model shows probabilities.
        compute: Precision and kernels of a headjax model's own loss.
        strict: Whether attention that the loss computes and that no site holds is an error; else a warning names it.
        progress: Called after every batch with the number of batches done.

    Raises:
        DataError: There are no examples, or none has a target.
        HeadjaxError: A loss compares the examples of a batch, a score is not finite, a statistic cannot be taken of
            this model, it has no attention layer (`attention_sites`), or there is no loss.
    """
    started = time.perf_counter()
    program, state = prepare(model, loss, compute)
    named, at = _statistics(program, statistics), filled(program.sites, gates)

    def check(number: int, fetched: _Sums) -> None:
        _check_finite(program.sites, fetched, number)
        if progress is not None:
            progress(number + 1, {})

    sums = (batch_sums(program, named, state, at, batch) for batch in checked(program, state, batches, strict))
    total: _Sums = sum_over(sums, check, NO_TARGET)
    if total.examples == 0:
        raise DataError(f"batches: {NO_TARGET}")
    values, seconds = _means(program.sites, total), time.perf_counter() - started
    return Scores(values, float(total.loss / total.targets), int(total.examples), seconds)


def _check_finite(sites: Sites, sums: _Sums, number: int) -> None:
    for name, arrays in sums.heads.items():
        if not all(np.isfinite(array).all() for array in arrays.values()):
            by_head = to_values(sites, arrays)
            head = next(head for head, value in by_head.items() if not math.isfinite(value))
            raise HeadjaxError(f"score: {name} of head {head} is {by_head[head]} in batch {number}, counted from 0")


def _statistics(program: Program, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the statistics to take."""
    others = [site.path for site in program.sites if site.path not in program.shown]
    if names is None:
        return () if others else tuple(STATISTICS)
    for name in names:
        if name not in STATISTICS:
            raise HeadjaxError(f"statistics: {unknown_name('statistic', name, STATISTICS)}")
    if names and others:
        raise HeadjaxError(f"statistics: {names[0]} needs probabilities, which {others[0]} does not show; pass ()")
    return tuple(names)


def _means(sites: Sites, total: _Sums) -> dict[str, dict[HeadId, float]]:
    """Return the means of the sums over all examples, and the scores that are computed from other scores."""
    divisors = {"importance": total.examples, "fisher": 1.0}
    values = {}
    for name, arrays in total.heads.items():
        # A source of padding alone has no query, and its sums are 0.
        scaled = {s: array / divisors.get(name, np.maximum(total.counts[s], 1.0)) for s, array in arrays.items()}
        values[name] = to_values(sites, scaled)
    values["importance_layer"] = normalize_layers(values["importance"])
    if "normalized_entropy" in values:
        values["hies"] = hies(values["importance"], values["normalized_entropy"])
    return {name: values[name] for name in DESCRIPTIONS if name in values}


def normalize_layers(values: Values) -> dict[HeadId, float]:
    """Return I_h / (sqrt(sum over the layer's heads of I^2) + 1e-20), by layer and head stack (Molchanov et al. 2017).

    Michel et al. normalise importance in this way before they compare heads of different layers.
    """
    squares: dict[tuple[str, int], float] = {}
    for head, value in values.items():
        squares[head.stack, head.layer] = squares.get((head.stack, head.layer), 0.0) + value**2
    return {head: value / (math.sqrt(squares[head.stack, head.layer]) + 1e-20) for head, value in values.items()}


def hies(importance: Values, entropy: Values, alpha: float = 0.5) -> dict[HeadId, float]:
    """Return the head importance-entropy score (arXiv 2510.13832): alpha * I^ + (1 - alpha) * (1 - E^).

    I^ and E^ are importance and entropy, each min-max normalised over all heads. The authors choose alpha per task on
    held-out data.
    """

    def min_max(values: Values) -> Values:
        low, high = min(values.values()), max(values.values())
        return {head: (value - low) / (high - low) if high > low else 0.0 for head, value in values.items()}

    scaled, spread = min_max(importance), min_max(entropy)
    return {head: alpha * scaled[head] + (1.0 - alpha) * (1.0 - spread[head]) for head in importance}


class _Sums(NamedTuple):
    """Sums over examples that have a target; by site, they have the shape of its gates."""

    loss: Any
    targets: Any
    examples: Any
    counts: dict[str, Any]  # of positions, by site
    heads: dict[str, dict[str, Any]]  # by score and site


@compiled("statistics")
def batch_sums(program: Program, statistics: tuple[str, ...], state: Any, gates: Gates, batch: Any) -> _Sums:
    """Return the sums of every score over one batch."""
    derivatives = _derivatives(program, statistics, state, gates, batch)
    losses, present = derivatives.losses, (derivatives.losses.targets > 0).astype(jnp.float32)
    heads: dict[str, dict[str, Any]] = {}
    counts = {}
    for site in program.sites:
        by_position = derivatives.gradient[site.path]
        by_example = by_position.sum(axis=-2)
        sums = {
            "importance": jnp.abs(by_example).sum(axis=0),
            "fisher": jnp.square(by_example).sum(axis=0),
        }
        if derivatives.positions:
            sums["importance_token"] = jnp.abs(by_position).sum(axis=(0, -2))
        every = jnp.full(site.shape, present.sum() * by_position.shape[-2], jnp.float32)
        counts[site.path] = derivatives.counts.get(site.path, every)
        if site.path in derivatives.notes:
            noted = derivatives.notes[site.path]
            # Products and sums, as a contraction over examples along explicit axes would have to name its placement.
            used = jnp.expand_dims(present, range(noted.queries.ndim - 1))  # [layers?, batch]
            counts[site.path] = jnp.broadcast_to((noted.queries * used).sum(axis=-1, keepdims=True), site.shape)
            by_head = (noted.sums * used[..., None, :, None]).sum(axis=-2)  # [layers?, statistics, heads]
            sums |= zip(statistics, jnp.moveaxis(by_head, -2, 0), strict=True)
        for name, array in sums.items():
            heads.setdefault(name, {})[site.path] = array
    complete = {name: arrays for name, arrays in heads.items() if len(arrays) == len(program.sites)}
    return _Sums(losses.total.sum(), losses.targets.sum(), present.sum(), counts, complete)


class _Derivatives(NamedTuple):
    """Gradients of the examples' losses by their gates, and the readings at the seams, by site."""

    losses: Losses
    gradient: dict[str, jax.Array]  # [batch, layers?, positions, heads]
    counts: dict[str, jax.Array]  # [layers?, heads], numbers of positions that can change the loss
    notes: dict[str, Notes]
    positions: bool  # whether every gradient is by position


def _derivatives(program: Program, statistics: tuple[str, ...], state: Any, gates: Gates, batch: Any) -> _Derivatives:
    """Differentiate every example's loss in one gate for each head and position.

    Where a loss is by example, the gradient of its sum is every example's; else batches of one example are vmapped.
    """
    per_example = program.calls(state, batch).per_example and program.by_position
    example = batch
    if not per_example:
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:])[: x.ndim], x.dtype), batch)
    leads = {path: _common(calls) for path, calls in program.calls(state, example).leads.items()}
    missing = next((site for site in program.sites if site.path not in leads), None)
    if missing is not None and program.by_position:
        raise HeadjaxError(
            f"{missing.path}: the loss never calls its {missing.output or 'layer'}, so its gates do nothing"
        )
    reads = {site.path: jnp.zeros(site.shape) for site in program.sites}
    notes = {}
    for site in program.sites:
        if site.path in program.shown and len(leads[site.path]) == 2:
            (size, _), front = leads[site.path], site.shape[:-1]
            notes[site.path] = Notes(jnp.zeros((*front, size)), jnp.zeros((*front, len(statistics), size, site.heads)))
    options: dict[str, Any] = {"read": _positions, "statistics": statistics}

    def loss(arrays: tuple[Gates, Gates, dict[str, Notes]], batch: Any) -> tuple[jax.Array, Losses]:
        losses = program.value(state, arrays[0], batch, reads=arrays[1], notes=arrays[2], **options)
        return losses.total.sum(), losses

    def differentiate(batch: Any) -> tuple[Losses, Gates, Gates, dict[str, Notes]]:
        spread = {site.path: _spread(site, gates[site.path], leads.get(site.path)) for site in program.sites}
        (gradient, counts, noted), losses = jax.grad(loss, has_aux=True)((spread, reads, notes), batch)
        return losses, gradient, counts, noted

    if per_example:
        losses, gradient, counts, noted = differentiate(batch)
        examples = losses.total.shape[0]
        by_example = {site.path: _by_example(site, gradient[site.path], examples) for site in program.sites}
    else:
        losses, gradient, counts, noted = each_example(differentiate, batch)
        losses = jax.tree.map(lambda array: array.reshape(-1), losses)
        counts = {path: array.sum(axis=0) for path, array in counts.items()}
        by_example = {site.path: _flattened(site, gradient[site.path]) for site in program.sites}
        noted = {
            path: Notes(_joined(notes_of.queries, -1), _joined(notes_of.sums, -2)) for path, notes_of in noted.items()
        }
    positions = all(len(lead) > 1 and max(lead[1:]) > 1 for lead in leads.values()) and bool(leads)
    return _Derivatives(losses, by_example, counts, noted, positions)


def _joined(by_example: jax.Array, axis: int) -> jax.Array:
    """Move the first axis of notes, of batches of one example each, to their axis of examples."""
    return jnp.moveaxis(jnp.squeeze(by_example, axis), 0, axis)


def _positions(contexts: jax.Array, matrix: jax.Array, counts: jax.Array) -> jax.Array:
    """Return the number of positions that can change the loss, once for each head."""
    return jnp.full(contexts.shape[-2], counts.sum())


def _common(calls: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the axes that the calls of a site have in common: all if they are equal, else that of the batch."""
    if len(set(calls)) == 1:
        return calls[0]
    return (calls[0][0], *[1] * (len(calls[0]) - 1))


def _spread(site: AttentionSite, gates: jax.Array, lead: tuple[int, ...] | None) -> jax.Array:
    """Return a site's gates with axes for the positions before the heads."""
    if lead is None:
        return gates
    front = site.shape[:-1]
    return jnp.broadcast_to(gates.reshape(*front, *[1] * len(lead), site.heads), (*front, *lead, site.heads))


def _by_example(site: AttentionSite, gradient: jax.Array, examples: int) -> jax.Array:
    """Return a gradient `[layers?, batch, ..., heads]` as `[batch, layers?, positions, heads]`."""
    front = len(site.shape) - 1
    if gradient.shape[front] != examples:
        raise HeadjaxError(
            f"{site.path}: {site.output} is called with shape {list(gradient.shape[front:-1])} before its heads, which "
            f"does not begin with the {examples} examples; return one number from the loss, and it is taken by example"
        )
    return _flattened(site, jnp.moveaxis(gradient, front, 0))


def _flattened(site: AttentionSite, gradient: jax.Array) -> jax.Array:
    return gradient.reshape(gradient.shape[0], *site.shape[:-1], -1, site.heads)
