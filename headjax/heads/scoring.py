"""Every score of the heads of any model, from gradients of gates in one pass over the data."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections import defaultdict
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
from headjax.heads.agreement import in_parts
from headjax.heads.batches import sum_over
from headjax.heads.head_id import HeadId, HeadLayer, Values, all_heads, position
from headjax.heads.loss_checks import checked
from headjax.heads.program import Applied, Loss, Losses, Program, compiled, each_example, prepare
from headjax.heads.seam import STATISTICS, Notes, Pattern, offsets
from headjax.heads.site import AttentionSite, Gates, Sites, filled, to_values
from headjax.models.config import Batch
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.nn.block import Compute, ForwardOptions, Probe
from headjax.nn.operands import Mask

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
        statistics: Names in `headjax.heads.seam.STATISTICS`; None is all where the model shows probabilities.
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

    sums = (_sums_in_parts(model, program, named, state, at, each) for each in checked(program, state, batches, strict))
    total: _Sums = sum_over(sums, check, NO_TARGET)
    if total.examples == 0:
        raise DataError(f"batches: {NO_TARGET}")
    values, seconds = _means(program.sites, total), time.perf_counter() - started
    return Scores(values, float(total.loss / total.targets), int(total.examples), seconds)


def _sums_in_parts(model: Any, program: Program, named: Any, state: Any, gates: Any, batch: Any) -> _Sums:
    """Return the sums of a batch, of a large vocabulary in parts that fit in memory."""
    parts = in_parts(model, [batch]) if program.fixed else [batch]
    sums = [batch_sums(program, named, state, gates, part) for part in parts]
    return sums[0] if len(sums) == 1 else jax.tree.map(lambda *each: sum(each), *sums)


def _check_finite(sites: Sites, sums: _Sums, number: int) -> None:
    for name, arrays in sums.heads.items():
        if not all(np.isfinite(array).all() for array in arrays.values()):
            by_head = to_values(sites, arrays)
            head = next(head for head, value in by_head.items() if not math.isfinite(value))
            raise HeadjaxError(f"score: {name} of head {head} is {by_head[head]} in batch {number}, counted from 0")


def _statistics(program: Program, names: Sequence[str] | None) -> tuple[str, ...]:
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
    importance, squares = values["importance"], defaultdict[HeadLayer, float](float)
    for head, value in importance.items():
        squares[head.stack, head.layer] += value**2
    norms = {layer: math.sqrt(square) + 1e-20 for layer, square in squares.items()}
    values["importance_layer"] = {head: value / norms[head.stack, head.layer] for head, value in importance.items()}
    if "normalized_entropy" in values:
        scaled_importance, spread = map(_min_max, (importance, values["normalized_entropy"]))
        values["hies"] = {head: 0.5 * scaled_importance[head] + 0.5 * (1.0 - spread[head]) for head in importance}
    return {name: values[name] for name in DESCRIPTIONS if name in values}


def _min_max(values: Values) -> dict[HeadId, float]:
    low, high = min(values.values()), max(values.values())
    return {head: (value - low) / (high - low) if high > low else 0.0 for head, value in values.items()}


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
    losses, (gradients, counts, notes), with_positions = _derivatives(program, statistics, state, gates, batch)
    present = (losses.targets > 0).astype(jnp.float32)
    heads: dict[str, dict[str, Any]] = {}
    for site in program.sites:
        by_position = gradients[site.path]
        by_example = by_position.sum(axis=-2)
        sums = {"importance": jnp.abs(by_example).sum(axis=0), "fisher": jnp.square(by_example).sum(axis=0)}
        if with_positions:
            sums["importance_token"] = jnp.abs(by_position).sum(axis=(0, -2))
        if site.path in notes:
            queries, noted = notes[site.path]
            # Products and sums, as a contraction over examples along explicit axes would have to name its placement.
            used = jnp.expand_dims(present, range(queries.ndim - 1))  # [layers?, batch]
            counts[site.path] = jnp.broadcast_to((queries * used).sum(axis=-1, keepdims=True), site.shape)
            by_head = (noted * used[..., None, :, None]).sum(axis=-2)  # [layers?, statistics, heads]
            sums |= zip(statistics, jnp.moveaxis(by_head, -2, 0), strict=True)
        for name, array in sums.items():
            heads.setdefault(name, {})[site.path] = array
    complete = {name: arrays for name, arrays in heads.items() if len(arrays) == len(program.sites)}
    return _Sums(losses.total.sum(), losses.targets.sum(), present.sum(), counts, complete)


def _derivatives(
    program: Program, statistics: tuple[str, ...], state: Any, gates: Gates, batch: Any
) -> tuple[Losses, tuple[Gates, Gates, dict[str, Notes]], bool]:
    """Differentiate every example's loss in one gate for each head and position.

    Where a loss is by example, the gradient of its sum is every example's; else batches of one example are vmapped.
    Return, beside the losses, the gradients `[batch, layers?, positions, heads]`, the numbers of positions that can
    change the loss `[layers?, heads]`, and the notes, by site; and whether every gradient is by position.
    """
    per_example = program.calls(state, batch).per_example and program.by_position
    example = batch
    if not per_example:
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:])[: x.ndim], x.dtype), batch)
    leads = dict[str, tuple[int, ...]]()
    for path, calls in program.calls(state, example).leads.items():  # the axes in common, else that of the batch
        leads[path] = calls[0] if len(set(calls)) == 1 else (calls[0][0], *[1] * (len(calls[0]) - 1))
    spread, reads, notes = dict(gates), {site.path: jnp.zeros(site.shape) for site in program.sites}, {}
    for site in program.sites:
        lead, front = leads.get(site.path), site.shape[:-1]
        if lead is not None:  # axes for the positions before the heads
            wide = gates[site.path].reshape(*front, *[1] * len(lead), site.heads)
            spread[site.path] = jnp.broadcast_to(wide, (*front, *lead, site.heads))
        elif program.by_position:
            called = site.output or "layer"
            raise HeadjaxError(f"{site.path}: the loss never calls its {called}, so its gates do nothing")
        if lead is not None and len(lead) == 2 and site.path in program.shown:
            shape = len(statistics), lead[0], site.heads
            notes[site.path] = Notes(jnp.zeros((*front, lead[0])), jnp.zeros((*front, *shape)))
    options: dict[str, Any] = {"read": _positions, "statistics": statistics}

    def loss(arrays: tuple[Gates, Gates, dict[str, Notes]], batch: Any) -> tuple[jax.Array, Losses]:
        losses = program.value(state, arrays[0], batch, reads=arrays[1], notes=arrays[2], **options)
        return losses.total.sum(), losses

    differentiate = functools.partial(jax.grad(loss, has_aux=True), (spread, reads, notes))
    if per_example:
        (gradients, counts, noted), losses = differentiate(batch)
        for site in program.sites:
            gradients[site.path] = _examples_first(site, gradients[site.path], losses.total.shape[0])
    else:
        (gradients, counts, noted), losses = each_example(differentiate, batch)
        losses = jax.tree.map(lambda array: array.reshape(-1), losses)
        counts = {path: array.sum(axis=0) for path, array in counts.items()}
        noted = {path: Notes(*map(_joined, each, (-1, -2))) for path, each in noted.items()}
    for site in program.sites:
        gradient = gradients[site.path]
        gradients[site.path] = gradient.reshape(len(gradient), *site.shape[:-1], -1, site.heads)
    with_positions = all(len(lead) > 1 and max(lead[1:]) > 1 for lead in leads.values()) and bool(leads)
    return losses, (gradients, counts, noted), with_positions


def _joined(by_example: jax.Array, axis: int) -> jax.Array:
    """Move the first axis of notes, of batches of one example each, to their axis of examples."""
    return jnp.moveaxis(jnp.squeeze(by_example, axis), 0, axis)


def _positions(contexts: jax.Array, matrix: jax.Array, counts: jax.Array) -> jax.Array:
    """Return the number of positions that can change the loss, once for each head."""
    return jnp.full(contexts.shape[-2], counts.sum())


def _examples_first(site: AttentionSite, gradient: jax.Array, examples: int) -> jax.Array:
    """Return a gradient `[layers?, batch, ..., heads]` with its axis of examples in front."""
    front = len(site.shape) - 1
    if gradient.shape[front] != examples:
        raise HeadjaxError(
            f"{site.path}: {site.output} is called with shape {list(gradient.shape[front:-1])} before its heads, which "
            f"does not begin with the {examples} examples; return one number from the loss, and it is taken by example"
        )
    return jnp.moveaxis(gradient, front, 0)


ROLES: Mapping[str, int | None] = {"previous": -1, "self": 0, "next": 1, "first": None}
"""Position of the key that a query attends to, relative to its own; None is the first key that is no padding."""

THRESHOLD = 0.9
"""Share of a head's queries that makes its role."""


