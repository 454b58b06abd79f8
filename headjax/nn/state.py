"""A forward pass: the state that layers pass on, its options, and probes of its attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.modules import LayerGate
from headjax.core.serialize import unknown_name
from headjax.nn.kernels import KERNELS
from headjax.nn.norms import Residual
from headjax.nn.operands import Attended, Mask, fold

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
            1.3 to 1.4 times as fast a training step). `auto` unrolls training steps of up to 48 layers on GPUs and of
            up to 12 on CPUs, and scans everything else: taking stacked weights apart costs inference a copy of them,
            which `Model.unstacked` makes once.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: str = "auto"
    remat: Literal["none", "dots", "full"] = "none"
    scan: Literal["auto", True, False] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention == "auto":
            return
        names = [*KERNELS, "auto"]
        require(self.attention in names, "attention", unknown_name("attention kernel", self.attention, names))
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
        return jnp.dtype(self.dtype)

    def for_training(self, layers: int) -> Compute:
        """Return the options with `scan` decided for the training step of a model with `layers` layers."""
        unrolled = layers <= {"gpu": 48, "cpu": 12}.get(jax.default_backend(), 0)
        return dataclasses.replace(self, scan=not unrolled) if self.scan == "auto" else self

    def rematerialised(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return the body of a layer with the recomputation that `remat` names."""
        if self.remat == "none":
            return body
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.remat == "dots" else None
        return jax.checkpoint(body, policy=policy)


class State(NamedTuple):
    """The residual stream, and the other inputs of the layers of a stack."""

    x: jax.Array  # [batch, length, width], the residual stream
    memory: jax.Array | None = None  # [batch, key, width], output of the stack before, for cross-attention
    bias: jax.Array | None = None  # [1 or batch, heads, query, key], position bias of the self-attention's logits
    batch: Mapping[str, Any] = {}
    mask: Mask | None = None  # which keys each query of the self-attention may see
    positions: jax.Array | None = None  # [batch or 1, length]; None counts from 0
    query_mask: jax.Array | None = None  # [batch, length] bool, False at padding; None without padding
    memory_mask: Mask | None = None  # which keys of the memory each query may see


class Probe(NamedTuple):
    """One attention call as a probe function sees it."""

    slot: str  # attention or cross_attention
    module: Any
    inputs: jax.Array  # [batch, query, width], from which queries are computed
    attended: Attended
    mask: Mask | None  # which keys each query may see
    query_mask: jax.Array | None  # [batch, query] bool, False at padding; None without padding
    memory_inputs: jax.Array | None = None  # [batch, key, width], keys and values of these; None with a cache


ProbeFunction = Callable[[Probe], Any]
"""Reduces one attention call to the statistics wanted; stacked over layers by the model."""


class ResidualStep(NamedTuple):
    """A sub-layer f about to join the residual stream."""

    slot: str  # attention, cross_attention or feed_forward
    residual: Residual
    x: jax.Array  # [batch, length, width], the stream
    read: jax.Array  # the stream that f reads: x, or in a parallel layer what enters the layer
    f: Callable[[jax.Array], jax.Array]  # the sub-layer, dropout included; outputs have the shape of inputs
    mask: jax.Array | None  # [batch, length] bool, False at padding; None without padding


class ForwardOptions(NamedTuple):
    """Options of a forward pass: everything that is neither parameter nor batch.

    Attributes:
        key: PRNG key of dropout; None outside training.
        probe: Called with every attention call.
        compute: Type, kernels and recomputation.
        join: Replaces the residual connections.
    """

    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    compute: Compute = Compute()
    join: Callable[[ResidualStep], jax.Array] | None = None

    def of_stack(self, number: int) -> ForwardOptions:
        """Return the options of a model's stack, by its number from 0, whose dropout has a key of its own."""
        return self._replace(key=fold(self.key, 1 + 2 * number))
