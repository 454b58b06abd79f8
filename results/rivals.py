"""Orders and repairs of other papers for `results.removals`, written after their texts. None trains.

An order is a function of a model, calibration batches and the number of heads to remove, and returns these heads. A
repair is a function of a model, batches and removed heads, and returns the model with all heads, to be gated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import headjax
from headjax.heads.agreement import agreement_kind, predictions_of, rooted
from headjax.heads.batches import batches_for, examples_in
from headjax.heads.ordering import Order
from headjax.heads.output_maps import BlockReader, OutputMap, matrix_of
from headjax.heads.program import Program, prepare
from headjax.heads.refit import Change, refit
from headjax.heads.site import Gates, Sites, at_path, ones, without
from headjax.models.config import Batch
from headjax.models.model import Model
from results.query_key import added, squares

STEPS = 10
"""Points of the path along which gradients are integrated."""

ROUNDS, SCORED = 4, 128
"""Greedy orders score the heads that are left after each quarter of all, on this many examples."""

REPRESENTATION = 2.5e-4
"""Weight of a head's mean square output beside its effect on the predictions (K-prune's published setting)."""

UNRIDGED = (1e-8,)
"""K-prune's weight tuning: plain least squares, kept where it helps."""


def heads_of(sites: Sites) -> Order:
    """Return the heads in the order of `slopes`."""
    return tuple(head for site in sites for head in site.head_ids())


@functools.partial(jax.jit, static_argnames="program")
def slopes(program: Program, state: Any, gates: Gates, batch: Any) -> jax.Array:
    """Return dL/dxi_h of every example at these gates, `[batch, heads]`."""
    count = examples_in(batch)
    lead = {site.path: (*site.shape[:-1], count, 1, site.heads) for site in program.sites}
    wide = {path: jnp.broadcast_to(gate[..., None, None, :], lead[path]) for path, gate in gates.items()}
    found = jax.grad(lambda wide: program.value(state, wide, batch).total.sum())(wide)
    by_site = (jnp.moveaxis(found[site.path][..., 0, :], -2, 0) for site in program.sites)
    return jnp.concatenate([array.reshape(count, -1) for array in by_site], axis=1)


def integrated(program: Program, state: Any, gates: Gates, batch: Any, steps: int = STEPS) -> np.ndarray:
    """Return xi_h int_0^1 dL/dxi_h(a xi) da of every example, `[batch, heads]` (Sundararajan et al. 2017).

    Their sum over heads is L(xi) - L(0), up to the error of the midpoint rule.
    """
    points = (np.arange(steps) + 0.5) / steps
    path = ({name: jnp.float32(a) * gate for name, gate in gates.items()} for a in points)
    total = sum(np.asarray(slopes(program, state, at, batch), np.float64) for at in path)
    flat = np.concatenate([np.asarray(gates[site.path]).ravel() for site in program.sites])
    return np.asarray(flat * total / steps)


def attribution(model: Model, batches: Sequence[Batch], count: int) -> Order:
    """Integrated gradients over the gates, mean over examples of |IG_h|, scored again as heads go.

    arXiv 2602.04491 integrates over attention weights (Hao et al. 2021), takes the greatest of a head's weights where
    the gates take their sum, and scores again after every head.
    """
    program, state = prepare(model, None)
    arrays = [program.read(batch) for batch in batches_for(batches, SCORED)]

    def score(gates: Gates) -> np.ndarray:
        return np.asarray(sum(np.abs(integrated(program, state, gates, batch)).sum(axis=0) for batch in arrays))

    return _greedy(program.sites, score, count)


def gradient_norm(model: Model, batches: Sequence[Batch], count: int) -> Order:
    """Greedy-Gnorm (arXiv 2602.04491): |dF/dW_Q^h| |dF/dW_K^h| |dF/dW_V^h|, F the norm of a batch's logits."""
    program, state = prepare(model, lambda model, batch: jnp.linalg.norm(model(batch).require_logits()))
    arrays = [program.read(batch) for batch in batches_for(batches, SCORED)]

    def score(gates: Gates) -> np.ndarray:
        norms: Any = 0.0
        for batch in arrays:
            slope = weight_slopes(program, state, gates, batch)
            norms += np.stack([_norms(program.sites, slope, name) for name in ("query", "key", "value")])
        return np.asarray(norms.prod(axis=0))

    return _greedy(program.sites, score, count)


def _norms(sites: Sites, slope: nnx.Module, name: str) -> np.ndarray:
    """Return the norms of the blocks of heads of a projection, `[heads]`; query heads of one KV head share its."""
    found = []
    for site in sites:
        block = np.asarray(at_path(at_path(slope, site.path), name)[...])  # [layers?, width, heads, head_dim]
        norms = np.sqrt(np.square(block).sum(axis=(-3, -1)))
        found.append((norms if name == "query" else norms[..., site.groups]).ravel())
    return np.concatenate(found)


