"""Batches of examples: as arrays, some of them in the place of all, and sums over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError
from headjax.core.timing import one_behind
from headjax.mesh.distributed import fetch


def arrays_of(batch: Any) -> Any:
    """Return a batch as JAX arrays."""
    try:
        arrays = jax.tree.map(jnp.asarray, batch)
    except TypeError as error:
        raise DataError(f"batches: expected a list of batches, each of arrays of numbers: {error}") from None
    if not any(array.ndim for array in jax.tree.leaves(arrays)):
        raise DataError("batches: a batch needs an array whose first axis is that of the examples")
    return arrays


def examples_in(batch: Any) -> int:
    """Return the number of examples of a batch."""
    return next(int(array.shape[0]) for array in jax.tree.leaves(batch) if array.ndim)


def batches_for(batches: Sequence[Any], examples: int) -> list[Any]:
    """Return batches with about `examples` examples, spread over all, since they are sorted by length."""
    size = max(sum(map(examples_in, batches)) / max(len(batches), 1), 1.0)
    count = min(max(round(examples / size), 1), len(batches))
    return [batches[int((place + 0.5) * len(batches) / count)] for place in range(count)]


def held_back(batches: Sequence[Any], examples: int) -> tuple[list[Any], list[Any]]:
    """Return the batches to evaluate changes on, about half of all examples at most, and those to fit them on."""
    if len(batches) < 2:
        return list(batches), list(batches)
    eval_batches = batches_for(batches, min(examples, sum(map(examples_in, batches)) // 2))
    return eval_batches, [batch for batch in batches if all(batch is not other for other in eval_batches)]


def sum_over(
    parts: Iterable[Any], check: Callable[[int, Any], None] | None = None, empty: str = "there is no example"
) -> Any:
    """Return the float64 sum of trees of arrays on devices, each fetched while the device computes the next one."""
    total: Any = None
    for number, part in enumerate(one_behind(parts)):
        fetched = fetch(part)
        if check is not None:
            check(number, fetched)
        if total is None:
            total = jax.tree.map(lambda array: np.array(array, np.float64), fetched)
        else:
            jax.tree.map(lambda sums, array: np.add(sums, array, out=sums), total, fetched)
    if total is None:
        raise DataError(f"batches: {empty}")
    return total