class Role(NamedTuple):
    """Role of a head, the one with the largest share if that reaches `THRESHOLD`.

    Shares are of the queries that look there most, among those that may see that key and another; NaN where no query
    could (`next` in a causal model).
    """

    shares: dict[str, float]
    role: str | None


def head_roles(model: Model, batches: Iterable[Batch]) -> dict[HeadId, Role]:
    """Return the role of every head: positional if its largest weight is on one relative position in 90 % of cases.

    This definition is that of Voita et al. (2019), section 5.1. In cross-attention positions are those of the key
    sequence. Padding is left out.
    """
    config, roles = model.config, {}
    total = sum_over(_counts(model, device_batch(config, batch)) for batch in batches)
    for head in all_heads(config):
        hits, possible = total[head.stack][head.layer]
        with np.errstate(invalid="ignore"):
            shares = dict(zip(ROLES, (hits[:, position(config, head)] / possible).tolist(), strict=True))
        best = max(ROLES, key=lambda name: -1.0 if np.isnan(shares[name]) else shares[name])
        roles[head] = Role(shares, best if shares[best] >= THRESHOLD else None)
    return roles


@jax.jit
def _counts(model: Model, batch: Any) -> Any:
    """Return by head stack and layer how many queries have a role, `[roles, heads]`, and how many could, `[roles]`."""
    options = ForwardOptions(probe=role_counts, compute=Compute(attention="einsum"))
    return model.forward(batch, options).require_probes()


