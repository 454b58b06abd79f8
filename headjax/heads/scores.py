"""Compute every head score in one pass over the data, and bring scores to a common scale."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.core.serialize import unknown_name
from headjax.core.short import brief
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.gates import Values
from headjax.heads.head_id import HeadId
from headjax.heads.statistics import STATISTICS, query_sums, sum_over
from headjax.mesh.mesh import current_mesh
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, Loss, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.layer import Probe, ProbeFunction
from headjax.models.model import Model


class GateGradient(NamedTuple):
    """Result of one forward and backward pass with respect to the gates.

    Attributes:
        loss: Losses of the examples.
        gradient: By head stack, `[layers, batch, query, max_heads]`: dL(x) / dxi_(h,t) for example x and query t, with
            L(x) = `Loss.total`. Its sum over queries is dL(x) / dxi_h.
        probes: By head stack and layer, the probe's result.
    """

    loss: Loss
    gradient: dict[str, jax.Array]
    probes: dict[str, list[Any]]


def gate_gradient(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    gates: Mapping[str, jax.Array],
    probe: ProbeFunction,
    compute: Compute,
) -> GateGradient:
    """Differentiate every example's loss in one gate per head and query; parameters get no gradient.

    Since no example reads another's gates, the gradient of the summed loss holds every example's gradient.
    """

    def summed(gates: dict[str, jax.Array]) -> tuple[jax.Array, tuple[Loss, Any]]:
        output = config.apply(params, batch, Options(gates=gates, probe=probe, compute=compute))
        loss = config.loss(output, batch)
        return loss.total.sum(), (loss, output.probes)

    shapes = query_shapes(config, params, batch, compute)
    per_query = {
        stack: jnp.broadcast_to(array[:, None, None, :], (array.shape[0], *shapes[stack], array.shape[1]))
        for stack, array in gates.items()
    }
    (_, (loss, probes)), gradient = jax.value_and_grad(summed, has_aux=True)(per_query)
    return GateGradient(loss, gradient, probes)


UNROLLED = 24
"""Number of layers up to which scoring on CPUs computes a stack without a scan; compilation time grows with it."""


def own_arrays(config: ModelConfig, params: Params, compute: Compute) -> Params:
    """Return the parameters in the form in which many batches are differentiated fastest: split by layer on CPUs.

    Measured with 6 layers of BERT-base's size and batches of 8 x 128: 8% less time a batch, 13% more to compile.
    """
    stacks = config.stacks()
    layers = sum(len(stack.layers) for stack in stacks.values())
    if jax.default_backend() != "cpu" or not compute.scan or layers > UNROLLED or current_mesh() is not None:
        return params
    return params | {name: stack.by_layer(params[name]) for name, stack in stacks.items()}


def query_shapes(config: ModelConfig, params: Params, batch: Batch, compute: Compute) -> dict[str, tuple[int, int]]:
    """Return (batch, query) of every head stack's attention calls, from shapes alone."""

    def apply(params: Params, batch: Batch) -> Any:
        return config.apply(params, batch, Options(probe=_contexts, compute=compute)).probes

    probes = jax.eval_shape(apply, params, batch)
    return {stack: layers[0].shape[:2] for stack, layers in probes.items()}


def _contexts(probe: Probe) -> jax.Array:
    return probe.attended.context


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
"""Definitions of the scores, and of what describes a head's attention without saying whether the model needs it."""


_SUMMED = ("importance", "importance_token", "fisher")
"""Scores that are sums over examples; others are made of them."""

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
    model: Model,
    batches: Iterable[Batch],
    *,
    gates: Gates | None = None,
    statistics: Sequence[str] = tuple(STATISTICS),
    compute: Compute = Compute(attention="einsum"),
    progress: Update | None = None,
) -> Scores:
    """Score every head by everything in `DESCRIPTIONS`, with one forward and backward pass per batch.

    The loss L(x) of an example is the sum of its targets' negative log-likelihoods, `Loss.total`. Then -L(x) is the
    log-likelihood of the example, as Fisher information needs. A token has the same weight in sequences of any length.
    (A classifier has one target per example, so L is its loss.) Dropout and label smoothing are off. Padding queries do
    not count, and neither do examples without a target (label -100 everywhere), with which a last batch may be filled
    up. Batches may be sharded over a mesh, also of several processes.

    Arguments and errors are those of `headjax.sites.functions.score_heads`. Entropy and distance need an attention
    kernel that holds probabilities. Iterative pruning scores with the gates of removed heads at 0.
    """
    for name in statistics:
        if name not in STATISTICS:
            raise HeadjaxError(f"statistics: {unknown_name('statistic', name, STATISTICS)}")
    started = time.perf_counter()
    at = head_gates.filled(model.config, gates)
    params = own_arrays(model.config, model.params, compute)

    to_values = functools.partial(head_gates.to_values, model.config)

    def check(number: int, fetched: _Sums) -> None:
        require_finite(fetched.heads, to_values, number)
        if progress is not None:
            progress(number + 1, {})

    step = functools.partial(_step, model.config, params, at, statistics, compute)
    total: _Sums = sum_over(map(step, batches), check, NO_TARGET)
    if total.examples == 0:
        raise DataError(f"batches: {NO_TARGET}")
    seconds = time.perf_counter() - started
    values = means(total.heads, total.examples, total.queries, to_values)
    return Scores(values, float(total.loss / total.targets), int(total.examples), seconds)


