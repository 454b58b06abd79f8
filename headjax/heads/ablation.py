"""Ablation of the heads of any model: block by block where the model offers the walk, else by whole passes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.numbers import brief
from headjax.core.progress import Update
from headjax.core.timing import one_behind
from headjax.heads.agreement import in_parts
from headjax.heads.discovery import sites_within
from headjax.heads.head_id import HeadId
from headjax.heads.loss_checks import checked
from headjax.heads.program import (
    Applied,
    Loss,
    Losses,
    Measured,
    ModuleProgram,
    Program,
    compiled,
    measure,
    prepare,
    require_finite,
)
from headjax.heads.seam import calls_in, subclass
from headjax.heads.site import Gates, Sites, at_path, filled, find_heads, ones, require_heads
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import explicit_mesh
from headjax.models.walk import marked, shared
from headjax.nn.block import Compute

Mode = Literal["each", "all-but-one", "group"]


class Ablation(NamedTuple):
    """Effects of removing heads, example by example.

    Attributes:
        mode: `each` if the head was removed, `all-but-one` if all others of its layer were, `group` if all heads that
            read its KV head were.
        heads: Ablated heads, by stack, layer and position.
        baseline: By metric, `[examples]` values of the model itself; `loss` is the summed loss of an example, nats.
        ablated: By metric, `[heads, examples]` values with the ablation of each head.
        weights: By metric, `[examples]` weights in the mean: an example's number of targets for `loss`, else 1.
    """

    mode: Mode
    heads: tuple[HeadId, ...]
    baseline: dict[str, np.ndarray]
    ablated: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return brief(self)

    def mean(self, metric: str = "loss") -> float:
        """Return the metric of the model itself; the loss is per target."""
        self._require(metric)
        return float(self.baseline[metric].sum() / self.weights[metric].sum())

    def effects(self, metric: str = "loss") -> dict[HeadId, float]:
        """Return by head the metric with its ablation minus the metric of the model itself."""
        self._require(metric)
        change = (self.ablated[metric] - self.baseline[metric][None, :]).sum(axis=1) / self.weights[metric].sum()
        return dict(zip(self.heads, change.tolist(), strict=True))

    def _require(self, metric: str) -> None:
        if metric not in self.baseline:
            raise HeadjaxError(f"metric: {unknown_name('metric', metric, self.baseline)}")


def ablate(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    mode: Mode = "each",
    *,
    loss: Loss | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    heads: Iterable[HeadId | str] | None = None,
    gates: Mapping[str, Any] | None = None,
    compute: Compute | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Ablation:
    """Remove every head alone (`each`), all heads of a layer but one (`all-but-one`), or a whole group (`group`).

    The first two are sections 3.2 and 3.3 of Michel et al. (2019). Where the model offers the walk
    (`headjax.models.walk`), as headjax's models do, an ablation is computed from its own block on, and several of one
    block together. Any other model runs whole for every head; one compilation serves all of them.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> found = headjax.ablate(model, batches, heads=["decoder/0/0", "decoder/0/1"])
        >>> found.ablated["loss"].shape  # [heads, examples]
        (2, 2)

    Args:
        model, batches, loss, gates, compute, strict: As for `score_heads`. On the walk a loss calls the model once.
        mode: Heads to remove: the head itself, all others of its layer (whose gate is then 1, whatever `gates` say), or
            all that read its KV head.
        metrics: Metrics besides the loss: functions of the model and a batch that return one value per example.
        heads: Heads to ablate; None is all.
        progress: Called after every batch with the number of batches done.

    Raises:
        DataError: No example has a target.
        HeadjaxError: A head or the mode does not exist, a value is not finite, or as for `score_heads`.
    """
    if mode not in get_args(Mode):
        raise HeadjaxError(f"mode: {unknown_name('mode', str(mode), get_args(Mode))}")
    program, state = prepare(model, loss, compute)
    large = program.fixed  # a model's own loss, over a vocabulary that may be a large one
    program = dataclasses.replace(program, metrics=tuple((metrics or {}).items()), fixed=large and not metrics)
    at = filled(program.sites, gates)
    chosen = require_heads(program.sites, find_heads(program.sites) if heads is None else heads)
    variants, walk = _variants(program.sites, at, chosen, mode), _walk_of(model, program, state)
    baseline, ablated = list[Measured](), {head: list[Measured]() for head in chosen}
    for number, batch in enumerate(checked(program, state, batches, strict)):
        for part in in_parts(cast(Any, model), [batch]) if large else [batch]:
            values = require_finite(fetch(measure(program, state, at, part)), "the model", number)
            states = walk.states(at, part) if walk else []
            if walk and not baseline and not walk.agrees(values, states[-1], part):
                walk = None
            baseline.append(values)
            passes = walk.ablations(states, at, variants, part) if walk else _passes(program, state, at, variants, part)
            for head, measured in one_behind(passes):
                ablated[head].append(require_finite(fetch(measured), f"the ablation of {head}", number))
        if progress is not None:
            progress(number + 1, {})
    return _collected(mode, chosen, baseline, ablated)


def _collected(
    mode: Mode, heads: tuple[HeadId, ...], baseline: list[Measured], ablated: Mapping[HeadId, list[Measured]]
) -> Ablation:
    """Join the values of all batches and drop examples without targets."""
    targets = np.concatenate([measured.targets for measured in baseline]) if baseline else np.zeros(0)
    present = targets > 0
    if not present.any():
        raise DataError("batches: there is no example with a target to ablate heads on")

    def joined(measured: list[Measured], name: str) -> np.ndarray:
        return np.concatenate([batch.values[name] for batch in measured]).astype(np.float64)[present]

    names = list(baseline[0].values)
    return Ablation(
        mode,
        heads,
        baseline={name: joined(baseline, name) for name in names},
        ablated={
            name: np.array([joined(ablated[head], name) for head in heads]).reshape(len(heads), present.sum())
            for name in names
        },
        weights={name: (targets if name == "loss" else np.ones_like(targets))[present] for name in names},
    )


_Place = tuple[str, tuple[int, ...]]
"""Path of a site, and the index of a layer in its gates."""

_Variants = dict[_Place, dict[HeadId, np.ndarray]]
"""Gates of a layer with the ablation of each head, `[heads]`."""


def _variants(sites: Sites, at: Gates, heads: Iterable[HeadId], mode: Mode) -> _Variants:
    indices, variants = find_heads(sites), _Variants()
    for head in heads:
        site, (*layer, column) = indices[head]
        gates = np.array(at[site.path][tuple(layer)], np.float32)
        if mode == "all-but-one":
            gates = np.eye(len(gates), dtype=np.float32)[column]
        else:
            gates[site.groups == site.groups[column] if mode == "group" else column] = 0.0
        variants.setdefault((site.path, tuple(layer)), {})[head] = gates
    return variants


def _passes(
    program: Program, state: Any, at: Gates, variants: _Variants, batch: Any
) -> Iterator[tuple[HeadId, Measured]]:
    for (path, layer), gates in variants.items():
        for head, row in gates.items():
            yield head, measure(program, state, at | {path: jnp.asarray(at[path]).at[layer].set(row)}, batch)


class _Block(NamedTuple):
    """A block of a model, split into its program and its arrays."""

    program: ModuleProgram  # its sites are the same for blocks that share programs
    state: Any
    gates: dict[str, _Place]  # of the model's gates, by path of the site in the block

    def at(self, gates: Gates) -> Gates:
        return {path: gates[site][layer] for path, (site, layer) in self.gates.items()}


def _walk_of(model: Any, program: Program, state: Any) -> _AblationWalk | None:
    """Return the walk through a model; None where it offers none, or one without some of its heads."""
    offers = all(callable(getattr(model, name, None)) for name in ("embed", "blocks", "finish"))
    if not offers or not isinstance(program, ModuleProgram) or explicit_mesh(state) is not None:
        return None
    heads, by_path = find_heads(program.sites), {site.path: site for site in program.sites}
    paths = {id(module): ".".join(map(str, path)) for path, module in nnx.iter_modules(model, graph=True)}
    blocks, walked = list[_Block](), 0
    for block in model.blocks():
        places: dict[str, _Place] = {}
        sites = sites_within(block)
        for site in sites:
            # The model's own module is known by its path, one that was taken out of a stacked one by its heads' names.
            path = None if hasattr(block, "named_sites") else paths.get(id(at_path(block, site.path)))
            same = site if path is None else by_path[path]
            model_site, index = heads.get(same.head_ids()[0], (None, ()))
            if model_site is None or site.layers is not None:
                return None
            places[site.path] = (model_site.path, index[:-1])
            walked += site.heads
        plain = tuple(dataclasses.replace(site, ids=None, first=None) for site in sites)
        graph, arrays = nnx.split(block, graph=True)
        alike = (block.program for block in blocks if block.program.sites == plain and block.program.graph == graph)
        block_program = next(alike, None) or ModuleProgram(plain, program.loss, graph, fixed=program.fixed)
        blocks.append(_Block(block_program, arrays, places))
    return _AblationWalk(program, state, blocks) if walked == len(heads) else None


def ablations_at_once(heads: int) -> int:
    """Return the number of ablations of a block with `heads` heads that one program computes."""
    most = 4 if jax.default_backend() == "cpu" else 16  # a few keep the cores busy, more leave the caches
    return -(-heads // -(-heads // most))


@dataclasses.dataclass
class _AblationWalk:
    """Computes ablations of one block after another from the stored states between the blocks."""

    program: ModuleProgram
    state: Any
    blocks: Sequence[_Block]

    def agrees(self, by_pass: Measured, last: Any, batch: Any) -> bool:
        """Return whether the walk gives the values of a whole pass; a loss need not call the model just once."""
        leaves, tree = jax.tree.flatten(last)
        finish = functools.partial(_values, self.program, tree)
        calls = calls_in(jax.make_jaxpr(finish)(self.state, leaves, batch).jaxpr)
        by_walk = fetch(_measure_many(self.program, tree, (False,) * len(leaves), self.state, leaves, batch)).values
        close = functools.partial(np.allclose, rtol=1e-3, atol=1e-4)
        return not calls and all(close(values, by_walk[name]) for name, values in by_pass.values.items())

    def ablations(
        self, states: list[Any], at: Gates, variants: _Variants, batch: Any
    ) -> Iterator[tuple[HeadId, Measured]]:
        size = ablations_at_once(max(map(len, variants.values()), default=1))
        for number, block in enumerate(self.blocks):
            for path, place in block.gates.items():
                gates = variants.get(place, {})
                for start in range(0, len(gates), size):
                    part = list(gates)[start : start + size]
                    padded = part + part[-1:] * (size - len(part))
                    rows = jnp.asarray(np.stack([gates[head] for head in padded]))
                    measured = self._from(number, block.at(at) | {path: rows}, path, states, at, batch)
                    yield from ((head, jax.tree.map(lambda x, i=i: x[i], measured)) for i, head in enumerate(part))

    def states(self, at: Gates, batch: Any) -> list[Any]:
        """Return the states before every block and after the last one; unchanged arrays are shared."""
        states = [_embed(self.program, self.state, batch)]
        for block in self.blocks:
            states.append(shared(states[-1], _step(block.program, block.state, block.at(at), states[-1])))
        return states

    def _from(self, number: int, row_gates: Gates, path: str, states: list[Any], at: Gates, batch: Any) -> Measured:
        """Return the values with `row_gates` in block `number`, many for the site at `path`, computed from there on."""
        leaves, ablated = jax.tree.leaves(states[number]), path
        many = (False,) * len(leaves)
        for block, before, after in zip(self.blocks[number:], states[number:-1], states[number + 1 :], strict=True):
            many_before = dict(zip(map(id, jax.tree.leaves(before)), many, strict=True))
            following, tree = jax.tree.leaves(after), jax.tree.structure(before)
            differs = tuple(many_before.get(id(leaf), True) for leaf in following)
            gates = row_gates if ablated else block.at(at)
            fresh = iter(_steps(block.program, tree, ablated, many, differs, block.state, gates, leaves))
            leaves = [next(fresh) if different else leaf for leaf, different in zip(following, differs, strict=True)]
            many, ablated = differs, ""
        return _measure_many(self.program, jax.tree.structure(states[-1]), many, self.state, leaves, batch)


def _options(program: ModuleProgram) -> dict[str, Any]:
    """Return the options of `embed`, of blocks and of `finish`: the `compute` of the model's own loss."""
    compute = getattr(program.loss, "compute", None)
    return {} if compute is None else {"compute": compute}


