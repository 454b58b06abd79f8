"""The jitted forward pass of a model."""

from __future__ import annotations

import functools
from typing import Any

import jax

from headjax.core.errors import DataError
from headjax.core.tensors import Params
from headjax.models.base import Batch, Gates, ModelConfig, Options, Output
from headjax.models.compute import Compute
from headjax.models.inputs import device_batch
from headjax.models.layer import Probe, ProbeFunction


def forward(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    gates: Gates | None = None,
    *,
    attention: bool = False,
    probe: ProbeFunction | None = None,
    compute: Compute = Compute(),
) -> Output:
    """The forward pass outside training, jitted once per (config, shapes, probe, compute).

    Args:
        config, params: the model.
        batch: arrays by Hugging Face's names, NumPy or JAX.
        gates: head gates; any values reuse one compilation.
        attention: whether to return attention probabilities.
        probe: statistics to take from each attention call.
        compute: how to compute.
    """
    if attention and probe is not None:
        raise DataError("attention: ask for attention probabilities or for a probe, not for both")
    arrays = device_batch(config, batch)
    output = _forward(config, params, arrays, gates, probabilities if attention else probe, compute)
    return output._replace(attention=output.probes, probes=None) if attention else output


def probabilities(probe: Probe) -> jax.Array | None:
    """The probe that returns a layer's attention probabilities `[batch, heads, query, key]`."""
    return probe.attended.probabilities


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def _forward(
    config: ModelConfig, params: Params, batch: Any, gates: Any, probe: ProbeFunction | None, compute: Compute
) -> Output:
    return config.apply(params, batch, Options(gates=gates, probe=probe, compute=compute))
