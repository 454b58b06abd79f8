"""How many tokens a query attends to at once: by one head, by a layer's heads jointly, by a group of layers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import require
from headjax.core.tensors import Params
from headjax.heads.statistics import counted_queries, probabilities
from headjax.heads.sums import sum_over
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.layer import Probe
from headjax.models.model import Model


class AttendedTokens(NamedTuple):
    """Effective numbers of attended tokens of one head stack: exp of an entropy, 1 for one key, n for n keys evenly.

    Attributes:
        single: `[layers]` exp(H(p_h)), the mean over heads and queries.
        joint: `[groups]` exp(H(mean of p_h over the heads of a group of consecutive layers)), the mean over queries.
    """

    single: np.ndarray
    joint: np.ndarray


def attended_tokens(
    model: Model,
    batches: Iterable[Batch],
    *,
    group: int = 1,
    compute: Compute = Compute(attention="einsum"),
) -> Mapping[str, AttendedTokens]:
    """By head stack, how many tokens a query attends to, effectively.

    "Jointly attending to multiple positions" is what several heads are said to be for (Liu et al. 2021); the layers of
    one head each that such a layer was taken apart into do it together if their joint number is as large. Padding
    queries are left out.

    Args:
        model: the model.
        batches: examples; labels are not needed.
        group: how many consecutive layers count as one: 1 for multi-head layers, the former number of heads for
            layers that were taken apart.
        compute: how to compute, with an implementation that holds probabilities.

    Raises:
        ConfigError: groups that do not divide the layers, or a layer without heads.
        DataError: there are no batches.
        KernelError: the implementation holds no probabilities.
    """
    for stack, layers in model.config.attentions().items():
        divides = group >= 1 and len(layers) % group == 0
        require(divides, "group", f"{group} layers at a time do not divide the {len(layers)} of stack {stack}")
        for number, attention in enumerate(layers):
            require(attention.num_heads > 0, f"{stack}/{number}", "the layer has no heads")
    arrays = (device_batch(model.config, batch) for batch in batches)
    total = sum_over(_sums(model.config, model.params, batch, group, compute) for batch in arrays)
    return {
        stack: AttendedTokens(single / queries, joint / queries) for stack, (single, joint, queries) in total.items()
    }


class _Attended(NamedTuple):
    single: jax.Array  # [] summed over queries
    mean: jax.Array  # [batch, query, key] the heads' mean probabilities
    counted: jax.Array  # [batch, query]


@functools.partial(jax.jit, static_argnames=("config", "group", "compute"))
def _sums(config: ModelConfig, params: Params, batch: Any, group: int, compute: Compute) -> Any:
    """By head stack: `[layers]` and `[groups]` sums over queries, and the number of queries."""
    output = config.apply(params, batch, Options(probe=_attended, compute=compute))
    sums = {}
    for stack, layers in output.require_probes().items():
        means = [sum(layer.mean for layer in layers[i : i + group]) / group for i in range(0, len(layers), group)]
        counted = layers[0].counted
        joint = jnp.stack([jnp.sum(_effective(mean) * counted) for mean in means])
        sums[stack] = (jnp.stack([layer.single for layer in layers]), joint, counted.sum())
    return sums


def _attended(probe: Probe) -> _Attended:
    weights, counted = probabilities(probe), counted_queries(probe)
    single = jnp.sum(_effective(weights).mean(axis=1) * counted)
    return _Attended(single, weights.mean(axis=1), counted)


def _effective(weights: jax.Array) -> jax.Array:
    """The exponential of the entropy over keys: `[..., key]` to `[...]`."""
    return jnp.exp(jax.scipy.special.entr(weights).sum(axis=-1))