@compiled()
def _embed(program: ModuleProgram, state: Any, batch: Any) -> Any:
    model: Any = program.gated(state, ones(program.sites))
    return model.embed(batch, **_options(program))


def _stepped(program: ModuleProgram, state: Any, gates: Gates, entering: Any) -> Any:
    block: Any = program.gated(state, gates)
    return block(entering, **_options(program))


@compiled()
def _step(program: ModuleProgram, state: Any, gates: Gates, entering: Any) -> Any:
    return marked(entering, _stepped(program, state, gates, entering))


@compiled("tree", "ablated", "many", "differs")
def _steps(
    program: ModuleProgram,
    tree: Any,
    ablated: str,
    many: tuple[bool, ...],
    differs: tuple[bool, ...],
    state: Any,
    gates: Gates,
    leaves: list[Any],
) -> list[Any]:
    """Return the arrays after a block that differ between ablations of the site at `ablated`, as `many` before do."""

    def ablation(leaves: list[Any], gates: Gates) -> list[Any]:
        leaves_after = jax.tree.leaves(_stepped(program, state, gates, jax.tree.unflatten(tree, leaves)))
        return [leaf for leaf, different in zip(leaves_after, differs, strict=True) if different]

    axes = [0 if different else None for different in many], {path: 0 if path == ablated else None for path in gates}
    return jax.vmap(ablation, in_axes=axes)(leaves, gates)


def _values(program: ModuleProgram, tree: Any, state: Any, leaves: list[Any], batch: Any) -> Measured:
    """Return the values of a batch from the state after the last block."""
    model: Any = program.gated(state, ones(program.sites))
    output = model.finish(jax.tree.unflatten(tree, leaves), **_options(program))
    kind: Any = type(model)
    model.__class__ = _finished_class(kind)
    model.head_output = nnx.data(output)
    total, targets = Losses.of(program.loss(model, batch))
    others = {name: Losses.of(metric(model, batch)).total for name, metric in program.metrics}
    return Measured({"loss": total} | others, targets)


@compiled("tree", "many")
def _measure_many(
    program: ModuleProgram, tree: Any, many: tuple[bool, ...], state: Any, leaves: list[Any], batch: Any
) -> Measured:
    values = functools.partial(_values, program, tree)
    if not any(many):
        return values(state, leaves, batch)
    axes = None, [0 if different else None for different in many], None
    return jax.vmap(values, in_axes=axes)(state, leaves, batch)


@functools.cache
def _finished_class(cls: Any) -> Any:
    """Return the subclass of a model's class whose call returns `head_output`."""
    return subclass(cls, {"__call__": lambda self, *args, **kwargs: self.head_output})
