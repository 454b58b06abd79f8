"""A lower bound of a decoding step's time: its FLOPs or its bytes, at the machine's peak speeds."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.tensors import count
from headjax.models.config import ModelConfig
from headjax.nn import CompressedAttention
from headjax.nn.block import Compute

SIZE = {"cpu": 1024}
"""Rows and columns of the matrices that rates are measured with, by platform; others take `LARGE`."""
LARGE = 8192
CALLS = 5


class Rates(NamedTuple):
    """Peak speeds of a device.

    Attributes:
        flops: floating-point operations a second.
        bytes: bytes a second that it reads from memory.
    """

    flops: float
    bytes: float


class DecodingCost(NamedTuple):
    """Cost of one decoding step of a batch.

    Attributes:
        flops: floating-point operations, two a multiply-add.
        bytes: bytes of the weights, and those read and written for the tokens in the caches.
    """

    flops: int
    bytes: int

    def seconds(self, rates: Rates) -> float:
        """Return the longer of both times at these speeds, a lower bound of a step's time."""
        return max(self.flops / rates.flops, self.bytes / rates.bytes)


def decoding_cost(config: ModelConfig, length: int, batch: int = 1, compute: Compute = Compute()) -> DecodingCost:
    """Return the cost of one more token of every example in a batch."""
    width, tensors = config.width, config.tensors()
    flops, numbers = 0, count({name: entry for name, entry in tensors.items() if name != "encoder"})
    for layer in config.stacks()["decoder"].layers:
        attention = layer.attention.module(width, width)
        known = attention.flops(0, length - 1)
        if isinstance(attention, CompressedAttention):  # whose cache holds latents alone
            known = 2 * (length - 1) * width * layer.attention.rank
        flops += batch * (attention.flops(1, length) - known + layer.feed_forward_flops(1))
        numbers += batch * length * attention.cache_size()
        if layer.cross_attention is not None:
            crossed = layer.cross_attention.module(width, width)
            flops += batch * (crossed.flops(1, length) - crossed.flops(0, length))
            numbers += batch * length * crossed.cache_size()
    generative: Any = config
    flops += 2 * batch * width * generative.vocab_size
    return DecodingCost(flops, numbers * compute.type.itemsize)


@functools.cache
def peak_rates(dtype: str = "float32") -> Rates:
    """Measure the first device: a product of matrices, and a sum of numbers that no cache holds; the best call counts.

    The measurement takes some tenths of a second once in a process.
    """
    size = SIZE.get(jax.default_backend(), LARGE)
    matrix = jnp.ones((size, size), dtype)
    numbers = jnp.ones((64 * size, size), dtype)
    product = _best(jax.jit(lambda x: x @ x), matrix)
    reading = _best(jax.jit(jnp.max), numbers)
    return Rates(2.0 * size**3 / product, numbers.nbytes / reading)


def _best(function: Callable[[jax.Array], jax.Array], array: jax.Array) -> float:
    """Return the least seconds of a call."""
    jax.block_until_ready(function(array))
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        jax.block_until_ready(function(array))
        seconds.append(time.perf_counter() - start)
    return min(seconds)
