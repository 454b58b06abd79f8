"""headjax's attention and models as `flax.nnx` modules: the one file that talks to Flax.

There is one module class for each formulation, made from its config: `MultiHeadAttention`, `GroupedAttention`,
`CollaborativeAttention`, `LatentAttention`, `TuckerAttention`, `TalkingAttention`, `GatedAttention`,
`CompressedAttention`, `SharedRotaryAttention`. A formulation that is registered with `headjax.core.serialize.kind` gets
its class without a line here.

    import headjax.flax
    from flax import nnx

    layer = headjax.flax.GroupedAttention(64, num_heads=8, kv_heads=2, head_dim=8, rngs=nnx.Rngs(0))
    outputs = layer(inputs)  # [batch, query, 64]

Modules hold parameters and nothing else, so that `nnx.jit`, `nnx.grad`, `nnx.scan`, `nnx.split` and `nnx.state` work on
them. Every parameter carries its logical axes and the sharding rules as metadata, which `nnx.get_partition_spec` and
`nnx.get_named_sharding` read.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import headjax.attention  # noqa: F401  (registers every formulation)
from headjax.attention.attend import Call
from headjax.attention.formulation import Attention
from headjax.attention.operands import Dropout, Mask
from headjax.conversion.model import convert_layer
from headjax.core import tensors as declared
from headjax.core.errors import ConfigError, HeadjaxError
from headjax.core.serialize import class_of_kind, kinds_of, unknown_name
from headjax.core.tensors import RULES, Initializer, Normal, Params, Tensors
from headjax.models.cache import write
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, ModelConfig, Options, Output
from headjax.models.model import Model

Rules = Mapping[str, str | None]
"""Mesh axis of every logical axis, as in `headjax.mesh.rules.RULES`."""


NO_RNGS = "rngs: needed to draw the parameters, as in rngs=nnx.Rngs(0)"


class HeadGate(nnx.Variable):
    """The gates xi of an attention module's heads, held by the module while heads are scored; not a parameter."""


class AttentionCache(NamedTuple):
    """Keys and values (or the arrays they are computed from) of the tokens that a layer has seen.

    Attributes:
        entries: `[batch, capacity, ...]` each.
        used: number of tokens in the cache, a scalar.
    """

    entries: dict[str, jax.Array]
    used: jax.Array


