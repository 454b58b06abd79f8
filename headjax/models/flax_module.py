"""The one file that talks to `flax.nnx`: formulations and models as Flax modules.

Modules only hold parameters. Take them apart with `nnx.split` and transform with JAX's own `jit`, `grad` and `vmap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from headjax.attention.base import Attention, Call
from headjax.core import tensors as declared
from headjax.core.tensors import Initializer, Normal, Params
from headjax.models.base import Batch, Gates, Model, ModelConfig, Options, Output
from headjax.models.compute import Compute


class FlaxAttention(nnx.Module):
    """An attention formulation for anybody's Flax model.

    Args:
        attention: the formulation.
        width: size of the residual stream.
        rngs: PRNG streams; `params` is drawn from.
        memory_width: size of what is attended to; None is `width`.
        initializer: of weights whose declaration names none.
    """

    def __init__(
        self,
        attention: Attention,
        width: int,
        *,
        rngs: nnx.Rngs,
        memory_width: int | None = None,
        initializer: Initializer = Normal(0.02),
    ) -> None:
        self.attention = nnx.static(attention)
        tensors = attention.tensors(width, width if memory_width is None else memory_width)
        self.params = hold(declared.initialize(tensors, rngs.params(), initializer))

    def __call__(self, inputs: jax.Array, memory: jax.Array | None = None, call: Call = Call()) -> jax.Array:
        """Attends from `inputs [batch, query, width]` to `memory [batch, key, memory_width]`, by default to itself."""
        params = pure(self.params)
        kept = self.attention.memory(params, inputs if memory is None else memory, call.positions)
        return self.attention.combine(params, self.attention.attend(params, inputs, kept, call).context)


class FlaxModel(nnx.Module):
    """A whole model as a Flax module; `FlaxModel.of(model)` holds a trained one, `module.model()` gives it back."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs | None = None, params: Params | None = None) -> None:
        self.config = nnx.static(config)
        if params is None:
            params = config.initialize((rngs or nnx.Rngs(0)).params())
        declared.check(config.tensors(), params)
        self.params = hold(params)

    @classmethod
    def of(cls, model: Model) -> FlaxModel:
        """The module that holds a model's parameters."""
        return cls(model.config, params=model.params)

    def model(self) -> Model:
        """The module's present parameters as a model."""
        return Model(self.config, pure(self.params))

    def __call__(self, batch: Batch, gates: Gates | None = None, compute: Compute = Compute()) -> Output:
        """The forward pass, to be jitted by the caller."""
        return self.config.apply(pure(self.params), batch, Options(gates=gates, compute=compute))


def hold(params: Mapping[str, Any]) -> nnx.Dict:
    """Arrays as `nnx.Param`s, in the same nesting."""
    return nnx.Dict(
        {name: hold(entry) if isinstance(entry, Mapping) else nnx.Param(entry) for name, entry in params.items()}
    )


def pure(params: nnx.Dict) -> Params:
    """The inverse of `hold`."""
    return {name: pure(entry) if isinstance(entry, nnx.Dict) else entry[...] for name, entry in params.items()}
