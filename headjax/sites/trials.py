"""Ablation and learned gates for any Flax model: one compiled function of the gates serves every head and step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.heads.ablation import Ablation, Measured, Mode, ablated_row, collect, require_mode
from headjax.heads.head_id import HeadId
from headjax.heads.learned_gates import GateDistribution, LearnedGates, closed, descend
from headjax.heads.statistics import one_behind
from headjax.mesh.distributed import fetch
from headjax.sites.missed import checked
from headjax.sites.program import Applied, Loss, Program, arrays_of, prepare
from headjax.sites.site import AttentionSite, Gates, filled, find_heads, require_heads, to_values

Metrics = tuple[tuple[str, Loss], ...]


def ablate_module(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    mode: Mode,
    loss: Loss | None,
    *,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    heads: Iterable[HeadId | str] | None = None,
    gates: Mapping[str, Any] | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Ablation:
    """Remove heads of a model that is not headjax's, see `headjax.sites.functions.ablate`."""
    require_mode(mode)
    program, state = prepare(model, loss)
    known = find_heads(program.sites)
    chosen = tuple(known) if heads is None else require_heads(program.sites, heads)
    at = filled(program.sites, gates)
    variants = {head: at | _changed(*known[head], at, mode) for head in chosen}
    extra: Metrics = tuple((metrics or {}).items())
    baseline: list[Measured] = []
    ablated: dict[HeadId, list[Measured]] = {head: [] for head in chosen}
    for number, batch in enumerate(checked(program, state, batches, strict)):
        baseline.append(_finite(fetch(_measure(program, extra, state, at, batch)), "the model", number))
        for head, measured in one_behind(
            (one, _measure(program, extra, state, variants[one], batch)) for one in chosen
        ):
            ablated[head].append(_finite(fetch(measured), f"the ablation of {head}", number))
        if progress is not None:
            progress(number + 1, {})
    return collect(mode, chosen, baseline, ablated)


def mean_loss(program: Program, state: Any, gates: Gates, batches: Iterable[Any]) -> float:
    """Return the mean loss of all examples at these gates."""
    found = [
        _finite(fetch(_measure(program, (), state, gates, arrays_of(batch))), "the model", number).values["loss"]
        for number, batch in enumerate(batches)
    ]
    if not found:
        raise DataError("batches: there is no example to take the loss of")
    return float(np.concatenate(found).mean(dtype=np.float64))


def _finite(measured: Measured, what: str, batch: int) -> Measured:
    """Return values by example."""
    for name, values in measured.values.items():
        if not np.isfinite(values).all():
            worst = values[~np.isfinite(values)][0]
            raise HeadjaxError(f"{name}: {what} has {worst} in batch {batch}, counted from 0")
    return measured


def _changed(site: AttentionSite, index: tuple[int, ...], at: Gates, mode: Mode) -> Gates:
    """Return the gates of a site under the ablation of a head."""
    groups = np.arange(site.heads) // (site.heads // site.kv_heads)
    row = ablated_row(at[site.path][index[:-1]], index[-1], groups, mode)
    return {site.path: jnp.asarray(at[site.path]).at[index[:-1]].set(row)}


@functools.partial(jax.jit, static_argnames=("program", "metrics"))
def _measure(program: Program, metrics: Metrics, state: Any, gates: Gates, batch: Any) -> Measured:
    total, targets = program.losses(state, gates, batch)
    others = {
        name: dataclasses.replace(program, loss=metric).losses(state, gates, batch).total for name, metric in metrics
    }
    return Measured({"loss": total} | others, targets)


def learn_module_gates(
    model: nnx.Module | Applied,
    batches: Sequence[Any],
    distribution: GateDistribution,
    loss: Loss | None,
    *,
    steps: int,
    learning_rate: float,
    seed: int = 0,
    strict: bool = False,
    progress: Update | None = None,
) -> LearnedGates:
    """Learn gates of a model that is not headjax's, see `headjax.sites.functions.learn_gates`."""
    if not batches:
        raise DataError("batches: there is no example to learn gates on")
    program, state = prepare(model, loss)
    distribution.check(len(find_heads(program.sites)))
    logits = {site.path: jnp.full(site.shape, distribution.initial) for site in program.sites}
    arrays = checked(program, state, itertools.cycle(batches), strict)
    objective = _MeanLoss(program)
    logits, losses = descend(objective, distribution, logits, state, arrays, steps, learning_rate, seed, progress)
    gates = distribution.final(logits)
    values, opened = (to_values(program.sites, found) for found in (logits, gates))
    return LearnedGates(gates, closed(values, opened), values, losses)


@dataclasses.dataclass(frozen=True)
class _MeanLoss:
    """Mean loss of the examples."""

    program: Program

    def __call__(self, state: Any, batch: Any, gates: Gates) -> jax.Array:
        total, targets = self.program.losses(state, gates, batch)
        return total.sum() / jnp.maximum(targets.sum(), 1.0)
