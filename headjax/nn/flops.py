"""Floating-point operations of programs, counted in their products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax


def product_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the operations, two a multiply-add, of a function's products of matrices; nothing is computed.

    Sums that one operand only weighs, such as a mean over tokens, do not count.

    Args:
        function: any function of arrays.
        arguments: its arguments; shapes and types (`jax.ShapeDtypeStruct`) suffice.
    """
    return _counted(jax.make_jaxpr(function)(*arguments).jaxpr)


def _counted(jaxpr: Any) -> int:
    total, used = 0, set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if used.isdisjoint(map(id, eqn.outvars)):
            continue  # compilers leave out what nothing reads
        used.update(map(id, eqn.invars))
        if eqn.primitive.name == "dot_general":
            (summed, batched) = eqn.params["dimension_numbers"]
            shapes = [operand.aval.shape for operand in eqn.invars]
            free = [len(shape) - len(s) - len(b) for shape, s, b in zip(shapes, summed, batched, strict=True)]
            if all(free):
                total += 2 * eqn.outvars[0].aval.size * math.prod(shapes[0][axis] for axis in summed[0])
        repeats = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        inner = (getattr(value, "jaxpr", value) for value in eqn.params.values())
        total += repeats * sum(_counted(each) for each in inner if hasattr(each, "eqns"))
    return total
