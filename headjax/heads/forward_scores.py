"""Head scores that need a forward pass alone, computed layer by layer: no loss, no gradient, little memory.

One layer's parameters at a time are taken in the type to compute in, and nothing after the last layer is computed. So a
model in bfloat16 needs little more memory than its own. `headjax.heads.scores` has every score, in one program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.core.serialize import unknown_name
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.head_id import HeadId
from headjax.heads.layer_sums import enter_stack, leave_stack
from headjax.heads.scores import NO_TARGET
from headjax.heads.statistics import STATISTICS, query_sums, sum_over
from headjax.mesh.distributed import fetch
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, ModelConfig, Options, head_stack_at
from headjax.models.inputs import device_batch
from headjax.models.layerwise import Place, Stream, place_of, probed_layer
from headjax.models.model import Model

TARGETS = frozenset({"labels", "start_positions"})
"""Names of batch entries by which examples with a target are recognised."""


def forward_scores(
    model: Model,
    batches: Sequence[Batch],
    names: Sequence[str],
    *,
    gates: Gates | None = None,
    compute: Compute = Compute(attention="einsum"),
    progress: Update | None = None,
) -> dict[str, dict[HeadId, float]]:
    """Return scores of every head by name: means over the tokens of the examples, as `score_heads` takes them.

    Padding does not count, and neither do examples without a target. Batches without labels count whole.

    Args:
        model: Model to score.
        batches: Examples: arrays by Hugging Face's names, with or without labels.
        names: Scores of `headjax.heads.statistics.STATISTICS`.
        gates: `[layers, max_heads]` by head stack, heads already removed at 0; None is all ones.
        compute: Precision and kernels; entropy, distance and confidence need a kernel that holds probabilities.
        progress: Called with the number of batches done, where a layer counts as its share of all.

    Raises:
        DataError: There are no examples, or none has a target.
        HeadjaxError: A score is not finite (the message names the head), or it does not exist.
    """
    for name in names:
        if name not in STATISTICS:
            raise HeadjaxError(f"statistics: {unknown_name('statistic', name, STATISTICS)}")
    if not batches:
        raise DataError(f"batches: {NO_TARGET}")
    config, statistics = model.config, tuple(names)
    passing = _Pass(model, [device_batch(config, batch) for batch in batches], gates, statistics, compute)
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    done, layers = 0, sum(len(stack.layers) for stack in config.stacks().values())
    for home, stack in config.stacks().items():
        passing.enter(home)
        for number in range(len(stack.layers)):
            sums = sum_over(passing.layer(number))
            for slot, summed in sums.items():
                found.setdefault(head_stack_at(home, slot), []).append(summed)
            done += 1
            if progress is not None:
                progress(done * len(batches) // layers, {})
        passing.leave()
    return {name: _means(config, name, found) for name in names}


class _Pass:
    """All batches on their way through the layers."""

    def __init__(
        self,
        model: Model,
        batches: list[dict[str, jax.Array]],
        gates: Gates | None,
        statistics: tuple[str, ...],
        compute: Compute,
    ) -> None:
        self._config, self._params, self._batches = model.config, model.params, batches
        self._gates, self._statistics, self._compute = gates, statistics, compute
        self._present = [_present(model.config, model.params, batch) for batch in batches]
        if not any(present.any() for present in fetch(self._present)):
            raise DataError(f"batches: {NO_TARGET}")
        self._memory: list[jax.Array | None] = [None] * len(batches)
        self._streams: list[Stream] = []
        self._name = ""

    def enter(self, name: str) -> None:
        """Go to the first layer of a stack."""
        self._name = name
        pairs = zip(self._batches, self._memory, strict=True)
        enter = functools.partial(enter_stack, self._config, self._params)
        self._streams = [enter(batch, name, self._compute, memory) for batch, memory in pairs]

    def layer(self, number: int) -> Iterator[dict[str, dict[str, jax.Array]]]:
        """Yield each batch's sums by slot and score, `[heads]`, and `queries`; go past the layer."""
        place = place_of(self._config, self._name, number)
        group = self._config.stacks()[self._name].groups[place.group]
        weights = group.one_of(self._params[self._name][group.name], number)
        for i, (batch, present) in enumerate(zip(self._batches, self._present, strict=True)):
            self._streams[i], sums = _layer(
                self._config, self._params, batch, place, number, weights, self._streams[i], present, self._gates,
                self._statistics, self._compute,
            )  # fmt: skip
            yield sums

    def leave(self) -> None:
        """Go past the last layer of the stack; the next one reads its output."""
        leave = functools.partial(leave_stack, self._config, self._params, self._name, self._compute)
        self._memory = list(map(leave, self._streams))


@functools.partial(jax.jit, static_argnames=("config", "place", "statistics", "compute"))
def _layer(
    config: ModelConfig,
    params: Params,
    batch: Any,
    place: Place,
    number: Any,
    weights: Params,
    stream: Stream,
    present: jax.Array,
    gates: Any,
    statistics: tuple[str, ...],
    compute: Compute,
) -> tuple[Stream, dict[str, dict[str, jax.Array]]]:
    options = Options(gates=gates, probe=query_sums([STATISTICS[name] for name in statistics]), compute=compute)
    stream, reports = probed_layer(config, params, batch, place, number, weights, stream, options)
    found = {}
    for slot, (sums, queries) in reports.items():
        scores = {name: present @ each for name, each in zip(statistics, sums, strict=True)}
        found[slot] = scores | {_QUERIES: present @ queries}
    return stream, found


_QUERIES = "queries"


def _present(config: ModelConfig, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    """Return `[batch]`, 1.0 for examples with a target; for all examples of a batch without labels."""
    if TARGETS.isdisjoint(batch):
        return jnp.ones(len(next(iter(batch.values()))))
    return _has_target(config.for_evaluation(), params, batch)


@functools.partial(jax.jit, static_argnames=("config",))
def _has_target(config: ModelConfig, params: Params, batch: Any) -> jax.Array:
    """Return which examples have a target; the compiler drops the parts that the loss alone would need."""
    return (config.loss(config.apply(params, batch, Options()), batch).weight > 0).astype(jnp.float32)


def _means(config: ModelConfig, name: str, found: dict[str, list[dict[str, np.ndarray]]]) -> dict[HeadId, float]:
    """Return a score's means by head.

    Raises:
        HeadjaxError: a mean is not finite.
    """
    arrays = {}
    for stack, layers in found.items():
        widest = max(len(layer[name]) for layer in layers)
        # A source of padding alone has no query, and its sums are 0.
        means = [layer[name] / np.maximum(layer[_QUERIES], 1.0) for layer in layers]
        arrays[stack] = np.stack([np.pad(mean, (0, widest - len(mean))) for mean in means])
    values = head_gates.to_values(config, arrays)
    for head, value in values.items():
        if not np.isfinite(value):
            raise HeadjaxError(f"score: {name} of head {head} is {value}")
    return values
