"""Put head-wise output gates around any layer, at first without effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.attention import Attention, Gated, NoHeads
from headjax.conversion.target import Converted, Site, Target
from headjax.core.errors import require
from headjax.core.tensors import Constant


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToGated(Target):
    """Every head gets a gate sigma(x w_h + b), which training can then learn (Qiu et al. 2025).

    w is zero, so every gate is sigma(b) for all inputs, and W_O is divided by sigma(b): the function stays the same.
    The default b is small enough for the gate's gradient not to vanish.

    Attributes:
        bias: b; gates start at sigma(b) = 0.982 and can open up to 1 or close down to 0.
    """

    name: ClassVar[str] = "gated"
    of_multi_head: ClassVar[bool] = False

    bias: float = 4.0

    def check(self, attention: Attention, width: int, memory_width: int) -> None:
        require(not isinstance(attention, Gated), "attention", "is gated already")

    def convert(self, sites: Sequence[Site], seed: int) -> list[Converted]:
        return [self._layer(site) for site in sites]

    def _layer(self, site: Site) -> Converted:
        if isinstance(site.attention, NoHeads):
            return Converted(site.attention, site.params)
        heads = site.attention.num_heads
        output = site.params["output"] / jax.nn.sigmoid(self.bias)
        return Converted(
            Gated(inner=site.attention, bias_init=Constant(self.bias)),
            {
                "inner": site.params | {"output": output},
                "gate": jnp.zeros((output.shape[-1], heads)),
                "gate_bias": jnp.full((heads,), self.bias),
            },
        )
