"""Tokenizers learned from texts, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

from headjax.core.errors import DataError, require
from headjax.tokenizers.tokenizer import END_OF_TEXT, Tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level byte-pair encoding from texts (Sennrich et al. 2016; over bytes as in GPT-2).

    All 256 bytes are tokens, so any text is encoded and decoded without loss. The same texts give the same tokenizer.
    `vocab_size` counts the bytes, the end-of-text token and the learned merges.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    asks = f"must be at least 257 (bytes and end of text) and below 2**24, got {vocab_size}"
    require(257 <= vocab_size < 2**24, "vocab_size", asks)  # the library reserves the memory of all tokens at once
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=list(_byte_characters().values()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() < vocab_size:
        raise DataError(
            f"vocab_size: the text yields only {backend.get_vocab_size()} tokens, not {vocab_size}; "
            "lower vocab_size, give more text or take the bytes tokenizer"
        )
    return Tokenizer(backend.to_str(), (("eos_token", END_OF_TEXT),))


def byte_tokenizer() -> Tokenizer:
    """Return the tokenizer whose tokens are UTF-8 bytes: id = byte, and 256 ends a text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.BPE(vocab={character: byte for byte, character in _byte_characters().items()}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(backend.to_str(), (("eos_token", END_OF_TEXT),))


TRAINERS: Mapping[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "bpe": train_bpe,
    "bytes": lambda texts, vocab_size: byte_tokenizer(),
}
"""Functions from (training texts, vocabulary size) to a tokenizer, by name. A new algorithm is a new entry."""


@functools.cache
def _byte_characters() -> dict[int, str]:
    """Return the character of each byte: itself where it prints in Latin-1, else the next one from U+0100."""
    from tokenizers import pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {ord(character): character for character in characters if ord(character) < 256}
    others: Iterator[str] = iter(characters[len(table) :])
    return {byte: table[byte] if byte in table else next(others) for byte in range(256)}