class AttentionModule(nnx.Module):
    """Base of the generated attention modules, each of one formulation.

    Parameters are attributes with the names of the formulation's declared tensors (`query`, `key`, `value`, `output`,
    `query_bias`, ...), of shape `[width, heads, head_dim]` and so on.
    """

    formulation: ClassVar[type[Attention]]

    def __init__(
        self,
        width: int,
        *,
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
        """Draw the parameters, or hold given ones as they are.

        Args:
            width: size of the residual stream.
            rngs: its stream `params` draws the parameters.
            params: parameters to hold instead, nested as the formulation declares them; nothing is copied.
            memory_width: size of the vectors that are attended to; None is `width`.
            initializer: of weights whose declaration names none.
            dropout_rate: rate at which calls with `rngs` drop attention probabilities.
            dtype: type to compute in; None is that of inputs and parameters.
            implementation: an attention kernel's name, or `auto`.
            rules: mesh axis of every logical axis, kept with each parameter; axes that it leaves out are replicated.
            **fields: the formulation's own fields (`num_heads`, `head_dim`, ...). A `head_dim` or `value_dim` that it
                needs and that is not given, or None, is `width / num_heads`.

        Raises:
            ConfigError: a field that the formulation lacks or cannot use, or one that is missing.
            ParameterError: the given parameters are not those that the formulation declares.
            HeadjaxError: neither `rngs` nor `params`.
        """
        if not 0.0 <= dropout_rate < 1.0:
            raise ConfigError(f"dropout_rate: must be at least 0 and below 1, got {dropout_rate}")
        config = _config(type(self), width, fields)
        tensors = config.tensors(width, width if memory_width is None else memory_width)
        if params is None:
            if rngs is None:
                raise HeadjaxError(NO_RNGS)
            params = declared.initialize(tensors, rngs.params(), initializer)
        declared.check(tensors, params)
        self.config = nnx.static(config)
        self.width = nnx.static(width)
        self.memory_width = nnx.static(width if memory_width is None else memory_width)
        self.dropout_rate = nnx.static(dropout_rate)
        self.dtype = nnx.static(None if dtype is None else jnp.dtype(dtype))
        self.implementation = nnx.static(implementation)
        self.rules = nnx.static(tuple(rules.items()))
        for name, entry in hold(tensors, params, rules).items():
            setattr(self, name, entry)
        self.gates: HeadGate | None = nnx.data(None)

    @property
    def params(self) -> Params:
        """The parameters as the nested dict of arrays that the formulation computes with."""
        return release({name: getattr(self, name) for name in self.config.tensors(self.width, self.memory_width)})

    def __call__(
        self,
        inputs: jax.Array,
        attended_to: jax.Array | None = None,
        *,
        mask: Mask | jax.typing.ArrayLike | None = None,
        is_causal: bool = False,
        bias: jax.Array | None = None,
        gates: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache: AttentionCache | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Any:
        """sum_h xi_h softmax(scale Q_h K_h^T + bias_h) V_h W_O^h + b_O, with the formulation's own Q, K and V.

        Args:
            inputs: `[batch, query, width]`, from which queries are computed.
            attended_to: `[batch, key, memory_width]`, from which keys and values are computed; None is `inputs`.
            mask: which keys a query may see: conditions, or an array broadcastable to `[batch, heads, query, key]` that
                is not zero where it may. With a cache, `Mask(causal=True, query_offset=cache.used)` is the default, and
                holds beside an array.
            is_causal: whether a query sees only the keys up to its own place, beside the mask.
            bias: added to the scaled logits, broadcastable to `[batch, heads, query, key]`.
            gates: head gates xi, `[heads]`, `[batch, heads]` or `[batch, query, heads]`; None is all ones.
            positions: `[batch or 1, query]` for rotary embeddings; None counts from 0, or from `cache.used`.
            cache: keys and values of earlier calls; those of the inputs are appended.
            rngs: its stream `dropout` draws the dropout of probabilities; None drops nothing.

        Returns:
            `[batch, query, width]`; with a cache, that and the new cache.
        """
        params, config = self.params, self.config
        if self.dtype is not None:
            params, inputs, attended_to = jax.tree.map(lambda x: x.astype(self.dtype), (params, inputs, attended_to))
        if mask is not None and not isinstance(mask, Mask):
            hidden = jnp.where(jnp.asarray(mask).astype(bool), 0.0, jnp.finfo(jnp.float32).min)
            mask, bias = None, hidden if bias is None else bias + hidden
        gates = self.gates[...] if gates is None and self.gates is not None else gates
        if cache is not None and positions is None:
            positions = cache.used + jnp.arange(inputs.shape[1])[None, :]
        key_values = config.key_values(params, inputs if attended_to is None else attended_to, positions)
        if cache is not None:
            entries = {name: write(cache.entries[name], array, cache.used) for name, array in key_values.items()}
            mask = Mask(causal=True, query_offset=cache.used) if mask is None else mask
            key_values, cache = entries, AttentionCache(entries, cache.used + inputs.shape[1])
        if is_causal:
            mask = dataclasses.replace(Mask() if mask is None else mask, causal=True)
        key = rngs.dropout() if rngs is not None and self.dropout_rate > 0.0 else None
        call = Call(
            mask=mask,
            bias=bias,
            gates=gates,
            positions=positions,
            dropout=Dropout(self.dropout_rate, key),
            implementation=self.implementation,
        )
        outputs = config.combine(params, config.attend(params, inputs, key_values, call).context)
        return outputs if cache is None else (outputs, cache)

    def empty_cache(self, batch: int, capacity: int, dtype: Any = None) -> AttentionCache:
        """A cache with room for this many tokens of each example, in the type to compute in or another."""
        dtype = dtype or self.dtype or jnp.float32
        inputs = jax.ShapeDtypeStruct((batch, capacity, self.memory_width), dtype)
        positions = jax.ShapeDtypeStruct((1, capacity), jnp.int32)
        params = declared.abstract(self.config.tensors(self.width, self.memory_width), dtype)
        shapes = jax.eval_shape(self.config.key_values, params, inputs, positions)
        return AttentionCache(
            {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}, jnp.zeros((), jnp.int32)
        )

    def keep_heads(self, heads: Sequence[int]) -> AttentionModule:
        """A module with only the heads at these positions; its outputs equal those with the other gates at zero."""
        config, params = self.config.keep_heads(self.params, heads, self.width, self.memory_width)
        return self._like(config, params)

    def convert(self, to: Any, seed: int = 0) -> AttentionModule:
        """A module of another formulation with these weights, by `headjax.convert`'s targets (`grouped:kv_heads=2`).

        Raises:
            ConfigError: the layer cannot become the target.
        """
        return self._like(
            *convert_layer(self.config, self.params, to, width=self.width, memory_width=self.memory_width, seed=seed)
        )

    def _like(self, config: Attention, params: Params) -> AttentionModule:
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
        return module_of(type(config))(
            self.width,
            params=params,
            memory_width=self.memory_width,
            dropout_rate=self.dropout_rate,
            dtype=self.dtype,
            implementation=self.implementation,
            rules=dict(self.rules),
            **fields,
        )


class FlaxModel(nnx.Module):
    """A whole model as a module; its parameters lie under `params`, nested as `config.tensors()` declares them."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs | None = None,
        params: Params | None = None,
        rules: Rules = RULES,
    ) -> None:
        self.config = nnx.static(config)
        if params is None:
            if rngs is None:
                raise HeadjaxError(NO_RNGS)
            params = config.initialize(rngs.params())
        tensors = config.tensors()
        declared.check(tensors, params)
        self.params = nnx.Dict(hold(tensors, params, rules))

    def __call__(
        self,
        batch: Batch,
        gates: Gates | None = None,
        *,
        rngs: nnx.Rngs | None = None,
        compute: Compute = Compute(),
    ) -> Output:
        """The forward pass, to be jitted by the caller; see `headjax.Model` for the batch, the gates and the output.

        Args:
            batch: arrays by Hugging Face's names.
            gates: head gates by head stack; None is all ones.
            rngs: its stream `dropout` draws dropout; None drops nothing.
            compute: how to compute.
        """
        key = None if rngs is None else rngs.dropout()
        return self.config.apply(release(self.params), batch, Options(gates=gates, key=key, compute=compute))


def to_flax(model: Model, rules: Rules = RULES) -> FlaxModel:
    """The module that holds a model's parameters; the arrays are the model's own."""
    return FlaxModel(model.config, params=model.params, rules=rules)


def from_flax(module: FlaxModel) -> Model:
    """The model of a module's present parameters; the arrays are the module's own."""
    return Model(module.config, release(module.params))


def hold(tensors: Tensors, params: Mapping[str, Any], rules: Rules = RULES) -> dict[str, Any]:
    """Arrays as `nnx.Param`s in the same nesting, with their declarations' logical axes and the rules as metadata.

    Flax takes a logical axis without a rule for a mesh axis, so those that the rules leave out are written down, too.
    """
    table = tuple((dict.fromkeys(RULES) | dict(rules)).items())

    def held(tensor: Any, entry: Any) -> Any:
        if isinstance(tensor, nnx.Param):
            return nnx.Param(entry, out_sharding=tensor.out_sharding, sharding_rules=table, eager_sharding=False)
        return nnx.Dict({name: held(tensor[name], entry[name]) for name in tensor})

    return {name: held(tensor, params[name]) for name, tensor in tensors.items()}


def release(params: Mapping[str, Any]) -> Params:
    """The inverse of `hold`: the arrays, in the same nesting."""
    return {name: entry[...] if isinstance(entry, nnx.Variable) else release(entry) for name, entry in params.items()}


def attention_modules(module: nnx.Module) -> dict[tuple[Any, ...], AttentionModule]:
    """The attention modules within anybody's module, by their path in it."""
    return {path: found for path, found in nnx.iter_modules(module) if isinstance(found, AttentionModule)}


def score_heads(
    module: nnx.Module, loss: Callable[[nnx.Module, Any], jax.Array], batches: Iterable[Any]
) -> dict[tuple[Any, ...], jax.Array]:
    """Importance of every head within anybody's module: I_h = E_x |dL(x) / dxi_h| (Michel et al. 2019, equation 2).

    Args:
        module: holds attention modules of this file, anywhere.
        loss: scalar loss of the module on a batch of one example.
        batches: trees of arrays whose first axis counts examples.

    Returns:
        By the path of each attention module, `[heads]`.

    Raises:
        HeadjaxError: the module holds no such attention module, or there is no batch.
    """
    layers = attention_modules(module)
    if not layers:
        raise HeadjaxError("module: it holds no attention module of headjax.flax")
    for layer in layers.values():
        layer.gates = HeadGate(jnp.ones(layer.config.num_heads))
    try:
        parts: Any = nnx.split(module, HeadGate, ...)
        graph, gates, rest = parts

        @jax.jit
        def sums(gates: Any, rest: Any, batch: Any) -> Any:
            def of_one(example: Any) -> Any:
                one = jax.tree.map(lambda array: array[None], example)
                return jax.grad(lambda xi: loss(nnx.merge(graph, xi, rest), one))(gates)

            return jax.tree.map(lambda array: jnp.abs(array).sum(axis=0), jax.vmap(of_one)(batch))

        total, count = None, 0
        for batch in batches:
            arrays = jax.tree.map(jnp.asarray, batch)
            found = sums(gates, rest, arrays)
            total = found if total is None else jax.tree.map(jnp.add, total, found)
            count += jax.tree.leaves(arrays)[0].shape[0]
        if total is None:
            raise HeadjaxError("batches: empty; scores need at least one batch")
        nnx.update(module, jax.tree.map(lambda array: array / count, total))
        return {path: layer.gates[...] for path, layer in layers.items() if layer.gates is not None}
    finally:
        for layer in layers.values():
            layer.gates = nnx.data(None)


DERIVED = ("head_dim", "value_dim")
"""Fields that are `width / num_heads` where a formulation needs them and nobody gives them."""


def _config(module: type[AttentionModule], width: int, fields: dict[str, Any]) -> Attention:
    """Return a module's formulation with these fields, and derived ones; errors name the module."""
    known = {field.name: field for field in dataclasses.fields(module.formulation) if field.init}
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"{unknown}: {unknown_name(f'field of {module.__name__}', unknown, list(known))}")
    needed = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    heads = fields.get("num_heads")
    if isinstance(heads, int) and heads > 0 and width % heads == 0:
        fields |= {name: width // heads for name in DERIVED if name in needed and fields.get(name) is None}
    missing = next((name for name in needed if name not in fields), None)
    if missing is not None:
        raise ConfigError(f"{missing}: missing; {module.__name__} needs it")
    return module.formulation(**fields)


def module_of(config: type[Attention]) -> type[AttentionModule]:
    """The module class of a formulation, named after its config: `Grouped` gives `GroupedAttention`."""
    if config not in _MODULES:
        own = list(inspect.signature(AttentionModule.__init__).parameters.values())[1:-1]
        fields = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(field),
                annotation=field.type,
            )
            for field in dataclasses.fields(config)
            if field.init
        ]
        body = {
            "formulation": config,
            "__doc__": f"{inspect.getdoc(config)}\n\nA Flax module; `AttentionModule` documents its call.",
            "__module__": __name__,
            "__signature__": inspect.Signature([*own, *fields]),
        }
        _MODULES[config] = type(f"{config.__name__}Attention", (AttentionModule,), body)
    return _MODULES[config]


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a formulation's field as its module has it."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.name in DERIVED else inspect.Parameter.empty


_MODULES: dict[type[Attention], type[AttentionModule]] = {}


def _formulations() -> dict[str, type[Attention]]:
    """The registered formulations by the name of their module class."""
    return {f"{config.__name__}Attention": config for config in map(class_of_kind, kinds_of(Attention))}


def __getattr__(name: str) -> Any:
    known = _formulations()
    if name not in known:
        raise AttributeError(f"headjax.flax: {unknown_name('name', name, [*globals(), *known])}")
    return module_of(known[name])


def __dir__() -> list[str]:
    return sorted([*globals(), *_formulations()])
