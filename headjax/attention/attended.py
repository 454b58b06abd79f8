"""What goes into and comes out of an attention kernel, besides arrays."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Dropout(NamedTuple):
    """Dropout of attention probabilities: each is zeroed with probability `rate`, the rest scaled by 1 / (1 - rate)."""

    rate: float
    key: jax.Array


class AcrossHeads(NamedTuple):
    """Linear maps across heads on both sides of the softmax (Shazeer et al. 2020, Talking-Heads Attention).

    Attributes:
        logits: `[logit_heads, softmax_heads]`; the softmax is of sum_h logits_h P_hj, or None for the logits alone.
        weights: `[softmax_heads, heads]`; values are weighted by sum_j A_j R_jh, or None for A alone.
    """

    logits: jax.Array | None = None
    weights: jax.Array | None = None


class Attended(NamedTuple):
    """What attention computed.

    Attributes:
        context: `[batch, query, heads, value_dim]`, the gated sums of values.
        probabilities: `[batch, heads, query, key]` before dropout and gates, or None where the kernel never holds them.
            After a map across heads they are the weights of each value head, which need not sum to one.
    """

    context: jax.Array
    probabilities: jax.Array | None
