"""BLEU by sacrebleu, an optional dependency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headjax.core.errors import DataError


class Bleu(NamedTuple):
    """A BLEU score.

    Attributes:
        score: BLEU, 0 to 100.
        signature: how it was computed, as sacrebleu writes it; to be reported with every score.
    """

    score: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a") -> Bleu:
    """BLEU of a corpus with one reference a sentence (Papineni et al. 2002; Post 2018).

    Args:
        hypotheses: the translations, detokenised text.
        references: the right ones, in the same order.
        tokenize: sacrebleu's tokenisation; `none` for text that is already tokenised.

    Raises:
        DataError: no sentences, not the same number of both, or sacrebleu is not installed.
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise DataError(f"bleu: {len(hypotheses)} translations and {len(references)} references are not pairs")
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise DataError("bleu: needs sacrebleu: pip install 'headjax[translation]'") from None
    metric = BLEU(tokenize=tokenize)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Bleu(float(score), str(metric.get_signature()))
