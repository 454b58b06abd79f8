from __future__ import annotations

import math
import sys

import pytest

from headjax.errors import DataError
from headjax.evaluation.bleu import corpus_bleu


def test_bleu_and_its_signature():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    assert corpus_bleu(["the cat sat on the mat ."], ["the cat sat on the mat ."]).score == pytest.approx(100.0)
    short = corpus_bleu(["the cat sat on the"], ["the cat sat on the mat ."])
    assert short.score == pytest.approx(100 * math.exp(1 - 7 / 5))  # every n-gram is right; only the length counts
    assert "tok:13a" in short.signature
    assert "nrefs:1" in short.signature
    assert "tok:none" in corpus_bleu(["a b c d"], ["a b c d"], tokenize="none").signature


def test_pairs_are_checked():
    with pytest.raises(DataError, match=r"^bleu: 1 translations and 2 references are not pairs"):
        corpus_bleu(["a"], ["a", "b"])


def test_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(DataError, match=r"^bleu: needs sacrebleu: pip install 'headjax\[translation\]'"):
        corpus_bleu(["a"], ["a"])
