"""The attention kernels beside the reference, JAX's and our own, and what makes a call fit."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from headjax.core.tensors import RULES
from headjax.mesh.mesh import BATCH_AXES, axes_of, parts_along
from headjax.nn.operands import Attended, AttentionInputs, Mask

BLOCK = 128
"""Number of lanes of a TPU vector register; lengths of blocks are multiples of it."""


def pad_axis(array: jax.Array, axis: int, size: int) -> jax.Array:
    """Return the array with zeros appended along one axis up to a size."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, widths)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is not below the size."""
    return -(-size // multiple) * multiple


def equal_kv_heads(key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Repeat the fewer heads, of keys or of values; each repeated one serves consecutive heads of the other array."""
    kv_heads = (key.shape[2], value.shape[2])
    if kv_heads[0] < kv_heads[1]:
        key = jnp.repeat(key, kv_heads[1] // kv_heads[0], axis=2)
    elif kv_heads[1] < kv_heads[0]:
        value = jnp.repeat(value, kv_heads[0] // kv_heads[1], axis=2)
    return key, value


def segment_ids(mask: Mask, batch: int, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """Return `[batch, query]` and `[batch, key]` numbers, equal exactly where padding and packing allow attention."""
    if mask.query_segments is None or mask.key_segments is None:
        of_queries, of_keys = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
    else:
        of_queries, of_keys = mask.query_segments.astype(jnp.int32), mask.key_segments.astype(jnp.int32)
    if mask.keys is not None:
        of_keys = jnp.where(mask.keys.astype(bool), of_keys, -1)
    return of_queries, of_keys


def spread(compute: Callable[..., Attended], mesh: Any) -> Callable[..., Attended]:
    """Return a kernel that XLA cannot partition as a function of whole arrays, spread by examples and heads."""
    head_axis, axes = RULES["heads"], axes_of(mesh, BATCH_AXES)

    def spec(array: jax.Array, heads: int | None, batch: bool) -> PartitionSpec:
        """Return the place of an array with this dimension of heads, and a first one of examples or not."""
        parts: list[Any] = [None] * array.ndim
        if batch and array.ndim and array.shape[0] % parts_along(mesh, axes) == 0:
            parts[0] = axes
        if heads is not None and array.shape[heads] > 1:
            parts[heads] = head_axis
        return PartitionSpec(*parts)

    def computed(operands: AttentionInputs) -> Attended:
        names = ("query", "key", "value", "mask", "bias", "mixing")
        arrays = {name: getattr(operands, name) for name in names if getattr(operands, name) is not None}
        counts = {operands.heads, *({operands.key.shape[2], operands.value.shape[2]} - {1})}
        divides = head_axis in mesh.shape and all(count % mesh.shape[head_axis] == 0 for count in counts)
        heads = {"query": 2, "key": 2, "value": 2, "bias": 1, "mixing": 0} if divides else {}
        specs = {
            name: jax.tree.map(functools.partial(spec, heads=heads.get(name), batch=name != "mixing"), array)
            for name, array in arrays.items()
        }

        def part(parts: dict[str, Any]) -> jax.Array:
            return compute(operands._replace(**parts)).context

        contexts = PartitionSpec(specs["query"][0], None, head_axis if divides else None, None)
        placed = jax.shard_map(part, mesh=mesh, in_specs=(specs,), out_specs=contexts, check_vma=False)
        return Attended(placed(arrays), None)

    return computed


def dot_product_attention(operands: AttentionInputs, implementation: Literal["xla", "cudnn"]) -> Attended:
    """Compute attention by `jax.nn.dot_product_attention`, with zeros appended to one size and cut off after."""
    query, mask, bias = operands.query, operands.mask, operands.bias
    key, value = equal_kv_heads(operands.key, operands.value)
    size = round_up(max(query.shape[-1], value.shape[-1]), 8 if implementation == "cudnn" else 1)
    # A causal mask alone is passed as such, so that the kernel may skip what it forbids.
    causal = mask is not None and mask.causal and mask.window is None and not jax.tree.leaves(mask)
    allowed = None if mask is None or causal else mask.array(query.shape[1], key.shape[1])
    if bias is not None:
        dtype = query.dtype if implementation == "cudnn" else jnp.float32
        # What hides a key in float32 is infinite in half precision, and a query without keys would get NaN.
        bias = jnp.maximum(bias, float(jnp.finfo(dtype).min)).astype(dtype)
    if implementation == "cudnn":  # which takes no axis of one query or key for all
        rows = (query.shape[1], key.shape[1])
        allowed, bias = (
            array if array is None else jnp.broadcast_to(array, (*array.shape[:2], *rows)) for array in (allowed, bias)
        )
    context = jax.nn.dot_product_attention(
        pad_axis(query, -1, size),
        pad_axis(key, -1, size),
        pad_axis(value, -1, size),
        bias=bias,
        mask=allowed,
        scale=operands.scale,
        is_causal=causal,
        implementation=implementation,
    )
    return Attended(context[..., : value.shape[-1]], None)


cudnn_attention = functools.partial(dot_product_attention, implementation="cudnn")


def splash_attention(operands: AttentionInputs, interpret: bool = False) -> Attended:
    """Compute attention by Pallas splash attention: flash attention for TPUs that skips masked blocks.

    A query that may see no key gets an average of some values; the reference gives the average of all.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    key, value = equal_kv_heads(operands.key, operands.value)
    query, mask = operands.query, operands.mask
    batch, queries, heads, _ = query.shape
    shape = (queries, key.shape[1])
    visible: Any = masks.FullMask(shape)
    if mask is not None and mask.window is not None:
        reach = mask.window - 1
        visible = masks.LocalMask(shape, (reach, 0 if mask.causal else reach), offset=0)
    elif mask is not None and mask.causal:
        visible = masks.CausalMask(shape)
    rows, columns = (next(size for size in (512, 256, BLOCK) if length % size == 0) for length in shape)
    sizes: dict[str, Any] = {f"block_q{part}": rows for part in ("", "_dkv", "_dq")}
    sizes |= {f"block_kv{part}": columns for part in ("", "_compute", "_dkv", "_dkv_compute", "_dq")}
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([visible] * heads), block_sizes=splash.BlockSizes(**sizes), interpret=interpret
    )
    segments = None
    if mask is not None and (mask.keys is not None or mask.query_segments is not None):
        segments = splash.SegmentIds(*segment_ids(mask, batch, *shape))
    by_head = [jnp.swapaxes(array, 1, 2) for array in (query * operands.scale, key, value)]
    context = jax.vmap(kernel, in_axes=(0, 0, 0, None if segments is None else 0))(*by_head, segments)
    return Attended(jnp.swapaxes(context, 1, 2), None)


def collaborative_attention(operands: AttentionInputs, **options: Any) -> Attended:
    """Compute attention with mixed queries by our own kernel, see `headjax.nn.kernels.collaborative_pallas`."""
    ours: Any = importlib.import_module(f"{__name__}.collaborative_pallas")  # which takes long and few need
    return ours.collaborative_attention(operands, **options)
