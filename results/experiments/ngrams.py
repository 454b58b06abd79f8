"""N-gram language models: counts of one, two and three tokens, the baseline that a small Transformer has to beat."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headjax.core.errors import require


def ngram_losses(
    train: Iterable[np.ndarray], held: Iterable[np.ndarray], vocab_size: int, order: int
) -> tuple[float, ...]:
    r"""Return the loss of n-gram models for every order from 1 to n, in nats per token.

    Probabilities are interpolated by Witten and Bell (1991; Chen and Goodman 1999, section 2.6):

        P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h))

    c counts, T(h) is the number of different tokens after h, and h' is h without its first token. Below the unigrams
    lies the uniform distribution over the vocabulary. A history never seen leaves P(w | h').

    Args:
        train: token ids `[length]` of the examples to count; no n-gram reaches over the end of one.
        held: token ids `[length]` of the examples to predict, all of one length. Their first tokens are not predicted.
        vocab_size: number of tokens.
        order: n, from 1 to 5 and such that vocab_size^n fits in 63 bits.

    Raises:
        ConfigError: an order that is not possible.
    """
    bits = max(1, int(vocab_size - 1).bit_length())
    require(1 <= order <= 5 and bits * order <= 63, "order", f"must be from 1 to {min(5, 63 // bits)}, got {order}")
    counted, predicted = [np.asarray(one, np.int64) for one in train], [np.asarray(one, np.int64) for one in held]
    probabilities = [np.full(len(one), 1.0 / vocab_size) for one in predicted]
    losses = []
    for n in range(1, order + 1):
        grams, counts = np.unique(np.concatenate([_grams(one, n, bits) for one in counted]), return_counts=True)
        histories, first, kinds = np.unique(grams >> bits, return_index=True, return_counts=True)
        seen = np.add.reduceat(counts, first)
        for tokens, probability in zip(predicted, probabilities, strict=True):
            asked = _grams(tokens, n, bits)
            place, known = _find(histories, asked >> bits)
            at, found = _find(grams, asked)
            lower = probability[n - 1 :]
            smoothed = (np.where(found, counts[at], 0) + kinds[place] * lower) / (seen[place] + kinds[place])
            probability[n - 1 :] = np.where(known, smoothed, lower)
        losses.append(-float(np.mean([np.log(one[1:]) for one in probabilities])))
    return tuple(losses)


def _grams(tokens: np.ndarray, n: int, bits: int) -> np.ndarray:
    """Return the n-grams that end at the tokens from the n-th on, each in one integer, `[length - n + 1]`."""
    length = max(len(tokens) - n + 1, 0)
    grams = np.zeros(length, np.int64)
    for position in range(n):
        grams = (grams << bits) | tokens[position : position + length]
    return grams


def _find(ordered: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each value lies in an ordered array, and whether it does; the place of one that does not is any."""
    places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return places, ordered[places] == wanted
