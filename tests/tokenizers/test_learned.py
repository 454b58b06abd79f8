"""Tokenizers that are learned from texts."""

from __future__ import annotations

import pytest

from headjax.core.errors import DataError
from headjax.tokenizers.learned import byte_tokenizer, train_bpe
from tests.tokenizers.test_tokenizer import TEXTS


def test_bytes_are_their_own_ids():
    text = "".join(map(chr, range(300))) + "日本"
    tokenizer = byte_tokenizer()
    assert tokenizer.encode([text])[0].tolist() == list(text.encode())
    assert tokenizer.vocab_size == 257
    assert tokenizer.special_id("eos_token") == 256


def test_bpe_learns_merges_the_same_each_time():
    first, second = train_bpe(TEXTS, 280), train_bpe(TEXTS, 280)
    assert first == second
    assert first.fingerprint == second.fingerprint
    assert first.vocab_size == 280
    assert len(first.encode(["the cat sat"])[0]) < len("the cat sat")
    others = {train_bpe(TEXTS, 281).fingerprint, train_bpe(["another text, " * 4], 260).fingerprint}
    assert len({first.fingerprint, byte_tokenizer().fingerprint, *others}) == 4


def test_a_text_of_n_bytes_has_at_most_n_tokens_beside_the_bytes():
    """Found before anything is learned: the library reserves room for all tokens that are asked for."""
    with pytest.raises(DataError, match=r"^vocab_size: the text yields at most 262 tokens, not 263; lower vocab_size"):
        train_bpe(["aé", "bc"], 263)
    with pytest.raises(DataError, match=r"^vocab_size: the text yields only \d+ tokens, not 262"):
        train_bpe(["aé", "bc"], 262)
