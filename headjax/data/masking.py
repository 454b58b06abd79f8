"""Masked language modelling: which tokens are hidden, and behind what (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError, require, require_positive
from headjax.tokenizers.tokenizer import Tokenizer


class Masked(NamedTuple):
    """A sequence with some tokens hidden.

    Attributes:
        input_ids: `[tokens]` what the model reads.
        positions: `[predictions]` the tokens to predict, ascending.
        labels: `[predictions]` what stood there.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Masking:
    """The rule: of a sequence of n tokens min(max_predictions, max(1, round(rate n))) are predicted.

    Of those 80% become the mask token, 10% a random token and 10% stay. Special tokens are neither predicted nor drawn.

    Attributes:
        rate: share of the tokens that is predicted.
        max_predictions: most of one sequence.
    """

    rate: float = 0.15
    max_predictions: int = 20

    def __post_init__(self) -> None:
        require_positive(self, "max_predictions")
        require(0.0 < self.rate < 1.0, "rate", f"must be within (0, 1), got {self.rate}")

    def __call__(self, ids: np.ndarray, vocabulary: MaskingVocabulary, generator: np.random.Generator) -> Masked:
        """Hides tokens of a sequence.

        Args:
            ids: `[tokens]`, special ones included, without padding.
            vocabulary: see `masking_vocabulary`.
            generator: what is drawn depends on it alone.
        """
        candidates = np.flatnonzero(~vocabulary.special[ids])
        wanted = min(self.max_predictions, max(1, round(self.rate * len(ids))), len(candidates))
        positions = np.sort(generator.permutation(candidates)[:wanted])
        fate = generator.random(wanted)
        drawn = vocabulary.ordinary[generator.integers(len(vocabulary.ordinary), size=wanted)]
        hidden = ids.copy()
        hidden[positions] = np.select([fate < 0.8, fate < 0.9], [vocabulary.mask, drawn], ids[positions])
        return Masked(hidden, positions, ids[positions])


class MaskingVocabulary(NamedTuple):
    """What of a vocabulary masking needs.

    Attributes:
        mask: id of the mask token.
        special: `[vocabulary]` True at special tokens.
        ordinary: ids of the others.
    """

    mask: int
    special: np.ndarray
    ordinary: np.ndarray


def masking_vocabulary(tokenizer: Tokenizer) -> MaskingVocabulary:
    """What of a tokenizer masking needs.

    Raises:
        DataError: it has no mask token, or nothing but special ones.
    """
    mask = tokenizer.special_id("mask_token")
    special = np.zeros(tokenizer.vocab_size, bool)
    special[[tokenizer.special_id(role) for role, _ in tokenizer.special]] = True
    for number, token in tokenizer.backend.get_added_tokens_decoder().items():
        special[number] |= token.special
    ordinary = np.flatnonzero(~special).astype(np.int32)
    if not ordinary.size:
        raise DataError("tokenizer: it has nothing but special tokens")
    return MaskingVocabulary(mask, special, ordinary)
