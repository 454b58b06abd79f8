"""A Transformer layer: the state and the options of a forward pass, and a layer's sub-layers, joined by residuals."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, unknown_name
from headjax.core.kind import Kind
from headjax.core.modules import LayerGate
from headjax.mesh.mesh import by_example
from headjax.nn.attend import KERNELS, AttentionOptions, run_attention
from headjax.nn.flops import product_flops
from headjax.nn.norms import LayerNorm, Norm, Residual, ResidualKind
from headjax.nn.operands import Attended, AttentionCache, Dropout, KeyValues, Mask, fold
from headjax.nn.projections import ActivationName, FeedForward

M = TypeVar("M")

CACHE = "cache"
"""Key under which a decoding layer reports the keys and values of its self-attention, beside the probe's results."""


@dataclasses.dataclass(frozen=True)
class Compute(Checked):
    """Options of one forward pass that change neither parameters nor, up to rounding, results.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> model(batch, compute=headjax.Compute(dtype="bfloat16")).hidden.dtype
        dtype(bfloat16)

    Attributes:
        dtype: type of activations and of the parameters as used; normalisations, softmax and losses stay in float32.
        attention: attention implementation, `auto` or a name in `headjax.nn.attend.KERNELS`.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The sizes and options of one layer; those without a comment are explained by its family's config."""

    width: int
    attention: Kind
    hidden: int
    cross_attention: Kind | None = None
    activation: ActivationName = "gelu"
    gated: bool = False
    feed_forward_bias: bool = True
    residual: ResidualKind = "post_norm"
    norm: Norm = LayerNorm()
    alpha: float = 1.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    stochastic_depth: float = 0.0
    attention_softcap: float | None = None
    window: int | None = None  # self-attention sees only keys at a distance below this, before and after
    attention_norm: bool = True  # whether `norm` stands before self-attention too, where it does before sub-layers
    depth: int = 1  # number of layers of the stack

    @functools.cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the sub-layers in the order of computation."""
        crossed = () if self.cross_attention is None else ("cross_attention",)
        return ("attention", *crossed, "feed_forward")

    @property
    def residual_slots(self) -> tuple[str, ...]:
        """Keys of the residual connections among the parameters, in the order of computation."""
        return tuple(f"{slot}_residual" for slot in self.slots)

    def make_feed_forward(self) -> FeedForward:
        return FeedForward(self.width, self.hidden, self.activation, gated=self.gated, bias=self.feed_forward_bias)

    def feed_forward_flops(self, length: int) -> int:
        return _feed_forward_flops(self.width, self.hidden, self.gated, length)

    def flops(self, length: int) -> int:
        """Count the floating-point operations for one sequence, and one as long that cross-attention reads."""
        kinds = [kind for kind in (self.attention, self.cross_attention) if kind is not None]
        heads: int = sum(kind.module(self.width, self.width).flops(length, length) for kind in kinds)
        return heads + self.feed_forward_flops(length)

    def structure(self) -> LayerConfig:
        """Return the layer without its heads' original numbers; layers of equal structure form one group."""
        crossed = None if self.cross_attention is None else self.cross_attention.structure()
        return dataclasses.replace(self, attention=self.attention.structure(), cross_attention=crossed)


@functools.lru_cache(maxsize=1024)
def _feed_forward_flops(width: int, hidden: int, gated: bool, length: int) -> int:
    module, x = FeedForward(width, hidden, gated=gated), jax.ShapeDtypeStruct((1, length, width), jnp.float32)
    return product_flops(lambda module, x: module(x), module, x)


