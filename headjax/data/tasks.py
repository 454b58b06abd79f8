"""The papers' tasks by name, and the specifications of those of text: data sets in TFDS and local files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headjax.core.errors import DataError
from headjax.core.serialize import unknown_name
from headjax.data.documents import Document, HeldOut, read_documents
from headjax.data.forms import LanguageForm, PretrainingForm, QuestionForm, TranslationForm
from headjax.data.glue import GLUE_TASKS
from headjax.data.image_data import IMAGE_TASKS
from headjax.data.rows import Row, Rows, RowSource, Split
from headjax.data.task_spec import (
    HELD_OUT,
    ROW_SUFFIXES,
    TFRECORD,
    TaskSpec,
    TfdsSource,
    has_suffix,
    local_rows,
    rows_of,
    split_files,
)
from headjax.data.text_rows import read_questions, text_lines, translation_pairs

TABLES = tuple(suffix for suffix in ROW_SUFFIXES if suffix != ".txt")
TEXTS = (".txt", ".md", ".tokens", ".raw")


def local_sentences(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the lines of text files as rows, or the rows of tables and TFRecords with a column `text`."""
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    return rows_of(spec, split_files(paths, TEXTS), text_lines)


def local_documents(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the documents of text files as rows, or the rows of tables and TFRecords with a column `text`.

    Project Gutenberg's header and licence are left out; each of WikiText's articles is a document. Without a file for
    validation, `headjax.data.documents.HeldOut` holds some of the text out.
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


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    return itertools.chain.from_iterable(map(read_documents, files))


def _rows(read: Callable[[], Iterator[Document]]) -> Iterator[Row]:
    return (Row(document.name, {"text": document.text}) for document in read())


def _inside(paths: Sequence[Path]) -> Iterable[Path]:
    return itertools.chain.from_iterable(path.rglob("*") if path.is_dir() else [path] for path in paths)


def local_squad(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of files in SQuAD's format, or of TFRecords of the fields.

    Files are assigned to splits by name, see `split_files`; if none is for validation, all those not named `train` are.
    """
    try:
        files = split_files(paths, (".json", ".json.gz"))
    except DataError:
        split_files(paths, (TFRECORD,))
        return local_rows(spec, paths)
    if not files["validation"]:
        train = [file for file in files["train"] if "train" in file.name]
        files = {"train": train, "validation": [file for file in files["train"] if file not in train]}
    if not files["validation"]:
        raise DataError(f"{paths[0]}: no file to evaluate on (dev-v1.1.json)")
    return {
        split: RowSource.of([row for file in found for row in read_questions(file)])
        for split, found in files.items()
        if found
    }


def local_pairs(source: str, target: str, spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of line-aligned files `NAME.source` and `NAME.target`, or of tables and TFRecords of both fields.

    Args:
        source, target: the languages.
        spec, paths: see `local_rows`.
    """
    given = [path for path in paths if not path.is_dir()]
    if given and all(has_suffix(path, ROW_SUFFIXES) for path in given):
        return local_rows(spec, paths)
    named = [path.parent / f"{path.name}.{source}{suffix}" for path in given for suffix in ("", ".gz")]
    asked = [path for path in paths if path.is_dir()] + [path for path in named if path.is_file()]
    files = split_files(asked or paths, (f".{source}",))
    return rows_of(spec, files, functools.partial(_pairs, source, target))


def _pairs(source: str, target: str, file: Path) -> Iterator[Row]:
    return translation_pairs(str(file).removesuffix(".gz").removesuffix(f".{source}"), source, target)


BOTH: Mapping[Split, str] = {"train": "train", "validation": "validation"}


def _translation(
    name: str, languages: str, tfds: str = "", splits: Mapping[Split, str] = BOTH, vocab_size: int = 32_768
) -> TaskSpec:
    """Return a task of two languages (`en-de`). TFDS names the features by language, or `src` and `dst`."""
    source, _, target = languages.partition("-")
    fields = {"source": source, "target": target}
    if tfds.startswith("mtnt"):
        fields = {"source": "src", "target": "dst"}
    return TaskSpec(
        name=name,
        form=TranslationForm(length=256),
        local=functools.partial(local_pairs, source, target),
        sources=(TfdsSource(tfds, splits, fields),) if tfds else (),
        vocabulary="bpe",
        vocab_size=vocab_size,
        files=f"`NAME.{source}` with `NAME.{target}`",
        columns={"source": (source,), "target": (target,)},
    )


ANY_TEXT = "text files"
WIKIPEDIA = TfdsSource(
    "wikipedia/20230601.en:1.0.0", {"train": "train[:-5000]", "validation": "train[-5000:]"}, {"text": "text"}
)
BOOKS = TfdsSource("pg19:0.1.1", {"train": "train", "validation": "validation"}, {"text": "book_text"})
C4 = TfdsSource("c4/en:3.1.0", {"train": "train", "validation": "validation[:5000]"}, {"text": "text"})
LM1B = TfdsSource("lm1b:1.1.0", {"train": "train", "validation": "test"}, {"text": "text"})

DOCUMENTS: Mapping[str, tuple[TfdsSource, ...]] = {
    "wikipedia": (WIKIPEDIA,),
    "books": (BOOKS,),
    "c4": (C4,),
    "wikitext": (),
    "text": (),
}
"""Tasks of whole documents. BooksCorpus is no longer distributed; TFDS's books are PG-19, from before 1919."""

WMT14_DE, WMT14_FR = "wmt14_translate/de-en:1.0.0", "wmt14_translate/fr-en:1.0.0"

TEXT_TASKS = (
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
        for name, sources in DOCUMENTS.items()
    ),
    TaskSpec(
        name="bert_pretraining",
        form=PretrainingForm(),
        local=local_documents,
        sources=(WIKIPEDIA, BOOKS),
        files=ANY_TEXT,
    ),
    TaskSpec(
        name="squad",
        form=QuestionForm(),
        local=local_squad,
        sources=(
            TfdsSource(
                "squad/v1.1:3.0.0",
                {"train": "train", "validation": "validation"},
                {
                    "id": "id",
                    "question": "question",
                    "context": "context",
                    "answers": "answers/text",
                    "start": "answers/answer_start/0",
                },
            ),
        ),
        files="SQuAD's JSON",
    ),
    _translation("wmt14_ende", "en-de", WMT14_DE),
    _translation("wmt14_enfr", "en-fr", WMT14_FR, vocab_size=44_512),
    _translation("wmt16_ende", "en-de", "wmt16_translate/de-en:1.0.0"),
    # WMT14 validates on newstest2013 and tests on newstest2014.
    _translation("newstest2013_ende", "en-de", WMT14_DE, {"validation": "validation"}),
    _translation("newstest2014_ende", "en-de", WMT14_DE, {"validation": "test"}),
    _translation("newstest2013_enfr", "en-fr", WMT14_FR, {"validation": "validation"}),
    _translation("newstest2014_enfr", "en-fr", WMT14_FR, {"validation": "test"}),
    _translation("mtnt_enfr", "en-fr", "mtnt/en-fr:1.0.0", {"train": "train", "validation": "test"}),
    _translation("mtnt_fren", "fr-en", "mtnt/fr-en:1.0.0", {"train": "train", "validation": "test"}),
    _translation("iwslt14_deen", "de-en", vocab_size=10_000),
    _translation("multi30k", "en-de", vocab_size=6_000),
)

TASKS: Mapping[str, TaskSpec] = {spec.name: spec for spec in (*TEXT_TASKS, *GLUE_TASKS, *IMAGE_TASKS)}
"""The tasks by name."""


def find_task(name: str) -> TaskSpec:
    """Return a task by name.

    Raises:
        DataError: no task has this name.
    """
    if name not in TASKS:
        raise DataError(f"task: {unknown_name('task', name, TASKS)}")
    return TASKS[name]


def metrics_of(name: str) -> tuple[str, ...]:
    """Return a task's own metrics, the headline first; empty if the task is unknown or has its form's usual metrics."""
    return TASKS[name].metrics if name in TASKS else ()
