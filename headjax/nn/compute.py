"""How to compute: types, kernels, recomputation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.modules import LayerGate
from headjax.core.serialize import unknown_name
from headjax.nn.kernels import KERNELS

M = TypeVar("M")


@dataclasses.dataclass(frozen=True)
class Compute(Checked):
    """Options of one forward pass that change neither parameters nor, up to rounding, results.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> model(batch, compute=headjax.Compute(dtype="bfloat16")).hidden.dtype
        dtype(bfloat16)

    Attributes:
        dtype: type of activations and of the parameters as used; normalisations, softmax and losses stay in float32.
        attention: attention implementation, `auto` or a name in `headjax.nn.kernels.KERNELS`.
        remat: activations that the backward pass recomputes: `none`, `dots` for all but matrix products, `full` for all
            but each layer's input.
        scan: whether the layers of a group are scanned (compile time independent of depth) or unrolled (on an H100
            1.3 to 1.4 times as fast a training step).
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
        dtypes = KERNELS[self.attention].dtypes
        takes = " and ".join(dtypes)
        require(self.dtype in dtypes, "attention", f"{self.attention} computes in {takes}, and dtype is {self.dtype}")

    def cast(self, model: M) -> M:
        """Return a model, or parameters, with numbers in the compute type; what is in it already is not copied."""
        gate = lambda x: isinstance(x, LayerGate)  # noqa: E731
        if all(gate(x) or x.dtype == self.type for x in jax.tree.leaves(model, is_leaf=gate)):
            return model
        cast: M = jax.tree.map(lambda x: x if gate(x) else x.astype(self.dtype), model, is_leaf=gate)
        return cast

    @property
    def type(self) -> jnp.dtype:
        """The compute type as a dtype."""
        return jnp.dtype(self.dtype)

    def rematerialised(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return the body of a layer with the recomputation that `remat` names."""
        if self.remat == "none":
            return body
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.remat == "dots" else None
        return jax.checkpoint(body, policy=policy)
