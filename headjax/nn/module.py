"""The base of the attention modules: a formulation's weights, the call that Flax users make, and removal of heads."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core import serialize
from headjax.core import tensors as declared_tensors
from headjax.core.errors import HeadjaxError, require
from headjax.core.fields import Count, options_of
from headjax.core.kind import Kind
from headjax.core.modules import arrays, bind, declared
from headjax.core.tensors import RULES, Initializer, Normal, Params
from headjax.mesh.mesh import spread_by_compiler, take
from headjax.nn.attend import AttentionOptions, run_attention
from headjax.nn.flops import product_flops
from headjax.nn.operands import (
    Attended,
    AttentionCache,
    CallArrays,
    Dropout,
    KeyValues,
    Mask,
    check_sizes,
    one_batch_axis,
    stored,
)
from headjax.nn.projections import HeadOutput

if TYPE_CHECKING:
    from flax.nnx.module import ModuleMeta
else:
    ModuleMeta = type(nnx.Module)

Ids = tuple[int, ...] | None
"""A number of each head, or None."""

M = TypeVar("M", bound="AttentionModule")


class Setting(NamedTuple):
    """How an attention module is drawn, computed and spread over a mesh.

    Attributes:
        initializer: Draws the weights that have no initializer of their own.
        dropout_rate: Rate on the probabilities.
        dtype: Type to compute in; None is that of the arrays.
        implementation: Name of the attention kernel.
        rules: Mesh axis of every logical axis, in place of `headjax.core.tensors.RULES`.
    """

    initializer: Initializer = Normal(0.02)
    dropout_rate: float = 0.0
    dtype: Any = None
    implementation: str = "auto"
    rules: Mapping[str, str | None] | tuple[tuple[str, str | None], ...] = ()


def formulation(name: str) -> Callable[[type[M]], type[M]]:
    """Class decorator: registers an attention module under the name that each `Kind` of it has in JSON.

    The keyword-only parameters of its `__init__`, which declares the weights, are the formulation's options. They are
    compared with their types and bounds before, and the weights are drawn, or hold the arrays of `params`, after it.
    """
    return serialize.kind(name)


class AttentionMeta(ModuleMeta):
    """The calls of the classes of attention modules: options, then `__init__`, then the weights."""

    @property
    def __signature__(cls) -> inspect.Signature:
        parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        return inspect.Signature([*parameters.values()][1:])

    def __call__(
        cls,
        width: int,
        memory_width: int | None = None,
        *,
        kind: Kind | None = None,
        rngs: nnx.Rngs | None = None,
        params: Params | None = None,
        **options: Any,
    ) -> Any:
        """Return a module of these options, or of those of a `Kind`, with weights drawn by `rngs` or those in `params`.

        With a `Kind` and neither, the weights stay declared.
        """
        setting = {name: options.pop(name) for name in Setting._fields if name in options}
        if kind is None:
            heads, fields = options.get("num_heads"), options_of(cls)
            if isinstance(heads, int) and heads > 0 and width % heads == 0:
                sizes = [name for name in ("head_dim", "value_dim") if name in fields and options.get(name) is None]
                required = [name for name in sizes if fields[name].default is dataclasses.MISSING]
                options |= dict.fromkeys(required, width // heads)
            kind = Kind(cls, **options)
            if rngs is None and params is None:
                raise HeadjaxError("rngs: needed to draw the parameters, as in rngs=nnx.Rngs(0)")
        module = super().__call__(width, memory_width, kind=kind, **kind.options, **setting)
        if rngs is not None and params is None:
            params = declared_tensors.initialize(declared(module), rngs.params(), module.setting.initializer)
        if params is not None:
            module.hold(params)
        return module


class AttentionModule(nnx.Module, metaclass=AttentionMeta):
    """Base of the attention modules, each of one formulation, whose class has the formula and explains the options.

    Weights are attributes (`query`, `key`, `value`, `output`, `query_bias`, ...); one that the formulation goes without
    is None.

    Args:
        width: size of the residual stream.
        memory_width: size of the vectors that are attended to; None is `width`.
        num_heads: number of heads.
        head_ids: the heads' original numbers, kept when heads are removed; None counts from 0.
        rngs: draws the weights.
        params: holds the weights, a nested dict of arrays, in place of `rngs`.
        setting: see `Setting`.

    Attributes:
        kind: class and options, as a config holds them.
        setting: how it is drawn, computed and spread over a mesh.
        deterministic: whether calls drop nothing, whatever `rngs` they are given; `eval()` and `train()` set it.
    """

    kind: Kind
    deterministic: bool
    output: Any

    def __init__(self, width: int, memory_width: int | None = None, *, kind: Kind, **setting: Any) -> None:
        self.kind, self.setting = kind, Setting(**setting)
        rate, dtype = self.setting.dropout_rate, self.setting.dtype
        require(0.0 <= rate < 1.0, "dropout_rate", f"must be at least 0 and below 1, got {rate}")
        self.width, self.memory_width = width, width if memory_width is None else memory_width
        dtype, rules = None if dtype is None else jnp.dtype(dtype), tuple(dict(self.setting.rules).items())
        self.setting = self.setting._replace(dtype=dtype, rules=rules)
        self.deterministic = False

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        """Raise `ConfigError` for options that do not fit each other; each is in its bounds."""
        heads, ids = kind.num_heads, kind.ids
        require(len(ids) == heads, "head_ids", f"names {len(ids)} heads, but num_heads is {heads}")
        distinct = len(set(ids)) == heads and min(ids, default=0) >= 0
        require(distinct, "head_ids", f"must be distinct and not negative, got {ids}")

    def hold(self, params: Params) -> None:
        """Put arrays in the place of the declared weights."""
        tensors = declared(self)
        declared_tensors.check(tensors, params)
        bind(self, params)
        if self.setting.rules:
            # Flax takes a logical axis without a rule for a mesh axis, so those that are left out are named, too.
            rules = tuple((dict.fromkeys(RULES) | dict(self.setting.rules)).items())
            for weight in declared_tensors.flatten(tensors).values():
                weight.set_metadata("sharding_rules", rules)

    @property
    def params(self) -> Params:
        """The weights as a nested dict of arrays."""
        return arrays(self)

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return self.kind.options["num_heads"]

    @property
    def ids(self) -> tuple[int, ...]:
        """Original number of each head."""
        ids: Ids = self.kind.options.get("head_ids")
        return tuple(range(self.num_heads)) if ids is None else ids

    @property
    def groups(self) -> tuple[int, ...]:
        """The KV head that each query head reads; by default each has its own."""
        return tuple(range(self.num_heads))

    @property
    def values(self) -> int:
        """Size of each value."""
        return self.kind.head_dim if self.kind.value_dim is None else self.kind.value_dim

    @abc.abstractmethod
    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        """Return the keys and values of the attended sequence, or the arrays they are computed from."""

    @abc.abstractmethod
    def attend(self, inputs: jax.Array, key_values: KeyValues, call: AttentionOptions) -> Attended:
        """Return the contexts `[batch, query, heads, value_dim]` of queries `inputs [batch, query, width]`."""

    def flops(self, query_length: int, key_length: int) -> int:
        """Count the floating-point operations of one forward of one sequence in products of matrices."""
        return _flops(self.kind.structure(), self.width, self.memory_width, query_length, key_length)

    def output_matrices(self) -> jax.Array:
        """Return W_O^h of every head, `[heads, value_dim, width]`, of which `output` is the linear map, b_O aside."""
        kernel = self.output.kernel
        return jnp.zeros((0, 1, self.width)) if kernel is None else kernel[...]

    def cache_size(self) -> int:
        """Return the number of scalars that a decoding cache holds per token: the size of `key_values`."""
        return sum(array.size for array in key_value_shapes(self, 1, jnp.float32).values())

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | None = None,
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

        Queries are those of `x [batch, query, width]`, keys and values those of `memory [batch, key, memory_width]`, by
        default of x. `batch` stands for any number of axes, none included. On a mesh with explicit axes
        (`jax.make_mesh`) outputs lie as x does, and the compiler spreads what lies between.
        """
        drops = self.setting.dropout_rate > 0.0 and not (self.deterministic if deterministic is None else deterministic)
        conditions = mask if isinstance(mask, Mask) else None
        allowed = None if mask is None or isinstance(mask, Mask) else jnp.asarray(mask)
        if is_causal:
            conditions = dataclasses.replace(conditions or Mask(), causal=True)
        key = rngs.dropout() if rngs is not None and drops else None
        call = CallArrays(x, memory, conditions, allowed, bias, positions, cache, key)
        call = jax.tree.map(jnp.asarray, call)
        check_sizes(call, self.width, self.memory_width)
        like = call.x if cache is None else (call.x, call.cache)
        return spread_by_compiler(type(self)._computed, like, self, call)

    def _computed(self, call: CallArrays) -> Any:
        module, setting, batch = self, self.setting, call.x.shape[:-2]
        x, memory, mask, _, bias, positions, cache, key = one_batch_axis(call, self.num_heads)
        if setting.dtype is not None:
            module, x, memory = jax.tree.map(lambda array: array.astype(setting.dtype), (self, x, memory))
        dropout = Dropout(setting.dropout_rate, key)
        options = AttentionOptions(mask, bias, dropout, positions, implementation=setting.implementation)
        outputs, _, cache = run_attention(module, x, memory, options, cache)
        outputs = outputs.reshape(*batch, *outputs.shape[1:])  # [batch, query, width]
        if cache is None:
            return outputs
        entries = {name: array.reshape(*batch, *array.shape[1:]) for name, array in cache.entries.items()}
        return outputs, cache._replace(entries=entries)

    def empty_cache(self, batch: int | Sequence[int], capacity: int, dtype: Any = None) -> AttentionCache:
        """A cache with room for this many tokens of each example, in the type to compute in or another."""
        axes = (batch,) if isinstance(batch, int) else tuple(batch)
        shapes = key_value_shapes(self, capacity, dtype or self.setting.dtype or jnp.float32)
        shapes = jax.eval_shape(lambda arrays: jax.tree.map(stored, arrays), shapes)
        entries = {name: jnp.zeros((*axes, *shape.shape[1:]), shape.dtype) for name, shape in shapes.items()}
        return AttentionCache(entries, jnp.zeros((), jnp.int32))

    def keep_heads(self, heads: Sequence[int]) -> AttentionModule:
        """Return a module with the heads at these positions alone: its outputs are those with the other gates at 0."""
        if not heads:
            bias = self.output.bias
            output = {} if bias is None else {"bias": bias.get_raw_value()}
            return self.like(self.config_after_pruning(heads), {"output": output})
        index = {"heads": list(heads), "kv_heads": sorted({self.groups[head] for head in heads})}

        def cut(path: str, weight: nnx.Param[Any]) -> Any:
            array = weight.get_raw_value()
            for dimension, axis in enumerate(weight.out_sharding):
                if axis in index:
                    array = take(array, np.asarray(index[axis], np.int32), dimension, axis)
            return array

        return self.like(self.config_after_pruning(heads), declared_tensors.map_tensors(cut, declared(self)))

    def config_after_pruning(self, heads: Sequence[int]) -> Kind:
        """Return the kind of the module that `keep_heads` returns; abstract weights suffice."""
        if not heads:
            return Kind(NoHeadsAttention, output_bias=self.output.bias is not None)
        return self.kind.replace(**self.options_after_pruning(heads))

    def options_after_pruning(self, heads: Sequence[int]) -> dict[str, Any]:
        """Return the options that change where only the heads at these positions stay."""
        return {"num_heads": len(heads), "head_ids": tuple(self.ids[head] for head in heads)}

    def like(self, kind: Kind, params: Params) -> AttentionModule:
        """Return a module of another kind with this one's sizes and setting."""
        module = kind.module(self.width, self.memory_width)
        module.setting, module.deterministic = self.setting, self.deterministic
        module.hold(params)
        return module


