"""Text for language models."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headjax.data.passages import Document
from headjax.data.prepared.form import Split
from headjax.data.prepared.language import LanguageForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.split import split
from headjax.data.tasks.local import HELD_OUT, TFRECORD, has_suffix, lines, local_rows, split_files, with_validation
from headjax.data.tasks.spec import Rows, TaskSpec, TfdsSource
from headjax.data.text_files import read_text

TABLES = (".csv", ".tsv", ".json", ".jsonl", TFRECORD)
TEXTS = (".txt", ".md", ".tokens", ".raw")

_LICENCE = re.compile(r"\*\*\* ?(START|END) OF TH(?:E|IS) PROJECT GUTENBERG[^\n]*")
_ARTICLE = re.compile(r"^ = [^=\n].* = *$", re.MULTILINE)


def local_sentences(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Text files whose every line is a row of its own, or tables and TFRecords with a column `text`."""
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    read: dict[Split, list[TaskRow]] = {name: list(lines(files)) for name, files in split_files(paths, TEXTS).items()}
    return with_validation(spec, paths, read)


def local_documents(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Text files, each a document or several, or tables and TFRecords with a column `text`.

    Project Gutenberg's header and licence are left out, WikiText's articles are documents of their own. Where no file
    is for validation, some of the text is held out as `headjax.data.split` does it.
    """
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    files = split_files(paths, TEXTS)
    train, held = ([one for file in files[name] for one in documents(file)] for name in ("train", "validation"))
    if train and not held:
        train, held = split(train, HELD_OUT)
    found: dict[Split, RowSource] = {"validation": _rows(held)}
    return {"train": _rows(train), **found} if train else found


def documents(file: Path) -> list[Document]:
    """The documents of a text file.

    Raises:
        DataError: it cannot be used.
    """
    text = read_text(file)
    marks = {match[1]: match for match in _LICENCE.finditer(text)}
    if "START" in marks:
        text = text[marks["START"].end() : marks["END"].start() if "END" in marks else None]
    starts = [match.start() for match in _ARTICLE.finditer(text)]
    if not starts or text[: starts[0]].strip():
        return [Document(str(file), text)]
    ends = [*starts[1:], len(text)]
    return [
        Document(f"{file}: line {text.count(chr(10), 0, start) + 1}", text[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]


def _rows(found: Iterable[Document]) -> RowSource:
    return RowSource.of([TaskRow(document.name, {"text": document.text}) for document in found])


def _inside(paths: Sequence[Path]) -> Iterable[Path]:
    return itertools.chain.from_iterable(path.rglob("*") if path.is_dir() else [path] for path in paths)


ANY_TEXT = "text files"
WIKIPEDIA = TfdsSource(
    "wikipedia/20230601.en:1.0.0", {"train": "train[:-5000]", "validation": "train[-5000:]"}, {"text": "text"}
)
BOOKS = TfdsSource("pg19:0.1.1", {"train": "train", "validation": "validation"}, {"text": "book_text"})
C4 = TfdsSource("c4/en:3.1.0", {"train": "train", "validation": "validation[:5000]"}, {"text": "text"})
LM1B = TfdsSource("lm1b:1.1.0", {"train": "train", "validation": "test"}, {"text": "text"})

SOURCES: Mapping[str, tuple[TfdsSource, ...]] = {
    "wikipedia": (WIKIPEDIA,),
    "books": (BOOKS,),
    "c4": (C4,),
    "wikitext": (),
    "text": (),
}
"""Tasks of whole documents."""

TASKS = (
    TaskSpec(
        name="lm1b",
        form=LanguageForm(length=256, packed=True),
        local=local_sentences,
        sources=(LM1B,),
        vocabulary="bpe",
        vocab_size=32_000,
        files="text files, a sentence a line",
    ),
    *(
        TaskSpec(
            name=name,
            form=LanguageForm(length=512),
            local=local_documents,
            sources=sources,
            vocabulary="bpe",
            vocab_size=32_000,
            files=ANY_TEXT,
        )
        for name, sources in {
            "wikipedia": (WIKIPEDIA,),
            "books": (BOOKS,),
            "c4": (C4,),
            "wikitext": (),
            "text": (),
        }.items()
    ),
)
