"""`headjax tokenizer`."""

from __future__ import annotations

import argparse

from headjax.commands.command import Command, Result
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("text", metavar="TEXT", nargs="+", help="text files, folders of them, or patterns")
    parser.add_argument(
        "--out", required=True, metavar="D", help="folder for tokenizer.json and special_tokens_map.json"
    )
    parser.add_argument(
        "--kind", choices=("bpe", "bytes", "sentencepiece"), default="bpe", help="algorithm (default bpe)"
    )
    parser.add_argument("--vocab-size", type=int, default=8000, metavar="N", help="tokens to learn (default 8000)")


def run(options: argparse.Namespace, progress: Progress) -> Result:
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
    data = {
        "tokenizer": options.out,
        "kind": options.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "special": dict(tokenizer.special),
        "bytes_per_token": size / max(tokens, 1),
    }
    rows = [
        ("tokens", numbers.count(tokenizer.vocab_size)),
        ("text", f"{numbers.count(size)} bytes in {len(texts)} files"),
        ("bytes per token", numbers.significant(data["bytes_per_token"])),
    ]
    return Result(data, [Table((Column("Vocabulary"), Column("")), rows)], f"tokenizer: {options.out}")


COMMAND = Command("tokenizer", "a vocabulary learned from text", arguments, run)
