"""The base of the attention modules: a formulation's weights, the call that Flax users make, and removal of heads."""

from __future__ import annotations

import abc
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.attention.calling import AttentionCache, ModuleCall, check_call, conditions, one_batch_axis
from headjax.attention.formulation import Attention, KeyValues, key_value_shapes
from headjax.attention.operands import Attended, Dropout, Mask
from headjax.attention.projections import HeadOutput
from headjax.core import tensors as declared_tensors
from headjax.core.errors import ConfigError, HeadjaxError, require
from headjax.core.fields import check_fields
from headjax.core.modules import arrays, bind, declared
from headjax.core.serialize import kind, unknown_name
from headjax.core.tensors import RULES, Initializer, Normal, Params
from headjax.mesh.explicit import spread_by_compiler, take

Rules = Mapping[str, str | None]
"""Mesh axis of every logical axis, as in `headjax.mesh.rules.RULES`."""


Rngs = nnx.Rngs | None
"""Streams of random numbers, or None."""


class Options(NamedTuple):
    """Options of an attention module beside its sizes and its formulation; `AttentionModule` explains them."""

    initializer: Initializer = Normal(0.02)
    dropout_rate: float = 0.0
    dtype: Any = None
    implementation: str = "auto"
    rules: tuple[tuple[str, str | None], ...] = ()