def weight_slopes(program: Program, state: Any, gates: Gates, batch: Any) -> nnx.Module:
    """Return the module that holds the gradients of a batch's loss in the place of its parameters."""
    found: nnx.Module = nnx.merge(cast(Any, program).graph, _weight_slopes(program, state, gates, batch))
    return found


@functools.partial(jax.jit, static_argnames="program")
def _weight_slopes(program: Program, state: Any, gates: Gates, batch: Any) -> Any:
    floats = jax.tree.map(lambda array: jnp.issubdtype(array.dtype, jnp.floating), state)

    def loss(own: Any) -> jax.Array:
        mixed = jax.tree.map(lambda real, one, other: one if real else other, floats, own, state)
        return program.value(mixed, gates, batch).total.sum()

    slope = jax.grad(loss, allow_int=True)(state)
    return jax.tree.map(lambda real, one, other: one if real else other, floats, slope, state)


def _greedy(sites: Sites, score: Callable[[Gates], np.ndarray], count: int) -> Order:
    """Return heads of least score, scored again after each of `ROUNDS` equal shares of all."""
    heads, gone = heads_of(sites), list[headjax.HeadId]()
    each = -(-len(heads) // ROUNDS)
    while len(gone) < count:
        values = dict(zip(heads, score(without(sites, gone)), strict=True))
        left = sorted((head for head in heads if head not in gone), key=lambda head: (values[head], head))
        gone += left[: min(each, count - len(gone))]
    return tuple(gone)


def mask_search(model: Model, batches: Sequence[Batch], count: int) -> Order:
    """Kwon et al. 2022 (arXiv 2204.09656): least Fisher diagonal of all heads, then swaps within each layer.

    A layer's removed heads are to minimise |sum_h g_h|^2, g_h the gradients of the examples. They are taken one by one:
    each further head joins, and the one goes without which the sum is least.
    """
    program, state = prepare(model, None)
    gates = ones(program.sites)
    found = [np.asarray(slopes(program, state, gates, program.read(batch)), np.float64) for batch in batches]
    by_head = dict(zip(heads_of(program.sites), np.concatenate(found).T, strict=True))
    diagonal = sorted(by_head, key=lambda head: (float(by_head[head] @ by_head[head]), head))
    chosen: list[headjax.HeadId] = []
    for place in dict.fromkeys((head.stack, head.layer) for head in diagonal):
        own = [head for head in diagonal if (head.stack, head.layer) == place]
        size = sum(head in own for head in diagonal[:count])
        gone = own[:size]
        for head in own[size:] if size else ():
            gone.append(head)
            total = np.sum([by_head[each] for each in gone], axis=0)
            gone.pop(int(np.argmin([np.square(total - by_head[each]).sum() for each in gone])))
        chosen += gone
    return tuple(chosen)


def knowledge(model: Model, batches: Sequence[Batch], count: int) -> Order:
    """K-prune (arXiv 2308.03449): layer by layer, the heads left of all later layers scored in the repaired model.

        1/2 mean_d (dD/dm_d)^2 + `REPRESENTATION` mean_d E[c_d^2] mean_w W_O[d, w]^2,   d the features of a head

    D is the distance of a batch's predictions from the original's, here 1 - cosine of embeddings, the squared
    difference, or near the divergence of distributions at T = 1 (the paper: 2). Heads alone go; b_O and W_O of each
    layer are then refitted by least squares without a ridge.
    """
    reader, scores = BlockReader(model, batches), _Knowledge(model, batches)
    chosen, passed = list[headjax.HeadId](), set[tuple[str, int]]()
    for each in reader.maps(feed_forward=False):
        (place,) = each.places
        values = {
            head: value
            for head, value in scores.of(reader.repaired()).items()
            if (head.stack, head.layer) not in passed
        }
        least = sorted(values, key=lambda head: (values[head], head))[: count - len(chosen)]
        chosen += [head for head in least if (head.stack, head.layer) == place]
        passed.add(place)
        kept = _without_heads(each, chosen)
        if each.diverged or not kept.all():
            sums, scale = each.sums()
            solved = refit(sums, kept, bias=each.biased, scale=scale, ridges=UNRIDGED)
            if solved.helps:
                each.add(solved.change)
    return tuple(chosen)


def _without_heads(each: OutputMap, gone: Sequence[headjax.HeadId]) -> np.ndarray:
    """Remove heads from a map; return which features stay."""
    kept = each.kept(gone)
    if not kept.all():
        each.keep(kept)
    return kept


class _Knowledge:
    """K-prune's scores of heads, in a model as it is repaired so far."""

    def __init__(self, model: Model, batches: Sequence[Batch]) -> None:
        self._config, self._kind = model.config, agreement_kind(model.config)
        self._given = [model.device_batch(batch) for batch in batches]
        self._batches = [batch | {"wanted": self._root(model, batch)} for batch in self._given]

    def _root(self, model: Any, batch: Any) -> jax.Array:
        return rooted(self._kind, predictions_of(self._config, model(batch), batch))

    def _apart(self, model: Any, batch: Any) -> jax.Array:
        own = {name: array for name, array in batch.items() if name != "wanted"}
        return 0.5 * jnp.square(self._root(model, own) - batch["wanted"]).sum() / examples_in(own)

    def of(self, student: Model) -> dict[headjax.HeadId, float]:
        """Return the scores of all heads."""
        program, state = prepare(student, self._apart)
        gates, total = ones(program.sites), dict.fromkeys(heads_of(program.sites), 0.0)
        layers = [(site, layer) for site in program.sites for layer in range(len(site.places))]
        outputs = [np.asarray(matrix_of(student, site, layer), np.float64) for site, layer in layers]
        sizes = added(student, self._given, squares)
        examples = sum(map(examples_in, self._batches))
        effects: list[Any] = [0.0] * len(layers)
        for batch in self._batches:
            slope = weight_slopes(program, state, gates, batch)
            for at, (site, layer) in enumerate(layers):
                by_feature = (np.asarray(matrix_of(slope, site, layer), np.float64) * outputs[at]).sum(axis=1)
                effects[at] += 0.5 * np.square(by_feature) / examples
        for at, (site, layer) in enumerate(layers):
            stack, number = site.places[layer]
            found = sizes[stack][number]
            kept = np.asarray(found["context"]).ravel() / float(found["tokens"]) * np.square(outputs[at]).mean(axis=1)
            own = (effects[at] + REPRESENTATION * kept).reshape(site.heads, -1).mean(axis=1)
            ids = site.head_ids()[layer * site.heads : (layer + 1) * site.heads]
            total |= dict(zip(ids, own.tolist(), strict=True))
        return total


def mask_tuning(model: Model, batches: Sequence[Batch], removed: Order) -> Model:
    """Kwon et al. 2022: one factor for each kept head, by least squares layer by layer, from the second layer on.

    W_O^h becomes s_h W_O^h; factors beyond 10 are not taken, as in the published code.
    """
    reader = BlockReader(model, batches)
    for each in reader.maps(feed_forward=False):
        _without_heads(each, removed)
        if each.places[0][1] == 0:
            continue
        rows, (sums, _) = each.weight(), each.sums()
        more = factors(sums.gram.sum(axis=0), sums.cross.sum(axis=0), rows, len(each.heads))
        if float(np.abs(1.0 + more).max()) <= 10.0:
            change = rows * np.repeat(more, len(rows) // len(more))[:, None]
            each.add(Change(change, np.zeros(rows.shape[1])))
    return reader.repaired()


def factors(gram: np.ndarray, cross: np.ndarray, weight: np.ndarray, heads: int) -> np.ndarray:
    """Return d that minimises sum over tokens |sum_h d_h x_h W_h + c - r|^2, `[heads]`; the constant c is dropped.

    From the sums of x x^T and x r^T with a 1 behind x, as `RefitSums` has them. A head whose W is 0 gets 0.
    """
    size, width = len(weight) // heads, weight.shape[1]
    normal = np.zeros((heads + 1, heads + 1))
    normal[:-1, :-1] = (gram[:-1, :-1] * (weight @ weight.T)).reshape(heads, size, heads, size).sum(axis=(1, 3))
    normal[:-1, -1] = normal[-1, :-1] = (gram[:-1, -1:] * weight).reshape(heads, -1).sum(axis=1)
    normal[-1, -1] = gram[-1, -1] * width
    right = np.append((cross[:-1] * weight).reshape(heads, -1).sum(axis=1), cross[-1].sum())
    found: np.ndarray = np.linalg.lstsq(normal, right, rcond=None)[0][:-1]
    return found


ORDERS: Mapping[str, Callable[[Model, Sequence[Batch], int], Order]] = {
    "gradient_norm": gradient_norm,
    "attribution": attribution,
}
"""Orders beside those of `headjax.heads.orders.ORDERS`; fewer heads are the first of more."""

CHOICES: Mapping[str, Callable[[Model, Sequence[Batch], int], Order]] = {
    "mask_search": mask_search,
    "knowledge": knowledge,
}
"""Choices of a number of heads."""

REPAIRS: Mapping[str, Callable[[Model, Sequence[Batch], Order], Model]] = {
    "reconstruct": lambda model, batches, removed: headjax.reconstruct(model, batches, removed).repaired,
    "feed_forward": lambda model, batches, removed: (
        headjax.reconstruct(model, batches, removed, feed_forward=True).repaired
    ),
    "unridged": lambda model, batches, removed: headjax.reconstruct(model, batches, removed, ridges=UNRIDGED).repaired,
    "mask_tuning": mask_tuning,
}
"""Repairs, the first two headjax's own."""
