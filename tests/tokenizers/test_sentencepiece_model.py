from __future__ import annotations

import sys

import pytest

from headjax.core.errors import DataError
from headjax.tokenizers.sentencepiece import sentencepiece_tokenizer
from tests.tokenizers.test_sentencepiece import write_model


def test_unusual_files_are_named(tmp_path, monkeypatch):
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"no model")
    with pytest.raises(DataError, match=rf"^{broken}: not a SentencePiece model$"):
        sentencepiece_tokenizer(broken)
    pairs = write_model(tmp_path / "bpe.model", model_type="bpe")
    with pytest.raises(DataError, match=rf"^{pairs}: only unigram models without byte fallback"):
        sentencepiece_tokenizer(pairs)
    spaces = write_model(tmp_path / "spaces.model", remove_extra_whitespaces=False)
    with pytest.raises(DataError, match=rf"^{spaces}: its rules for white space are not supported"):
        sentencepiece_tokenizer(spaces)
    other = write_model(tmp_path / "other.model")
    with pytest.raises(DataError, match=rf"^{other}: no piece \[CLS\]"):
        sentencepiece_tokenizer(other, "albert")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(DataError, match=r"^sentencepiece: not installed: pip install 'headjax\[sentencepiece\]'$"):
        sentencepiece_tokenizer(other)