def role_counts(probe: Probe) -> tuple[jax.Array, jax.Array]:
    """Return how often each role was met, `[roles, heads]`, and how often it could have been, `[roles]`."""
    if probe.attended.context.shape[2] == 0:
        return jnp.zeros((len(ROLES), 0)), jnp.zeros(len(ROLES))
    pattern = Pattern(probe.attended.probabilities, probe.mask, probe.query_mask)
    absolute, total = pattern.weights()
    weights = absolute / total[..., None]
    query, key = weights.shape[2:]
    allowed = None if probe.mask is None else probe.mask.array(query, key)
    seen = jnp.ones((1, query, key), bool) if allowed is None else allowed[:, 0]
    choice = (pattern.visible_keys()[:, :, 0] > 1) & (pattern.counted_queries() > 0)
    largest = jax.nn.one_hot(weights.argmax(axis=-1), key)
    relative = offsets(weights)
    mask = Mask() if probe.mask is None else dataclasses.replace(probe.mask, causal=False, window=None)
    tokens = mask.array(query, key)
    first = jnp.zeros((1, 1), int) if tokens is None else tokens[:, 0].argmax(axis=-1)
    first_key = first[:, :, None] == jnp.arange(key)[None, None]  # of each query's example, behind padding
    hits, possible = [], []
    for offset in ROLES.values():
        target = first_key if offset is None else (relative == offset)[None]
        could = jnp.broadcast_to(target & seen & choice[:, :, None], (weights.shape[0], query, key))
        hits.append(jnp.einsum("bhqk,bqk->h", largest, could.astype(jnp.float32)))
        possible.append(could.sum())
    return jnp.stack(hits), jnp.stack(possible)
