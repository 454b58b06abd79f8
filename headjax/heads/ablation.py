"""Measure the effect of removing each head, or of leaving a layer only one, on the loss and on any metric."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.core.serialize import unknown_name
from headjax.core.short import brief
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.head_id import HeadId, all_heads, position
from headjax.heads.prefix import Chunk, record, resume, split_within
from headjax.heads.significance import Comparison, t_test
from headjax.heads.statistics import one_behind
from headjax.mesh.distributed import fetch
from headjax.models.compute import Compute
from headjax.models.config import HEAD_STACKS, Batch, Gates, ModelConfig, Options, Output
from headjax.models.inputs import device_batch
from headjax.models.model import Model

Metric = Callable[[Output, Batch], jax.Array]
"""Function of a model's output and its batch that JAX can trace; one value per example, `[batch]`, higher is better."""

Mode = Literal["each", "all-but-one", "group"]

DEFAULT_BUDGET = 2**30
"""Bytes of device memory for the temporaries of one call."""


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

    def compare(
        self, metric: str = "loss", test: Callable[[np.ndarray, np.ndarray], Comparison] = t_test
    ) -> dict[HeadId, Comparison]:
        """Return by head a paired test of its ablation; losses are means over an example's targets."""
        self._require(metric)
        weights = self.weights[metric]
        baseline = self.baseline[metric] / weights
        rows = self.ablated[metric] / weights[None, :]
        return {head: test(baseline, row) for head, row in zip(self.heads, rows, strict=True)}

    def _require(self, metric: str) -> None:
        if metric not in self.baseline:
            raise HeadjaxError(f"metric: {unknown_name('metric', metric, self.baseline)}")