def key_value_shapes(module: AttentionModule, length: int, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the `key_values` of an attention module that computes in a type, of one example."""
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, dtype), module)
    inputs = jax.ShapeDtypeStruct((1, length, module.memory_width), dtype)
    positions = jax.ShapeDtypeStruct((1, length), jnp.int32)
    return jax.eval_shape(type(module).key_values, shapes, inputs, positions)


@functools.lru_cache(maxsize=1024)
def _flops(kind: Kind, width: int, memory_width: int, queries: int, keys: int) -> int:
    def run(module: AttentionModule, x: jax.Array, memory: jax.Array) -> jax.Array:
        return run_attention(module, x, memory, AttentionOptions(implementation="einsum"))[0]

    sizes = ((queries, width), (keys, memory_width))
    arrays = [jax.ShapeDtypeStruct((1, *size), jnp.float32) for size in sizes]
    return product_flops(run, kind.module(width, memory_width), *arrays)


@formulation("no_heads")
class NoHeadsAttention(AttentionModule):
    """Attention without heads: every output is b_O, or zero without it, since a sum over no heads is zero.

    Args:
        output_bias: whether the layer has a b_O.
    """

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        num_heads: Count = 0,
        head_ids: Ids = None,
        output_bias: bool = True,
        **setting: Any,
    ) -> None:
        super().__init__(width, memory_width, **setting)
        self.output = HeadOutput(0, 1, width, bias=output_bias)

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        require(kind.num_heads == 0, "num_heads", f"a layer without heads has 0, got {kind.num_heads}")
        super().check_options(kind)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return {}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: AttentionOptions) -> Attended:
        return Attended(jnp.zeros((*inputs.shape[:2], 0, 1), inputs.dtype), None)
