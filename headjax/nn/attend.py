"""Attention from queries, keys and values to contexts: the reference softmax over keys, and the choice of a kernel."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.errors import KernelError
from headjax.core.fields import unknown_name
from headjax.mesh.mesh import current_mesh
from headjax.nn.kernels import (
    BLOCK,
    collaborative_attention,
    cudnn_attention,
    dot_product_attention,
    splash_attention,
    spread,
)
from headjax.nn.operands import Attended, AttentionCache, AttentionInputs, Dropout, KeyValues, Mask


class AttentionOptions(NamedTuple):
    """Options of one attention call: everything but parameters and inputs.

    Attributes:
        mask: Keys that each query may see.
        bias: Added to the scaled logits, broadcastable to `[batch, heads, query, key]`.
        dropout: Dropout of the probabilities.
        positions: `[batch or 1, query]`, of the queries, for rotary embeddings.
        probabilities: Whether the caller may read them, which not every kernel holds.
        implementation: Name of the kernel.
        queries: `[batch, query]` bool, False at padding, for statistics; None without padding.
        observe: Probabilities pass through it on their way to the values.
        softcap: The c of c * tanh(logits / c), computed before the mask (Gemma 2).
    """

    mask: Mask | None = None
    bias: jax.Array | None = None
    dropout: Dropout = Dropout()
    positions: jax.Array | None = None
    probabilities: bool = False
    implementation: str = "auto"
    queries: jax.Array | None = None
    observe: Callable[[jax.Array], jax.Array] | None = None
    softcap: float | None = None

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float, mixing: jax.Array | None = None
    ) -> Attended:
        """Compute `attend` with these options."""
        bias = self.bias
        if bias is not None and (bias.ndim < 4 or bias.shape[3] != key.shape[1]):  # all four axes, an entry for a key
            bias = jnp.broadcast_to(bias, (*(1,) * (4 - bias.ndim), *bias.shape[:-1], key.shape[1]))
        options = (self.mask, bias, self.dropout, mixing, self.observe, self.softcap)
        operands, machine, mesh = AttentionInputs(query, key, value, scale, *options), current_target(), current_mesh()
        for name, array in {"key": key, "value": value}.items():
            if not array.shape[2] or operands.heads % array.shape[2]:
                raise KernelError(f"{name} heads: {array.shape[2]} does not divide the {operands.heads} query heads")
        alone = machine if mesh is None else machine._replace(devices=1)
        name = choose(self.implementation, operands, alone, self.probabilities or self.observe is not None)
        if mixing is not None and name != OURS:
            operands = operands._replace(query=query * mixing[None, None], mixing=None)
        compute = KERNELS[name].compute
        if name == OURS:  # Pallas interprets it on a CPU
            compute = functools.partial(compute, interpret=machine.platform == "cpu")
        if mesh is not None and not KERNELS[name].partitioned:
            compute = spread(compute, mesh)
        return compute(operands)


def run_attention(
    module: Any,
    x: jax.Array,
    memory: jax.Array | KeyValues | None = None,
    options: AttentionOptions = AttentionOptions(),
    cache: AttentionCache | None = None,
) -> tuple[jax.Array, Attended, AttentionCache | None]:
    """Compute an attention module's `__call__` for one axis of examples, as layers and decoding steps do.

    `memory` may also be its own `key_values`, computed before. With a cache, x stands behind the tokens in it, and the
    keys and values of x join theirs. Returns the outputs `[batch, query, width]`, what they combine, and the new cache.
    """
    if isinstance(memory, dict):
        key_values = memory
    else:
        key_values = module.key_values(x if memory is None else memory, options.positions if memory is None else None)
    if cache is not None:
        known_empty, cache = isinstance(cache.used, int), cache.append(key_values, x.shape[1])
        key_values = key_values if known_empty else cache.key_values()
    attended = module.attend(x, key_values, options)
    return module.output(jax.lax.collapse(attended.context, 2)), attended, cache


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float, mixing: jax.Array | None = None, **options: Any
) -> Attended:
    """Compute scaled dot-product attention (Vaswani et al. 2017).

        A_h = softmax(scale * Q_h K_h^T + bias_h),   context_h = A_h V_h

    Keys and values may have fewer heads than queries (grouped, multi-query, shared): head h of `heads` reads head
    h * key_heads // heads. With `mixing [heads, dim]` all heads share one query, Q_h = Q diag(mixing_h). The options
    are those of `AttentionOptions`.
    """
    return AttentionOptions(**options)(query, key, value, scale=scale, mixing=mixing)


@jax.custom_jvp
def softmax(logits: jax.Array) -> jax.Array:
    """exp(l_k) / sum_j exp(l_j) over the last axis, whose derivative in closed form keeps the output alone."""
    return jax.nn.softmax(logits, axis=-1)


@softmax.defjvp
def _softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Tangent: d p = p (d l - sum_j p_j d l_j)."""
    ((logits,), (change,)) = primals, tangents
    p = softmax(logits)
    return p, p * (change - (p * change).sum(axis=-1, keepdims=True))


