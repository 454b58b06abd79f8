"""Fit attention patterns by heads of several sizes: theorem 1 of Bhojanapalli et al. (2020) as an experiment.

    python -m results.experiments.patterns     # writes results/measurements/patterns_fitted.csv

A pattern is a matrix of attention weights, `[tokens, tokens]`, drawn at random. For inputs of full column rank, drawn
as well, queries and keys of a size are trained until the attention fits the pattern as well as it can.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from headjax.nn.attend import attend
from results.table import Row, write

TOKENS, WIDTH, SEEDS, STEPS, RATE = 16, 32, 5, 4000, 0.02
SIZES = (1, 2, 4, 8, 12, 14, 15, 16, 24)

KINDS = {"soft": 1.0, "peaked": 4.0}
"""Standard deviation of the logits of patterns, in nats, by name."""


def pattern(key: jax.Array, spread: float, tokens: int) -> jax.Array:
    """Return random attention weights, `[tokens, tokens]`."""
    return jax.nn.softmax(spread * jax.random.normal(key, (tokens, tokens)))


def fitted(query: jax.Array, key: jax.Array, inputs: jax.Array) -> jax.Array:
    """Return the attention weights of one head, `[seeds, tokens, tokens]`: the mean over values that are unit vectors.

    Args:
        query, key: Maps, `[seeds, width, size]`.
        inputs: `[seeds, tokens, width]`.
    """
    seeds, tokens, _ = inputs.shape
    queries, keys = (jnp.einsum("stw,swd->std", inputs, each)[:, :, None] for each in (query, key))
    units = jnp.broadcast_to(jnp.eye(tokens)[:, None], (seeds, tokens, 1, tokens))
    scale = 1.0 / float(np.sqrt(query.shape[-1]))
    return attend(queries, keys, units, scale=scale, implementation="einsum").context[:, :, 0]


@functools.partial(jax.jit, static_argnames=("size", "spread", "tokens", "width", "seeds", "steps"))
def divergences(size: int, spread: float, tokens: int, width: int, seeds: int, steps: int) -> jax.Array:
    """Return KL(pattern | attention) after training, mean over the tokens, of each seed."""
    draws = jax.random.split(jax.random.key(0), (seeds, 4))
    target = jax.vmap(lambda key: pattern(key, spread, tokens))(draws[:, 0])
    inputs = jax.vmap(lambda key: jax.random.normal(key, (tokens, width)))(draws[:, 1])
    start = {
        name: jax.vmap(lambda key: jax.random.normal(key, (width, size)))(draws[:, place]) / np.sqrt(width)
        for place, name in ((2, "query"), (3, "key"))
    }

    def divergence(maps: Mapping[str, jax.Array]) -> jax.Array:
        weights = fitted(maps["query"], maps["key"], inputs)
        return jnp.sum(target * (jnp.log(target) - jnp.log(weights + 1e-30)), axis=-1).mean(axis=-1)

    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        maps, state = carry
        gradients = jax.grad(lambda maps: divergence(maps).sum())(maps)
        updates, state = optimizer.update(gradients, state)
        return (optax.apply_updates(maps, updates), state), None

    (maps, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return divergence(maps)


def measure(
    sizes: Sequence[int] = SIZES, tokens: int = TOKENS, width: int = WIDTH, steps: int = STEPS
) -> Iterator[Row]:
    """Yield the divergence of every size and kind of pattern, by seed."""
    for kind, spread in KINDS.items():
        for size in sizes:
            found = divergences(size, spread, tokens, width, SEEDS, steps).tolist()
            for seed, value in enumerate(found):
                yield Row(f"pattern={kind},size={size}", str(seed), metric="kl", value=value)


if __name__ == "__main__":
    write("patterns_fitted", measure())
