"""Admin: shortcuts weighted by the variance that the sub-layers before them add, measured or in closed form."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import DataError
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.initialization.initialization import Initialization, Setting, require_post_norm, set_shortcuts
from headjax.mesh.mesh import replicated
from headjax.models.config import Batch, ModelConfig
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, blocks_of
from headjax.nn.state import Compute, ForwardOptions, ResidualStep

_SMALLEST = 0.5
"""The second omega of a stack whose input is about normalised is more than 1; of one with unscaled embeddings of
standard deviation 0.02 it is 0.03."""


@kind("admin")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Admin(Initialization):
    """Admin by profiling (Liu et al. 2020, "Understanding the Difficulty of Training Transformers", section 4.2).

    Post-norm layers become LN(omega_i * x + f_i(x)). In each stack, on one training batch with dropout,

        omega_1 = 1,    omega_(i+1)^2 = Var[omega_i * x_(i-1)] + Var[f_i(x_(i-1))]

    from the first sub-layer to the last, each computed with the omegas found before it, as the authors' code does it;
    since x_(i-1) is normalised, that is omega_(i+1)^2 = Var[x_0] + sum_(j<=i) Var[f_j]. The variance is over every
    number of the batch, `[batch, length, width]`. Each omega starts as a vector of one value and is learned.

    Attributes:
        batches: training batches to profile; omega^2 is the mean over them.
        exclude_padding: whether the variance is over tokens alone; the authors' includes padding.
    """

    batches: Size = 1
    exclude_padding: bool = False

    @property
    def num_batches(self) -> int:
        return self.batches

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_post_norm(config, "Admin is an initialisation")
        return dataclasses.replace(config, residual="scaled_post_norm")

    def measure(self, config: ModelConfig, params: Params, setting: Setting) -> tuple[Params, Mapping[str, Any]]:
        profiles = [
            profile(config, params, batch, setting._replace(key=key), exclude_padding=self.exclude_padding)
            for batch, key in zip(setting.batches, jax.random.split(setting.key, len(setting.batches)), strict=True)
        ]
        omega = {
            name: np.sqrt(np.mean([np.square(profiled[name]) for profiled in profiles], axis=0)) for name in profiles[0]
        }
        history = {name: [round(value, 6) for value in values.tolist()] for name, values in omega.items()}
        return set_shortcuts(config, params, omega), {"omega": history}


def profile(
    config: ModelConfig, params: Params, batch: Batch, setting: Setting, *, exclude_padding: bool = False
) -> dict[str, np.ndarray]:
    """Return Admin's omega of every sub-layer, by stack, in the order of computation, by one jitted forward."""
    if any(array.shape[0] == 0 for array in batch.values()):
        raise DataError("batch: holds no examples to profile")

    run = _program(config, setting.mesh, setting.compute, exclude_padding)
    omega = {name: np.asarray(values) for name, values in run(params, batch, setting.key).items()}
    if not all(np.isfinite(values).all() for values in omega.values()):
        raise DataError("batch: has no finite variance to profile (no tokens but padding, or parameters not finite)")
    for name, values in omega.items():
        if values[1] < _SMALLEST:
            raise DataError(
                f"{name}: its input and first sub-layer have variance {values[1] ** 2:.2g}; Admin needs about one or "
                f"more, or it all but cuts the shortcuts. Normalise or scale the embeddings."
            )
    return omega


@functools.lru_cache(maxsize=2)
def _program(config: ModelConfig, mesh: Mesh, compute: Compute, exclude_padding: bool) -> Callable[..., Any]:
    """Return the jitted function from parameters, a batch and a dropout key to every sub-layer's omega, by stack."""

    def omegas(params: Params, batch: Batch, key: jax.Array) -> dict[str, jax.Array]:
        records_of = {name: [jnp.ones(())] for name in config.stacks()}

        def weigh(stack: str, joining: ResidualStep) -> jax.Array:
            mask, omega = joining.mask if exclude_padding else None, records_of[stack][-1]
            shortcut, output = omega.astype(joining.x.dtype) * joining.x, joining.f(joining.x)
            records_of[stack].append(jnp.sqrt(variance(shortcut, mask) + variance(output, mask)))
            weighed: jax.Array = joining.residual.norm(shortcut + output)
            return weighed

        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            options = ForwardOptions(key=key, compute=dataclasses.replace(compute, remat="none"))
            model = Model(config, compute.cast(params))
            state = model.embed(batch, compute, key)
            for block in blocks_of(model):
                join = functools.partial(weigh, block.stack) if isinstance(block, LayerBlock) else None
                state = block.run(state, options._replace(join=join))
        return {name: jnp.stack(records[:-1]) for name, records in records_of.items()}

    return jax.jit(omegas, out_shardings=replicated(mesh))


def variance(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return the variance of `[batch, length, width]`, or of its values at tokens that `mask` marks, in float32.

    The result is NaN where the mask marks none.
    """
    x = x.astype(jnp.float32)
    if mask is None:
        return jnp.var(x)
    present = jnp.broadcast_to(mask[:, :, None], x.shape)
    return jnp.var(x, where=present)


def constant_omega(sub_layers: int) -> float:
    """Return sqrt((n + 1) / ln(n + 1) - 1) for a stack of n sub-layers: changes of its output grow as ln n."""
    return math.sqrt((sub_layers + 1) / math.log(sub_layers + 1) - 1.0)


@kind("admin_constant")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdminConstant(Initialization):
    """Admin without profiling, as the package admin-torch by its authors has it: see `constant_omega`.

    Post-norm layers become LN(omega * x + f(x)); omega starts as that number everywhere and is learned.
    """

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_post_norm(config, "Admin is an initialisation")
        return dataclasses.replace(config, residual="scaled_post_norm")

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        counts = {name: sum(len(layer.slots) for layer in stack.layers) for name, stack in config.stacks().items()}
        omega = {name: [constant_omega(count)] * count for name, count in counts.items()}
        return set_shortcuts(config, config.initialize(key), omega)
