"""N-gram language models: counts of one, two and three tokens, the baseline that a small Transformer has to beat."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from headjax.core.errors import require


@dataclasses.dataclass(frozen=True)
class _Order:
    """The counts of one order: an n-gram is its history and its last token, in one integer.

    Attributes:
        grams, counts: n-grams in increasing order, and how often each occurs.
        histories: histories in increasing order.
        seen: how often each history occurs.
        kinds: number of different tokens after each.
    """

    grams: np.ndarray
    counts: np.ndarray
    histories: np.ndarray
    seen: np.ndarray
    kinds: np.ndarray


class NGrams:
    r"""Interpolated Witten-Bell smoothing (Witten and Bell 1991; Chen and Goodman 1999, section 2.6).

        P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h))

    c counts, T(h) is the number of different tokens after h, and h' is h without its first token. Below the unigrams
    lies the uniform distribution over the vocabulary. A history never seen leaves P(w | h').
    """

    def __init__(self, examples: Iterable[np.ndarray], vocab_size: int, order: int) -> None:
        """Count the n-grams of examples.

        Args:
            examples: token ids `[length]` each; no n-gram reaches over the end of one.
            vocab_size: number of tokens.
            order: n, from 1 to 5 and such that vocab_size^n fits in 63 bits.

        Raises:
            ConfigError: an order that is not possible.
        """
        bits = max(1, int(vocab_size - 1).bit_length())
        require(1 <= order <= 5 and bits * order <= 63, "order", f"must be from 1 to {min(5, 63 // bits)}, got {order}")
        self.vocab_size, self.order, self._bits = vocab_size, order, bits
        arrays = [np.asarray(example, np.int64) for example in examples]
        self._orders = [self._counted(arrays, n) for n in range(1, order + 1)]

    def log_probabilities(self, example: np.ndarray) -> np.ndarray:
        """Return the natural logarithm of each token's probability but the first's, given those before it.

        Args:
            example: token ids `[length]`.

        Returns:
            `[length - 1]`; near the start, histories are as long as the example has tokens.
        """
        *_, highest = self._interpolated(example)
        return np.log(highest[1:])

    def loss(self, examples: Iterable[np.ndarray]) -> float:
        """Return the mean of -log P in nats per token over all tokens but each example's first."""
        return self.losses(examples)[-1]

    def losses(self, examples: Iterable[np.ndarray]) -> tuple[float, ...]:
        """Return that loss for every order from 1 to n, since a model interpolates the models of all lower orders."""
        logs = [np.log(np.stack(list(self._interpolated(example)))[:, 1:]) for example in examples]
        return tuple((-np.concatenate(logs, axis=1).mean(axis=1)).tolist())

    def _interpolated(self, example: np.ndarray) -> Iterator[np.ndarray]:
        """Yield each token's probability `[length]` under order 1, 2, ... n."""
        tokens = np.asarray(example, np.int64)
        probability = np.full(len(tokens), 1.0 / self.vocab_size)
        for n, counted in enumerate(self._orders, start=1):
            grams = self._grams(tokens, n)
            place, known = _find(counted.histories, grams >> self._bits)
            at, found = _find(counted.grams, grams)
            counts = np.where(found, counted.counts[at], 0)
            kinds = counted.kinds[place]
            lower = probability[n - 1 :]
            smoothed = (counts + kinds * lower) / (counted.seen[place] + kinds)
            probability = np.concatenate([probability[: n - 1], np.where(known, smoothed, lower)])
            yield probability

    def _grams(self, tokens: np.ndarray, n: int) -> np.ndarray:
        """Return the n-grams that end at the tokens from the n-th on, `[length - n + 1]`."""
        length = max(len(tokens) - n + 1, 0)
        grams = np.zeros(length, np.int64)
        for position in range(n):
            grams = (grams << self._bits) | tokens[position : position + length]
        return grams

    def _counted(self, examples: list[np.ndarray], n: int) -> _Order:
        grams, counts = np.unique(np.concatenate([self._grams(tokens, n) for tokens in examples]), return_counts=True)
        histories, first, kinds = np.unique(grams >> self._bits, return_index=True, return_counts=True)
        return _Order(grams, counts, histories, np.add.reduceat(counts, first), kinds)


def _find(ordered: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each value lies in an ordered array, and whether it does; the place of one that does not is any."""
    places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return places, ordered[places] == wanted
