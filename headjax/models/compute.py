"""How to compute a forward, as opposed to what: nothing here changes parameters or, up to rounding, results."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from headjax.attention.kernels import KERNELS
from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.serialize import unknown_name
from headjax.core.tensors import Params


@dataclasses.dataclass(frozen=True)
class Compute(Checked):
    """Options of one forward.

    Attributes:
        dtype: type of activations and of the parameters as used; normalisations, softmax and losses stay in float32.
        attention: attention implementation, `auto` or a name in `headjax.attention.kernels.KERNELS`.
        remat: what the backward pass recomputes: `none` keeps all activations, `dots` recomputes all but matrix
            products, `full` keeps only each layer's input.
        scan: whether layers of a run are scanned (compile time independent of depth) or unrolled.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: str = "auto"
    remat: Literal["none", "dots", "full"] = "none"
    scan: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention == "auto":
            return
        known = [*KERNELS, "auto"]
        require(self.attention in known, "attention", unknown_name("attention kernel", self.attention, known))
        dtypes = KERNELS[self.attention].can.dtypes
        takes = " and ".join(dtypes)
        require(self.dtype in dtypes, "attention", f"{self.attention} computes in {takes}, and dtype is {self.dtype}")

    def cast(self, params: Params) -> Params:
        """The parameters in the compute type."""
        return jax.tree.map(lambda array: array.astype(self.dtype), params)

    @property
    def type(self) -> jnp.dtype:
        """The compute type as a dtype."""
        return jnp.dtype(self.dtype)
