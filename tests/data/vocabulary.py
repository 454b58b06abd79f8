"""A tiny BERT vocabulary and tables that tests of labelled text share."""

from __future__ import annotations

from pathlib import Path

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = ["a", "good", "bad", "film", "the", "was", "it", "not", "very", "dull", "fun", "un", ",", ".", "!"]
WORDS = [*SPECIAL, *TEXT, "##ny", "##er", "##happy"]


def write_vocabulary(folder: Path) -> Path:
    """A `vocab.txt` of `WORDS`."""
    path = folder / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def write_lines(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
