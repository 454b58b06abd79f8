"""`headjax tokenizer`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from headjax.commands.options import CommandOptions, argument, option
from headjax.commands.results import Result, found
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report import numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax tokenizer`."""

    text: tuple[str, ...] = argument("TEXT", "text files, folders of them, or patterns", words="many", reads=True)
    out: str = option(help="folder for tokenizer.json and special_tokens_map.json", metavar="D", writes="new")
    kind: Literal["bpe", "bytes", "sentencepiece"] = option("bpe", "algorithm")
    vocab_size: Size = option(8000, "number of tokens to learn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """A learned vocabulary."""

    title = "Vocabulary"

    kind: str = found()
    vocab_size: int = found("number of tokens", "tokens", numbers.count)
    bytes_per_token: float = found("of the text", "bytes per token", numbers.significant)
    fingerprint: str = found()
    special: Mapping[str, Any] = found("special tokens by role")
    tokenizer: str = found("its folder", said="tokenizer")


def run(options: Options, progress: Progress) -> Found:
    """Learns a vocabulary from text, for `--config.data.tokenizer=D`."""
    from headjax.data.documents import text_files
    from headjax.tokenizers.learned import TRAINERS

    texts = [document.text for document in text_files(options.text)]
    with progress("tokenizer", 2, "step") as bar:
        learned = TRAINERS[options.kind](texts, options.vocab_size)
        bar(1, {})
        tokens = sum(len(ids) for ids in learned.encode(texts))
        bar(2, {})
    learned.save(options.out)
    return Found(
        kind=options.kind,
        vocab_size=learned.vocab_size,
        bytes_per_token=sum(len(text.encode()) for text in texts) / max(tokens, 1),
        fingerprint=learned.fingerprint,
        special=dict(learned.special),
        tokenizer=options.out,
    )
