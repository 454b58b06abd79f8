"""Tokenizers that are learned from texts."""

from __future__ import annotations

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
