"""What a kernel can do, and why it cannot do what is asked."""

from __future__ import annotations

from typing import NamedTuple

from headjax.attention.kernels.request import BiasKind, Request

ALL_MASKS = frozenset({"causal", "offset", "keys", "segments"})
FLOATS = ("float32", "bfloat16", "float16")


class Capabilities(NamedTuple):
    """What one kernel can do; the single source of refusals, of `auto`'s choice and of docs/kernels.md.

    Attributes:
        platforms: where it runs.
        dtypes: types of queries, keys and values.
        masks: the conditions of a `Mask` that it understands.
        biases: kinds of bias that it adds.
        dropout: whether it drops probabilities.
        probabilities: whether it returns them.
        across_heads: whether it maps logits and weights across heads.
        needs_mixing: whether it computes shared, mixed queries only; every other kernel is given the mixed queries.
        value_dim: how it meets a value_dim other than qk_dim: `free`, or `padded` with zeros, which is exact.
        kv_heads: how it meets fewer key or value heads than heads: `free`, `grouped` (as many of both; where they
            differ, the fewer are repeated, which is exact), or `shared` (one key head, a value head per head).
        max_dim: largest qk_dim and value_dim; None is any.
        length_multiple: lengths must be multiples of it.
        bfloat16_generation: first TPU generation on which it computes in bfloat16.
        partitioned: whether XLA spreads it over several devices by itself.
    """

    platforms: tuple[str, ...]
    dtypes: tuple[str, ...] = FLOATS
    masks: frozenset[str] = ALL_MASKS
    biases: tuple[BiasKind, ...] = ("none", "keys", "full")
    dropout: bool = False
    probabilities: bool = False
    across_heads: bool = False
    needs_mixing: bool = False
    value_dim: str = "free"
    kv_heads: str = "grouped"
    max_dim: int | None = None
    length_multiple: int = 1
    bfloat16_generation: int = 0
    partitioned: bool = True


def refusal(can: Capabilities, asked: Request) -> str | None:
    """Why a kernel with these capabilities cannot compute the request, in words; None when it can."""
    if asked.platform not in can.platforms:
        return f"it runs on {' and '.join(can.platforms)}, and this is {asked.platform}"
    if can.needs_mixing and not asked.mixing:
        return "it needs one shared query that heads mix, and this formulation has a query per head"
    if asked.across_heads and not can.across_heads:
        return "talking heads mix the weights of all heads, and it never holds more than one head's"
    if asked.dtype not in can.dtypes:
        return f"it computes in {' and '.join(can.dtypes)}, and the inputs are {asked.dtype}"
    if asked.dtype == "bfloat16" and (asked.generation or can.bfloat16_generation) < can.bfloat16_generation:
        return f"it computes in bfloat16 from TPU v{can.bfloat16_generation} on, and this is v{asked.generation}"
    missing = sorted(asked.masks - can.masks)
    if missing:
        return f"it knows no {' and no '.join(missing)} mask"
    if asked.bias not in can.biases:
        what = "no bias" if can.biases == ("none",) else "only a bias that is the same for every query"
        return f"it adds {what} to the logits, and this call has one"
    if asked.dropout and not can.dropout:
        return "it has no dropout of attention probabilities"
    return _size_refusal(can, asked)


def _size_refusal(can: Capabilities, asked: Request) -> str | None:
    if can.kv_heads == "shared" and (asked.key_heads, asked.value_heads) != (1, asked.heads):
        return f"it needs 1 key head and {asked.heads} value heads, got {asked.key_heads} and {asked.value_heads}"
    for field, size in (("qk_dim", asked.qk_dim), ("value_dim", asked.value_dim)):
        if can.max_dim is not None and size > can.max_dim:
            return f"{field} is {size}, and its largest is {can.max_dim}"
    for field, length in (("query length", asked.queries), ("key length", asked.keys)):
        if length % can.length_multiple:
            return f"the {field} is {length}, and it needs multiples of {can.length_multiple}"
    return None
