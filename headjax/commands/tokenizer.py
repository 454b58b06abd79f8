"""`headjax tokenizer`."""

from __future__ import annotations

import dataclasses
from typing import Literal

from headjax.commands.options import CommandOptions, Result, argument, option
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax tokenizer`."""

    text: tuple[str, ...] = argument("TEXT", "text files, folders of them, or patterns", words="many", reads=True)
    out: str = option(help="folder for tokenizer.json and special_tokens_map.json", metavar="D", writes="new")
    kind: Literal["bpe", "bytes", "sentencepiece"] = option("bpe", "algorithm")
    vocab_size: Size = option(8000, "number of tokens to learn")


def run(options: Options, progress: Progress) -> Result:
    """Learns a vocabulary from text, for `--config.data.tokenizer=D`."""
    from headjax.data.documents import text_files
    from headjax.tokenizers.learned import TRAINERS

    texts = [document.text for document in text_files(options.text)]
    with progress("tokenizer", 2, "step") as bar:
        tokenizer = TRAINERS[options.kind](texts, options.vocab_size)
        bar(1, {})
        tokens = sum(len(ids) for ids in tokenizer.encode(texts))
        bar(2, {})
    tokenizer.save(options.out)
    size = sum(len(text.encode()) for text in texts)
    bytes_per_token = size / max(tokens, 1)
    data = {
        "tokenizer": options.out,
        "kind": options.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "special": dict(tokenizer.special),
        "bytes_per_token": bytes_per_token,
    }
    rows = [
        ("tokens", numbers.count(tokenizer.vocab_size)),
        ("text", f"{numbers.count(size)} bytes in {len(texts)} files"),
        ("bytes per token", numbers.significant(bytes_per_token)),
    ]
    return Result(data, [Table((Column("Vocabulary"), Column("")), rows)], f"tokenizer: {options.out}")
