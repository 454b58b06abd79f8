"""Text for language models."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headjax.data.passages import Document
from headjax.data.prepared.form import Split
from headjax.data.prepared.language import LanguageForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.split import HeldOut
from headjax.data.tasks.local import HELD_OUT, TFRECORD, has_suffix, local_rows, rows_of, split_files, text_lines
from headjax.data.tasks.spec import Rows, TaskSpec, TfdsSource
from headjax.data.text_files import read_lines

TABLES = (".csv", ".tsv", ".json", ".jsonl", TFRECORD)
TEXTS = (".txt", ".md", ".tokens", ".raw")

_LICENCE = re.compile(r"\*\*\* ?(START|END) OF TH(?:E|IS) PROJECT GUTENBERG[^\n]*")
_ARTICLE = re.compile(r" = [^=\n].* = *$")

PREAMBLE = 100_000
"""Characters of a file within which Project Gutenberg's header ends."""

LONGEST = 2**24
"""Characters of a document after which the next blank line ends it; the next line at twice as many."""


def local_sentences(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Text files whose every line is a row of its own, or tables and TFRecords with a column `text`."""
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    return rows_of(spec, split_files(paths, TEXTS), text_lines)


def local_documents(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Text files, each a document or several, or tables and TFRecords with a column `text`.

    Project Gutenberg's header and licence are left out, WikiText's articles are documents of their own. Where no file
    is for validation, some of the text is held out as `headjax.data.split` does it.
    """
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    files = split_files(paths, TEXTS)
    read: dict[Split, Callable[[], Iterator[Document]]] = {
        split: functools.partial(_documents, found) for split, found in files.items() if found
    }
    if "validation" not in read:
        parts = HeldOut(read["train"], HELD_OUT)
        read = {"train": parts.train, "validation": parts.validation}
    return {split: RowSource(functools.partial(_rows, found)) for split, found in read.items()}


def documents(file: Path) -> Iterator[Document]:
    """The documents of a text file, one after another.

    Raises:
        DataError: it cannot be used.
    """
    place, size, articles, any_text = str(file), 0, False, False
    held: list[str] = []
    for number, line in enumerate(_story(file), start=1):
        heading = _ARTICLE.match(line) and (articles or not any_text)
        too_long = size >= LONGEST and (not line.strip() or size >= 2 * LONGEST)
        if (heading and articles) or too_long:
            yield Document(place, "".join(held))
        if heading or too_long:
            held, size, articles = [], 0, articles or bool(heading)
            place = f"{file}: line {number}"
        held.append(line)
        size += len(line)
        any_text = any_text or bool(line.strip())
    yield Document(place, "".join(held))


def _story(file: Path) -> Iterator[str]:
    """The lines of a file, without what Project Gutenberg puts before and after them."""
    lines, size = read_lines(file), 0
    head: list[str] = []
    for line in lines:
        head.append(line)
        size += len(line)
        mark = _LICENCE.search(line)
        if mark is not None and mark[1] == "START":
            story = itertools.takewhile(lambda one: "END" not in _LICENCE.findall(one), lines)
            yield from itertools.chain([line[mark.end() :]], story)
            return
        if size > PREAMBLE:
            break
    yield from itertools.chain(head, lines)


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    return itertools.chain.from_iterable(map(documents, files))


def _rows(read: Callable[[], Iterator[Document]]) -> Iterator[TaskRow]:
    return (TaskRow(document.name, {"text": document.text}) for document in read())


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