def ablate(
    model: Model,
    batches: Iterable[Batch],
    mode: Mode = "each",
    *,
    metrics: Mapping[str, Metric] | None = None,
    heads: Iterable[HeadId] | None = None,
    gates: Gates | None = None,
    budget: int = DEFAULT_BUDGET,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Ablation:
    """Remove every head alone (`each`), all heads of a layer but one (`all-but-one`), or a whole group (`group`).

    For every batch the residual stream entering each layer is computed once; an ablation in layer l then recomputes
    only the layers from l on. Ablations of one layer are computed together, as many as fit the budget of temporaries,
    which does not grow with the number of heads; the streams of two batches, `[layers, batch, length, width]` each,
    come on top. Batches of equal shapes compile once; they may be sharded over a mesh, also of several processes.
    Examples without targets are left out.

    Arguments and errors are those of `headjax.sites.functions.ablate`. With `all-but-one` a kept head's gate is 1,
    whatever `gates` say.
    """
    require_mode(mode)
    config = model.config
    chosen = all_heads(config) if heads is None else tuple(heads)
    measures = tuple((metrics or {}).items())
    at = head_gates.filled(config, gates)
    rows = {head: _row(config, at, head, mode) for head in chosen}
    baseline: list[Measured] = []
    ablated: dict[HeadId, list[Measured]] = {head: [] for head in chosen}
    found = _batches(model, batches, at, rows, measures, compute, budget)
    for number, (own, by_chunk) in enumerate(one_behind(found), start=1):
        baseline.append(fetch(own))
        for chunk, measured in by_chunk:
            fetched = fetch(measured)
            for i, head in enumerate(chunk.heads):
                ablated[head].append(jax.tree.map(lambda array, i=i: array[i], fetched))
        if progress is not None:
            progress(number, {})
    return collect(mode, chosen, baseline, ablated)


class Measured(NamedTuple):
    """Per-example values, `[batch]` or `[variants, batch]`."""

    values: dict[str, Any]
    targets: Any


Measures = tuple[tuple[str, Metric], ...]


def require_mode(mode: str) -> None:
    """Raise `HeadjaxError` unless there is such a mode of ablation."""
    if mode not in get_args(Mode):
        raise HeadjaxError(f"mode: {unknown_name('mode', str(mode), get_args(Mode))}")


def _row(config: ModelConfig, at: Gates, head: HeadId, mode: Mode) -> np.ndarray:
    """Return the gates `[max_heads]` of the head's layer under its ablation."""
    groups = np.asarray(config.attentions()[head.stack][head.layer].groups)
    return ablated_row(at[head.stack][head.layer], position(config, head), groups, mode)


def ablated_row(gates: Any, column: int, groups: np.ndarray, mode: Mode) -> np.ndarray:
    """Return the gates of a layer under the ablation of a head."""
    row = np.array(gates, np.float32)
    if mode == "all-but-one":
        return np.eye(len(row), dtype=np.float32)[column]
    row[np.flatnonzero(groups == groups[column]) if mode == "group" else column] = 0.0
    return row


def _batches(
    model: Model,
    batches: Iterable[Batch],
    at: Gates,
    rows: Mapping[HeadId, np.ndarray],
    measures: Measures,
    compute: Compute,
    budget: int,
) -> Iterator[tuple[Measured, list[tuple[Chunk, Measured]]]]:
    """Yield for every batch the model's own values and those of every chunk of ablations, still being computed."""
    config = model.config.for_evaluation()
    for batch in batches:
        arrays = device_batch(config, batch)
        own, streams = _whole(config, model.params, arrays, at, measures, compute)
        results = []
        arguments = (model.params, arrays, at, streams, jnp.int32(0))
        for chunks, program in _compiled_sweeps(config, rows, measures, compute, budget, arguments):
            for chunk in chunks:
                gates = jnp.asarray(np.stack([rows[head] for head in chunk.padded]))
                results.append((chunk, program(*arguments[:-1], jnp.int32(chunk.layer), gates)))
        yield own, results


class Programs(NamedTuple):
    """Compiled programs of a sweep over all heads (`jax.stages.Compiled`), which report their memory.

    Attributes:
        whole: computes the model's own values, and records the stream that enters each layer.
        sweeps: by head stack, the chunks of heads that are ablated together, and the program that all of them share.
    """

    whole: Any
    sweeps: list[tuple[list[Chunk], Any]]


def programs(model: Model, batch: Batch, *, budget: int = DEFAULT_BUDGET, compute: Compute = Compute()) -> Programs:
    """Compile the programs of `ablate` for a batch of these shapes."""
    config, at = model.config.for_evaluation(), head_gates.ones(model.config)
    arrays = device_batch(config, batch)
    whole = _whole.lower(config, model.params, arrays, at, (), compute)
    streams = jax.tree.map(lambda made: jax.ShapeDtypeStruct(made.shape, made.dtype), whole.out_info[1])
    arguments = (model.params, arrays, at, streams, jnp.int32(0))
    sweeps = _compiled_sweeps(config, all_heads(config), (), compute, budget, arguments)
    return Programs(whole.compile(), list(sweeps))


def _compiled_sweeps(
    config: ModelConfig,
    heads: Iterable[HeadId],
    measures: Measures,
    compute: Compute,
    budget: int,
    arguments: tuple[Any, ...],
) -> Iterator[tuple[list[Chunk], Any]]:
    """Yield for every head stack the chunks of its heads and `_suffix` compiled for them."""
    by_stack: dict[str, list[HeadId]] = {}
    for head in heads:
        by_stack.setdefault(head.stack, []).append(head)
    for stack, own in by_stack.items():
        yield _compiled_within(budget, own, (config, stack, measures, compute), arguments)


def _compiled_within(
    budget: int, heads: Sequence[HeadId], static: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[list[Chunk], Any]:
    """Return the chunks of a sweep over `heads` that fit the budget, and `_suffix` compiled for them."""
    columns = arguments[2][heads[0].stack].shape[1]

    def compiled(size: int) -> Any:
        rows = jax.ShapeDtypeStruct((size, columns), jnp.float32)
        leaves, structure = jax.tree.flatten((*map(_abstract, arguments), rows))
        return _compile_suffix(static, tuple(leaves), structure)

    # On a CPU a few ablations together already keep the cores busy, and more only fall out of the caches: 12 layers of
    # 12 heads (width 384, 8 x 64 tokens) took 0.15 s of one core an ablation by 12, 0.12 s by 2 to 4.
    limit = 4 if jax.default_backend() == "cpu" else len(heads)
    return split_within(heads, limit, budget, compiled)


@functools.lru_cache(maxsize=64)
def _compile_suffix(static: tuple[Any, ...], leaves: tuple[jax.ShapeDtypeStruct, ...], structure: Any) -> Any:
    return _suffix.lower(*static, *jax.tree.unflatten(structure, leaves)).compile()


def _abstract(tree: Any) -> Any:
    def shape(array: Any) -> jax.ShapeDtypeStruct:
        if isinstance(array, jax.ShapeDtypeStruct):
            return array
        array = jnp.asarray(array)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding if array.committed else None)

    return jax.tree.map(shape, tree)


@functools.partial(jax.jit, static_argnames=("config", "measures", "compute"))
def _whole(
    config: ModelConfig, params: Params, batch: Any, gates: Any, measures: Measures, compute: Compute
) -> tuple[Measured, Any]:
    output, streams = record(config, params, batch, Options(gates=gates, compute=compute))
    return _measure(config, output, batch, measures), streams


@functools.partial(jax.jit, static_argnames=("config", "head_stack", "measures", "compute"))
def _suffix(
    config: ModelConfig,
    head_stack: str,
    measures: Measures,
    compute: Compute,
    params: Params,
    batch: Any,
    at: Any,
    streams: Any,
    layer: jax.Array,
    rows: jax.Array,
) -> Measured:
    """Return the values with each row of `rows [variants, max_heads]` as a layer's gates, computed from there on."""

    def one(row: jax.Array) -> Measured:
        gates = {**at, head_stack: at[head_stack].at[layer].set(row)}
        options = Options(gates=gates, compute=compute)
        output = resume(config, params, batch, options, streams, HEAD_STACKS[head_stack][0], layer)
        return _measure(config, output, batch, measures)

    return jax.vmap(one)(rows)


def _measure(config: ModelConfig, output: Output, batch: Batch, measures: Measures) -> Measured:
    loss = config.loss(output, batch)
    values = {"loss": loss.total} | {name: metric(output, batch).astype(jnp.float32) for name, metric in measures}
    return Measured(values, loss.weight)


def collect(
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


def best_heads(ablation: Ablation) -> list[HeadId]:
    """Return the head of every layer whose loss is least when it is left alone (Michel et al. 2019, tables 2 and 3)."""
    if ablation.mode != "all-but-one":
        raise HeadjaxError(f"mode: best heads need the ablation all-but-one, got {ablation.mode!r}")
    best: dict[tuple[str, int], HeadId] = {}
    effects = ablation.effects()
    for head in ablation.heads:
        current = best.setdefault((head.stack, head.layer), head)
        if effects[head] < effects[current]:
            best[head.stack, head.layer] = head
    return list(best.values())