class Block(nnx.Module):
    """A Transformer layer: its sub-layers, and the residual connection of each, `attention_residual` and so on."""

    def __init__(self, config: LayerConfig) -> None:
        self.config, self.slots, width = config, config.slots, config.width
        self.attention = config.attention.module(width, width)
        self.attention_residual = self._residual(normed=config.attention_norm)
        if config.cross_attention is not None:
            self.cross_attention = config.cross_attention.module(width, width)
            self.cross_attention_residual = self._residual()
        self.feed_forward = config.make_feed_forward()
        self.feed_forward_residual = self._residual()

    def _residual(self, normed: bool = True) -> Residual:
        config = self.config
        return Residual(config.residual, config.norm if normed else None, config.width, config.alpha)

    def __call__(
        self,
        state: State,
        options: ForwardOptions = ForwardOptions(),
        number: jax.Array | int = 0,
        columns: jax.Array | None = None,
        cache: Mapping[str, AttentionCache | KeyValues] | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Return the layer's output `[batch, length, width]` and its reports.

        The number is that in its stack, the `columns [heads]` are its heads' places in the position bias. The cache
        holds, by slot, an `AttentionCache`, or the keys and values of a memory that never changes.
        """
        options, reports = options._replace(key=fold(options.key, number)), dict[str, Any]()
        if columns is not None and state.bias is not None:
            state = state._replace(bias=jnp.take(state.bias, columns, axis=1))
        entered = x = by_example(state.x)
        for slot in self.slots:
            read = entered if self.config.residual == "parallel_norm" else x
            f = functools.partial(self.sub_layer, slot, state, options, number, cache or {}, reports)
            residual = getattr(self, f"{slot}_residual")
            if options.join is None:
                x = residual.join(x, f(residual.enter(read)))
            else:
                x = options.join(ResidualStep(slot, residual, x, read, f, state.query_mask))
        return by_example(x), reports

    def sub_layer(
        self,
        slot: str,
        state: State,
        options: ForwardOptions,
        number: jax.Array | int,
        cache: Mapping[str, AttentionCache | KeyValues],
        reports: dict[str, Any],
        inputs: jax.Array,
    ) -> jax.Array:
        """Return the outputs of a sub-layer `[batch, length, width]`, after dropout."""
        config, key = self.config, options.key
        if slot == "feed_forward":
            outputs = self.feed_forward(inputs, Dropout(config.feed_forward_dropout, fold(key, 4)))
            place = 5
        else:
            outputs = self.attended(slot, inputs, state, options, cache.get(slot), reports)
            place = 1 if slot == "attention" else 3
        outputs = Dropout(config.dropout, fold(key, place))(outputs)
        if key is None or config.stochastic_depth == 0.0 or config.depth == 1:
            return outputs
        rate = config.stochastic_depth * number / (config.depth - 1)
        return Dropout(rate, jax.random.fold_in(key, place + 6)).of_examples(outputs)

    def attended(
        self,
        slot: str,
        inputs: jax.Array,
        state: State,
        options: ForwardOptions,
        cache: AttentionCache | KeyValues | None,
        reports: dict[str, Any],
    ) -> jax.Array:
        """Return the outputs of an attention; report what the probe returns, and the cache after new tokens."""
        attention, config, probe = getattr(self, slot), self.config, options.probe
        memory: jax.Array | KeyValues | None = None
        mask, bias, softcap = state.mask, state.bias, config.attention_softcap
        if slot == "cross_attention":
            memory = cache if isinstance(cache, dict) else state.memory
            if memory is None:
                raise DataError("memory: cross-attention needs an encoder's output to attend to")
            mask, bias, softcap = state.memory_mask, None, None
        elif config.window is not None:
            mask = dataclasses.replace(mask or Mask(), window=config.window)
        call = AttentionOptions(
            mask,
            bias,
            Dropout(config.attention_dropout, fold(options.key, 0 if memory is None else 2)),
            state.positions,
            probabilities=probe is not None,
            implementation=options.compute.attention,
            queries=state.query_mask,
            softcap=softcap,
        )
        before = cache if isinstance(cache, AttentionCache) else None
        outputs, attended, after = run_attention(attention, inputs, memory, call, before)
        if after is not None:
            reports[CACHE] = after.entries
        if probe is not None:
            read: Any = inputs if memory is None else memory
            read = None if before is not None or isinstance(read, dict) else read
            reports[slot] = probe(Probe(slot, attention, inputs, attended, call.mask, state.query_mask, read))
        return outputs