def einsum_attention(operands: AttentionInputs) -> Attended:
    """Compute softmax(scale * Q K^T + bias) V, the reference, in einsums that hold every probability in float32."""
    query, key, value, scale, mask, bias, dropout, _, observe, softcap = operands
    (batch, queries, heads, dim), (_, keys, key_heads, _) = query.shape, key.shape
    # Heads before tokens is 5 to 10% faster on CPUs; other compilers choose layouts.
    rows = jnp.swapaxes(query * jnp.asarray(scale, query.dtype), 1, 2)  # [batch, heads, query, dim]
    rows = rows.reshape(batch, key_heads, heads // key_heads * queries, dim)
    logits = jnp.einsum("bgqd,bgkd->bgqk", rows, jnp.swapaxes(key, 1, 2))
    logits = logits.reshape(batch, heads, queries, keys).astype(jnp.float32)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    allowed = None if mask is None else mask.array(queries, keys)
    if allowed is not None:
        logits = jnp.where(allowed, logits, jnp.finfo(jnp.float32).min)
    probabilities = softmax(logits) if observe is None else observe(softmax(logits))
    weights = dropout(probabilities.astype(value.dtype))  # [batch, heads, query, key]
    rows = weights.reshape(batch, value.shape[2], heads // value.shape[2] * queries, keys)
    context = jnp.einsum("bgqk,bgkv->bgqv", rows, jnp.swapaxes(value, 1, 2))
    context = jnp.swapaxes(context.reshape(batch, heads, queries, value.shape[3]), 1, 2)
    return Attended(context, probabilities)  # [batch, query, heads, value_dim]


class Kernel(NamedTuple):
    """An attention kernel, with the platforms on which it runs and the types in which it computes."""

    compute: Callable[..., Attended]  # of `AttentionInputs`
    platforms: tuple[str, ...] = ("cpu", "gpu", "tpu")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    partitioned: bool = True  # whether XLA itself spreads it over several devices


REFERENCE, OURS, AUTO = "einsum", "collaborative_pallas", "auto"

KERNELS: dict[str, Kernel] = {
    REFERENCE: Kernel(einsum_attention),
    "xla": Kernel(functools.partial(dot_product_attention, implementation="xla")),
    "cudnn": Kernel(cudnn_attention, ("gpu",), ("bfloat16", "float16")),
    "splash": Kernel(splash_attention, ("tpu",), ("float32", "bfloat16"), partitioned=False),
    OURS: Kernel(collaborative_attention, ("tpu", "cpu"), ("float32", "bfloat16"), False),
}
"""Kernels by name. Our own runs on CPUs interpreted, for tests; no TPU has run it."""

PREFERRED: dict[str, tuple[str, ...]] = {"tpu": (OURS, "splash"), "gpu": ("cudnn",), "cpu": ()}
"""Kernels that `auto` tries before the reference, best first, by platform."""


class Machine(NamedTuple):
    """Machine for which kernels are chosen."""

    platform: str  # cpu, gpu or tpu
    devices: int = 1  # number of devices over which XLA itself has to spread the program
    generation: int | None = None  # of the TPU, where it is known


_target: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("target", default=None)


@contextlib.contextmanager
def target(platform: str, devices: int = 1, generation: int | None = None) -> Iterator[None]:
    """Choose kernels for this `Machine` while the context lasts; programs traced before keep theirs."""
    token = _target.set(Machine(platform, devices, generation))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> Machine:
    """Return the machine for which kernels are chosen: the present one outside of `target`."""
    tpu = re.match(r"TPU ?v?(\d+)", jax.devices()[0].device_kind)  # `TPU v5 lite`, `TPU7x`
    present = Machine(jax.default_backend(), jax.device_count(), int(tpu[1]) if tpu else None)
    return _target.get() or present


def choose(implementation: str, operands: AttentionInputs, machine: Machine, probabilities: bool = False) -> str:
    """Return the name of the kernel for a call."""
    if implementation == AUTO:
        for name in () if probabilities else PREFERRED[machine.platform]:
            if (machine.devices == 1 or KERNELS[name].partitioned) and refusal(name, operands, machine) is None:
                return name
        return REFERENCE
    if implementation not in KERNELS:
        raise KernelError(f"attention implementation: {unknown_name('name', implementation, [*KERNELS, AUTO])}")
    refused = refusal(implementation, operands, machine)
    if refused is not None:
        raise KernelError(f"attention implementation: {implementation} {refused}")
    return implementation


def refusal(name: str, operands: AttentionInputs, machine: Machine) -> str | None:
    """Return why a kernel cannot compute a call, to follow the kernel's name; None when it can."""
    kernel, dtype = KERNELS[name], str(operands.query.dtype)
    if machine.platform not in kernel.platforms:
        return f"runs on {' and '.join(kernel.platforms)}, not on {machine.platform}"
    if dtype not in kernel.dtypes:
        return f"computes in {' and '.join(kernel.dtypes)}, not in {dtype}"
    if name == REFERENCE:
        return None
    if operands.softcap is not None:
        return "does not cap logits"
    if operands.dropout.active:
        return "has no dropout of attention probabilities"
    lengths = (operands.query.shape[1], operands.key.shape[1])
    if name == "cudnn":
        size = max(operands.query.shape[-1], operands.value.shape[-1])
        # Odd lengths with a bias have no backward pass in cuDNN, and masks reach it as biases.
        odd = any(length % 2 for length in lengths)
        return f"takes heads of at most 128 and even lengths, not {size} and {lengths}" if size > 128 or odd else None
    return None if kernel.partitioned else _pallas_refusal(name, operands, machine, lengths)


def _pallas_refusal(name: str, operands: AttentionInputs, machine: Machine, lengths: tuple[int, int]) -> str | None:
    mask, bias = operands.mask, operands.bias
    if str(operands.query.dtype) == "bfloat16" and (machine.generation or 4) < 4:
        return f"computes in bfloat16 from TPU v4 on, not on v{machine.generation}"
    placed = mask is not None and (mask.causal or mask.window is not None)
    if mask is not None and placed and (mask.query_offset is not None or mask.query_positions is not None):
        return "has no masks of queries behind a cache"
    if name == OURS:
        heads = (operands.key.shape[2], operands.value.shape[2])
        if operands.mixing is None or heads != (1, operands.heads):
            return "needs one query and one key that all heads share"
        return "adds only a bias that is the same for every query" if bias is not None and bias.shape[2] > 1 else None
    if bias is not None:
        return "adds no bias to the logits"
    return f"needs lengths in multiples of {BLOCK}, not {lengths}" if any(n % BLOCK for n in lengths) else None
