"""What an initialisation is: the architecture it needs, the weights it draws, and what it measures on data."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from headjax.core.fields import Checked
from headjax.core.tensors import Params
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig


class Setting(NamedTuple):
    """What a measurement runs under.

    Attributes:
        batches: training batches, as arrays on the mesh.
        key: PRNG key of dropout.
        mesh: the devices.
        compute: how to compute.
    """

    batches: Sequence[Batch]
    key: jax.Array
    mesh: Mesh
    compute: Compute = Compute()


class Initialization(Checked, abc.ABC):
    """How a fresh model starts. What a kind does not say stays as it is without one."""

    @property
    def num_batches(self) -> int:
        """Training batches that `measure` needs."""
        return 0

    @abc.abstractmethod
    def configure(self, config: ModelConfig) -> ModelConfig:
        """The architecture to train.

        Raises:
            ConfigError: this initialisation is none for the architecture; the message names the field.
        """

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        """Fresh parameters of the configured architecture; may be traced."""
        return config.initialize(key)

    def measure(self, config: ModelConfig, params: Params, setting: Setting) -> tuple[Params, Mapping[str, Any]]:
        """The parameters adjusted to data, and what the model's history says of it.

        Raises:
            DataError: the batches hold nothing to measure.
        """
        return params, {}
