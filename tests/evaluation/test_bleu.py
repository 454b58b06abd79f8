from __future__ import annotations

import math
import re
import sys

import pytest

from headjax.core.errors import DataError
from headjax.evaluation.translation import corpus_bleu


def test_bleu_and_its_signature():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    assert corpus_bleu(["the cat sat on the mat ."], ["the cat sat on the mat ."]).score == pytest.approx(100.0)
    short = corpus_bleu(["the cat sat on the"], ["the cat sat on the mat ."])
    assert short.score == pytest.approx(100 * math.exp(1 - 7 / 5))  # every n-gram is right; only the length counts
    assert "tok:13a" in short.signature
    assert "nrefs:1" in short.signature
    assert "tok:none" in corpus_bleu(["a b c d"], ["a b c d"], tokenize="none").signature


def test_bleu_by_hand():
    """Of 6 words 5 are right, of their 5 pairs 2, of 4 triples 1, of 3 quadruples none, which counts as half of one."""
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    found = corpus_bleu(["the cat is on the mat"], ["there is a cat on the mat"])
    precision = (5 / 6 * 2 / 5 * 1 / 4 * (1 / 2) / 3) ** 0.25
    assert found.score == pytest.approx(100 * math.exp(1 - 7 / 6) * precision)
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[0-9.]+", found.signature)


def test_pairs_are_checked():
    with pytest.raises(DataError, match=r"^bleu: 1 translations and 2 references are not pairs"):
        corpus_bleu(["a"], ["a", "b"])


def test_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(DataError, match=r"^bleu: needs sacrebleu: pip install 'headjax\[translation\]'"):
        corpus_bleu(["a"], ["a"])