class AttentionModule(nnx.Module, abc.ABC):
    """Base of the attention modules, each of one formulation, whose config has the formula and the fields.

    Weights are attributes (`query`, `key`, `value`, `output`, `query_bias`, ...); one that the formulation goes without
    is None. A subclass declares them in its `__init__`, between `super().__init__` and `fill`.

    Attributes:
        formulation: class of the formulation's config.
        config: the formulation.
        width: size of the residual stream.
        memory_width: size of the vectors that are attended to.
        options: how it is drawn, computed and spread over a mesh.
        deterministic: whether calls drop nothing, whatever `rngs` they are given; `eval()` and `train()` set it.
    """

    deterministic: bool
    formulation: ClassVar[type[Attention]]
    config: Any
    output: Any

    def __init__(
        self,
        width: int,
        *,
        config: Attention | None = None,
        rngs: nnx.Rngs | None = None,
        params: Params | None = None,
        memory_width: int | None = None,
        initializer: Initializer = Normal(0.02),
        dropout_rate: float = 0.0,
        dtype: Any = None,
        implementation: str = "auto",
        rules: Rules = RULES,
        **fields: Any,
    ) -> None:
        """Make a module whose weights are drawn, given, or only declared."""
        if config is None or fields:
            config = self._config(width, fields)
            if rngs is None and params is None:
                raise HeadjaxError("rngs: needed to draw the parameters, as in rngs=nnx.Rngs(0)")
        if not 0.0 <= dropout_rate < 1.0:
            raise ConfigError(f"dropout_rate: must be at least 0 and below 1, got {dropout_rate}")
        self.config = config
        self.width = width
        self.memory_width = width if memory_width is None else memory_width
        dtype, own = None if dtype is None else jnp.dtype(dtype), () if rules is RULES else tuple(rules.items())
        self.options = Options(initializer, dropout_rate, dtype, implementation, own)
        self.deterministic = False

    def fill(self, rngs: nnx.Rngs | None, params: Params | None) -> None:
        """Draw the declared weights from `rngs`, or hold the arrays of `params`; without both leave them declared."""
        tensors = declared(self)
        if params is not None:
            declared_tensors.check(tensors, params)
        elif rngs is not None:
            params = declared_tensors.initialize(tensors, rngs.params(), self.options.initializer)
        else:
            return
        bind(self, params)
        if self.options.rules:
            # Flax takes a logical axis without a rule for a mesh axis, so those that are left out are named, too.
            rules = tuple((dict.fromkeys(RULES) | dict(self.options.rules)).items())
            for weight in declared_tensors.flatten(tensors).values():
                weight.set_metadata("sharding_rules", rules)

    @classmethod
    def _config(cls, width: int, fields: dict[str, Any]) -> Attention:
        """Return the formulation with these fields, and derived ones; errors name the module."""
        known = {field.name: field for field in dataclasses.fields(cls.formulation) if field.init}
        unknown = next((name for name in fields if name not in known), None)
        if unknown is not None:
            raise ConfigError(f"{unknown}: {unknown_name(f'field of {cls.__name__}', unknown, list(known))}")
        needed = [name for name, field in known.items() if field.default is dataclasses.MISSING]
        heads = fields.get("num_heads")
        if isinstance(heads, int) and heads > 0 and width % heads == 0:
            derived = [name for name in DERIVED if name in needed and fields.get(name) is None]
            fields = fields | dict.fromkeys(derived, width // heads)
        missing = next((name for name in needed if name not in fields), None)
        if missing is not None:
            raise ConfigError(f"{missing}: missing; {cls.__name__} needs it")
        return cls.formulation(**fields)

    @property
    def params(self) -> Params:
        """The weights as a nested dict of arrays."""
        return arrays(self)

    @abc.abstractmethod
    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        """Return the keys and values of the attended sequence, or the arrays they are computed from."""

    @abc.abstractmethod
    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        """Return the contexts `[batch, query, heads, value_dim]` of queries `inputs [batch, query, width]`."""

    def combine(self, context: jax.Array) -> jax.Array:
        """Return sum_h context_h W_O^h + b_O: `[batch, query, heads, value_dim]` to `[batch, query, width]`."""
        heads, size = context.shape[2:]
        outputs: jax.Array = self.output(context.reshape(*context.shape[:2], heads * size))
        return outputs

    def output_matrices(self) -> jax.Array:
        """Return W_O^h of every head, `[heads, value_dim, width]`, of which `combine` is the linear map, b_O aside."""
        kernel: jax.Array = self.output.kernel[...]
        return kernel

    def __call__(
        self,
        inputs: jax.Array,
        attended_to: jax.Array | None = None,
        *,
        mask: Mask | jax.typing.ArrayLike | None = None,
        is_causal: bool = False,
        bias: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: AttentionCache | None = None,
        rngs: nnx.Rngs | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """sum_h softmax(scale Q_h K_h^T + bias_h) V_h W_O^h + b_O, with the formulation's own Q, K and V.

        `batch` stands for any number of axes, none included. On a mesh with explicit axes (`jax.make_mesh`) outputs lie
        as the inputs do, and the compiler spreads what lies between.
        """
        drops = self.options.dropout_rate > 0.0 and not (self.deterministic if deterministic is None else deterministic)
        call = ModuleCall(
            inputs=inputs,
            attended_to=attended_to,
            mask=conditions(mask if isinstance(mask, Mask) else None, is_causal, cache),
            allowed=None if mask is None or isinstance(mask, Mask) else jnp.asarray(mask),
            bias=bias,
            positions=positions,
            cache=cache,
            dropout=rngs.dropout() if rngs is not None and drops else None,
        )
        call = jax.tree.map(jnp.asarray, call)
        check_call(call, self.width, self.memory_width, self.config.num_heads)
        like = call.inputs if cache is None else (call.inputs, call.cache)
        return spread_by_compiler(type(self)._computed, like, self, call)

    def _computed(self, call: ModuleCall) -> Any:
        """Return the results of `__call__`."""
        module, options, batch = self, self.options, call.batch
        call = one_batch_axis(call)
        inputs, cache = call.inputs, call.cache
        if options.dtype is not None:
            module, inputs, memory = jax.tree.map(lambda x: x.astype(options.dtype), (self, inputs, call.attended_to))
            call = call._replace(attended_to=memory)
        key_values = module.key_values(inputs if call.attended_to is None else call.attended_to, call.positions)
        if cache is not None:
            key_values = {name: _append(cache.entries[name], new, cache.used) for name, new in key_values.items()}
        context = Call(
            mask=call.mask,
            bias=call.bias,
            positions=call.positions,
            dropout=Dropout(options.dropout_rate, call.dropout),
            implementation=options.implementation,
        )
        outputs = module.combine(module.attend(inputs, key_values, context).context)
        outputs = outputs.reshape(*batch, *outputs.shape[1:])  # [batch, query, width]
        if cache is None:
            return outputs
        entries = {name: array.reshape(*batch, *array.shape[1:]) for name, array in key_values.items()}
        return outputs, AttentionCache(entries, cache.used + inputs.shape[1])

    def empty_cache(self, batch: int | Sequence[int], capacity: int, dtype: Any = None) -> AttentionCache:
        """A cache with room for this many tokens of each example, in the type to compute in or another."""
        axes = (batch,) if isinstance(batch, int) else tuple(batch)
        shapes = key_value_shapes(self, 1, capacity, dtype or self.options.dtype or jnp.float32)
        entries = {name: jnp.zeros((*axes, *shape.shape[1:]), shape.dtype) for name, shape in shapes.items()}
        return AttentionCache(entries, jnp.zeros((), jnp.int32))

    def keep_heads(self, heads: Sequence[int]) -> AttentionModule:
        """Return a module with the heads at these positions alone: its outputs are those with the other gates at 0."""
        if not heads:
            bias = self.output.bias
            held = {} if bias is None else {"bias": bias.get_raw_value()}
            return self.like(self.left(heads), {"output": held})
        index = {axis: jnp.asarray(places, jnp.int32) for axis, places in self.config.kept(heads).items()}

        def kept(path: str, weight: nnx.Param[Any]) -> Any:
            array = weight.get_raw_value()
            for dimension, axis in enumerate(weight.out_sharding):
                array = take(array, index[axis], dimension, axis) if axis in index else array
            return array

        return self.like(self.left(heads), declared_tensors.map_tensors(kept, declared(self)))

    def left(self, heads: Sequence[int]) -> Attention:
        """Return the formulation that `keep_heads` returns; abstract weights suffice."""
        return self.config.with_heads(heads) if heads else NoHeads(output_bias=self.output.bias is not None)

    def convert(self, to: Any, seed: int = 0) -> AttentionModule:
        """Return a module of another formulation with these weights, by `headjax.convert`'s targets."""
        # Conversions are made of formulations, so that formulations do not know them.
        converted: AttentionModule = importlib.import_module("headjax.conversion.model").convert_layer(self, to, seed)
        return converted

    def like(self, config: Attention, params: Params) -> AttentionModule:
        """Return a module of another formulation with this one's sizes and options."""
        module: AttentionModule = config.module(self.width, self.memory_width)
        module.options, module.deterministic = self.options, self.deterministic
        module.fill(None, params)
        return module


DERIVED = ("head_dim", "value_dim")
"""Fields that are `width / num_heads` where a formulation needs them and nobody gives them."""


def _append(held: jax.Array, new: jax.Array, used: jax.Array) -> jax.Array:
    """Write `[batch, new, ...]` into `[batch, capacity, ...]` behind the tokens used."""
    return jax.lax.dynamic_update_slice_in_dim(held, new.astype(held.dtype), used, axis=1)


class WrappingAttention(AttentionModule):
    """Base of the modules around another one, which lies under `inner`."""

    inner: Any

    def combine(self, context: jax.Array) -> jax.Array:
        return self.inner.combine(context)

    def output_matrices(self) -> jax.Array:
        return self.inner.output_matrices()

    def keep_heads(self, heads: Sequence[int]) -> AttentionModule:
        return super().keep_heads(heads) if heads else self.inner.keep_heads(heads)

    def left(self, heads: Sequence[int]) -> Attention:
        return super().left(heads) if heads else self.inner.left(heads)


@kind("no_heads")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoHeads(Attention):
    """Attention without heads: every output is b_O, or zero without it, since a sum over no heads is zero.

    Attributes:
        output_bias: whether the layer has a b_O.
    """

    num_heads: int = 0
    output_bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.num_heads == 0, "num_heads", f"a layer without heads has 0, got {self.num_heads}")

    def module(self, width: int, memory_width: int) -> NoHeadsAttention:
        return NoHeadsAttention(width, memory_width=memory_width, config=self)

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        return 0

    def with_heads(self, heads: Sequence[int]) -> Attention:
        return self


class NoHeadsAttention(AttentionModule):
    """The rest of an attention module when its last head is removed; see `NoHeads`."""

    formulation = NoHeads
    config: NoHeads

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        self.output = HeadOutput(0, 1, width, bias=self.config.output_bias)
        self.fill(rngs, params)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return {}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        return Attended(jnp.zeros((*inputs.shape[:2], 0, 1), inputs.dtype), None)

    def output_matrices(self) -> jax.Array:
        return jnp.zeros((0, 1, self.width))