class _Sums(NamedTuple):
    """Sums over the examples of one batch or of several.

    Attributes:
        loss, targets, examples: Summed loss, numbers of targets and of examples with a target.
        queries: By head stack, number of counted queries of one layer.
        heads: By score and head stack, `[layers, max_heads]`.
    """

    loss: Any
    targets: Any
    examples: Any
    queries: dict[str, Any]
    heads: dict[str, dict[str, Any]]


@functools.partial(jax.jit, static_argnames=("config", "statistics", "compute"))
def batch_sums(
    config: ModelConfig, params: Params, batch: Any, gates: Any, statistics: tuple[str, ...], compute: Compute
) -> _Sums:
    """Return the sums of every score over one batch, see `score_heads`."""
    probe = query_sums([STATISTICS[name] for name in statistics])
    loss, gradient, probes = gate_gradient(config, params, batch, gates, probe, compute)
    present = (loss.weight > 0).astype(jnp.float32)
    heads: dict[str, dict[str, jax.Array]] = {name: {} for name in (*_SUMMED, *statistics)}
    queries = {}
    for stack, by_query in gradient.items():
        by_example = by_query.sum(axis=2)
        heads["importance"][stack] = jnp.abs(by_example).sum(axis=1)
        heads["importance_token"][stack] = jnp.abs(by_query).sum(axis=(1, 2))
        heads["fisher"][stack] = jnp.square(by_example).sum(axis=1)
        queries[stack] = present @ probes[stack][0][1]
        for i, name in enumerate(statistics):
            layers = [present @ sums[i] for sums, _ in probes[stack]]
            width = by_query.shape[-1]
            heads[name][stack] = jnp.stack([jnp.pad(layer, (0, width - layer.shape[0])) for layer in layers])
    return _Sums(loss.total.sum(), loss.weight.sum(), present.sum(), queries, heads)


def _step(
    config: ModelConfig, params: Params, gates: Gates, statistics: Sequence[str], compute: Compute, batch: Batch
) -> _Sums:
    arrays = device_batch(config, batch)
    return batch_sums(config.for_evaluation(), params, arrays, gates, tuple(statistics), compute)


ByPlace = Mapping[str, Any]
"""Arrays of the shape of gates, by head stack, or by the path of a layer."""


def require_finite(sums: Mapping[str, ByPlace], to_values: Callable[[ByPlace], Values], batch: int) -> None:
    """Raise a `HeadjaxError` that names the head if the sum of a score over a batch is not finite."""
    for name, arrays in sums.items():
        if all(np.isfinite(array).all() for array in arrays.values()):
            continue
        for head, value in to_values(arrays).items():
            if not np.isfinite(value):
                raise HeadjaxError(f"score: {name} of head {head} is {value} in batch {batch}, counted from 0")


def means(
    sums: Mapping[str, ByPlace],
    examples: float,
    queries: ByPlace,
    to_values: Callable[[ByPlace], dict[HeadId, float]],
) -> dict[str, dict[HeadId, float]]:
    """Return the scores of their sums over all examples, and those that are made of others."""
    divisors = {"importance": examples, "fisher": 1.0}
    values = {}
    for name, arrays in sums.items():
        # A source of padding alone has no query, and its sums are 0.
        scaled = {s: array / divisors.get(name, np.maximum(queries[s], 1.0)) for s, array in arrays.items()}
        values[name] = to_values(scaled)
    values["importance_layer"] = normalize_layers(values["importance"])
    if "normalized_entropy" in values:
        values["hies"] = hies(values["importance"], values["normalized_entropy"])
    return {name: values[name] for name in DESCRIPTIONS if name in values}


def normalize_layers(values: Values) -> dict[HeadId, float]:
    """Return I_h / (sqrt(sum over the layer's heads of I^2) + 1e-20), by layer and head stack (Molchanov et al. 2017).

    Michel et al. normalise importance in this way before they compare heads of different layers.
    """

    def layer(head: HeadId) -> tuple[str, int]:
        return head.stack, head.layer

    normalized = {}
    for _, group in itertools.groupby(sorted(values, key=layer), key=layer):
        heads = list(group)
        norm = math.sqrt(sum(values[head] ** 2 for head in heads))
        normalized.update({head: values[head] / (norm + 1e-20) for head in heads})
    return {head: normalized[head] for head in values}


def min_max(values: Values) -> dict[HeadId, float]:
    """Return (v - min) / (max - min) over all heads; all 0 where the values are equal."""
    if not values:
        return {}
    low, high = min(values.values()), max(values.values())
    span = high - low
    return {head: (value - low) / span if span > 0.0 else 0.0 for head, value in values.items()}


def hies(importance: Values, entropy: Values, alpha: float = 0.5) -> dict[HeadId, float]:
    """Return the head importance-entropy score (arXiv 2510.13832): alpha * I^ + (1 - alpha) * (1 - E^).

    I^ and E^ are importance and entropy, each min-max normalised over all heads. The authors choose alpha per task on
    held-out data.
    """
    scaled, spread = min_max(importance), min_max(entropy)
    return {head: alpha * scaled[head] + (1.0 - alpha) * (1.0 - spread[head]) for head in importance}
