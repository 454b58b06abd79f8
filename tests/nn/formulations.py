"""Small examples of every registered formulation, for the tests that hold for all of them."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.tensors import Normal, Params
from headjax.nn import (
    Attended,
    AttentionModule,
    AttentionOptions,
    CollaborativeAttention,
    CompressedAttention,
    Kind,
    LatentAttention,
)
from headjax.nn.norms import RMSNorm
from headjax.nn.rotary import RotaryHalves, RotaryInterleaved
from tests import tiny

WIDTH = 16
SUMS = WIDTH + 8 + 8 + 2 * 6 + 20
"""Terms on the longest way through one of these: projection, a latent, logits, softmax and context over the six keys of
`random_inputs`, and the heads' outputs."""

FORMULATIONS: dict[str, Kind] = {
    "multi_head": tiny.multi_head(4, 4),
    "fixed_head_size": tiny.multi_head(3, 6, value_dim=5, scale=0.3, projection_bias=False),
    "rotary_halves": tiny.multi_head(4, 4, rotary=RotaryHalves(base=100.0)),
    "rotary_interleaved": tiny.multi_head(3, 6, rotary=RotaryInterleaved(dim=4)),
    "grouped": tiny.grouped(6, 2, 4, value_dim=3, projection_bias=True, output_bias=True),
    "multi_query": tiny.grouped(4, 1, 4),
    "ragged_grouped": tiny.grouped(
        4, 2, 4, kv_index=(1, 0, 0, 0), rotary=RotaryHalves(), query_norm=RMSNorm(), key_norm=RMSNorm()
    ),
    "collaborative": Kind(
        CollaborativeAttention,
        num_heads=4,
        shared_dim=8,
        value_dim=4,
        head_dim=4,
        projection_bias=True,
        content_bias=True,
    ),
    "latent": Kind(
        LatentAttention, num_heads=3, rank=6, head_dim=4, value_dim=5, projection_bias=True, output_bias=True
    ),
    "latent_rotary": Kind(
        LatentAttention,
        num_heads=3,
        rank=6,
        head_dim=4,
        query_rank=5,
        rotary_dim=2,
        rotary=RotaryInterleaved(),
        latent_norm=RMSNorm(),
        query_norm=RMSNorm(),
    ),
    "compressed": Kind(
        CompressedAttention,
        inner=tiny.grouped(4, 2, 4, rotary=RotaryHalves(base=100.0), query_norm=RMSNorm(), key_norm=RMSNorm()),
        rank=7,
    ),
}

KEPT = tiny.multi_head(3, 4, rotary=RotaryHalves(base=100.0, dim=8), frequencies=((0, 1), (1, 3), (0, 2)))
"""Its heads turn at frequencies of their own."""


def random_params(attention: Kind, width: int = WIDTH, seed: int = 0) -> Params:
    """Parameters drawn at random, large enough that attention is not flat."""
    return tiny.random_params(tiny.weights(attention, width, width), Normal(0.5), 0.3, seed)


def module(name: str, **options: Any) -> AttentionModule:
    """The Flax module of one of these."""
    config = FORMULATIONS[name]
    made: AttentionModule = config.of(WIDTH, params=random_params(config), **options, **config.options)
    return made


Arrays = tuple[Any, Any, Any]
"""Mask, bias and positions of a call."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def _attended(attention: Kind, kernel: str, params: Params, x: Any, memory: Any, places: Any, call: Arrays) -> Any:
    mask, bias, positions = call
    module = tiny.bound(attention, params, x.shape[-1], memory.shape[-1])
    given = AttentionOptions(mask=mask, bias=bias, positions=positions, implementation=kernel)
    return module.attend(x, module.key_values(memory, places), given)


def attended_by(
    attention: Kind,
    params: Params,
    x: Any,
    call: AttentionOptions = AttentionOptions(),
    memory: Any = None,
    positions: Any = None,
) -> Attended:
    """Contexts of queries from `x`, with keys and values from `memory` or from `x` itself; one program, no dropout."""
    memory = x if memory is None else memory
    arrays = (call.mask, call.bias, call.positions)
    return _attended(attention, call.implementation, params, x, memory, positions, arrays)


def outputs_of(
    attention: Kind,
    params: Params,
    x: Any,
    call: AttentionOptions = AttentionOptions(),
    memory: Any = None,
    gates: Any = None,
) -> jax.Array:
    """Outputs of the same, with gates `[batch, query, heads]` on the contexts."""
    context = attended_by(attention, params, x, call, memory).context
    context = context if gates is None else context * jnp.asarray(gates, context.dtype)[..., None]
    return _combined(attention, params, context)


@functools.partial(jax.jit, static_argnums=0)
def _combined(attention: Kind, params: Params, context: Any) -> jax.Array:
    width = params["output"]["kernel"].shape[-1] if "kernel" in params.get("output", {}) else WIDTH
    return tiny.bound(attention, params, width, width).output(jax.lax.collapse(context, 2))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _kept(attention: Kind, params: Params, heads: tuple[int, ...]) -> Params:
    return tiny.bound(attention, params, WIDTH, WIDTH).keep_heads(heads).params


def kept_heads(attention: Kind, params: Params, heads: Sequence[int]) -> tuple[Kind, Params]:
    """The formulation with these heads alone, and its parameters."""
    return tiny.bound(attention, params, WIDTH, WIDTH).config_after_pruning(heads), _kept(
        attention, params, tuple(heads)
    )


def random_inputs(batch: int = 2, length: int = 6, width: int = WIDTH, seed: int = 1) -> np.ndarray:
    """`[batch, length, width]` inputs."""
    return np.random.default_rng(seed).standard_normal((batch, length, width)).astype(np.float32)
