"""A tiny BERT vocabulary, and tables and the rows of tasks in them, that tests share."""

from pathlib import Path

from headjax.data import DataConfig
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = ["a", "good", "bad", "film", "the", "was", "it", "not", "very", "dull", "fun", "un", ",", ".", "!"]
WORDS = [*SPECIAL, *TEXT, "##ny", "##er", "##happy"]


def write_vocabulary(folder: Path) -> Path:
    """A `vocab.txt` of `WORDS`."""
    path = folder / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def film_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of `WORDS`, whose `vocab.txt` is written into a folder."""
    return wordpiece_tokenizer(write_vocabulary(folder))


def write_lines(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def task_rows(name: str, *paths: Path) -> dict[str, list[dict]]:
    """The values of a task's rows in local files, by split."""
    opened = DataConfig(task=name).open([str(path) for path in paths])
    return {split: [row.values for row in source.rows()] for split, source in opened.rows.items()}
