"""Data of a run or a command: one config for every task, read from files or made up, in memory or in shards."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from headjax.core.class_names import ClassIndex, class_numbers, is_missing, reorder, sorted_names, tell_nothing
from headjax.core.errors import DataError, HeadjaxError, require, within
from headjax.core.fields import Checked, Count, Rate, Size, unknown_name
from headjax.core.programs import Share
from headjax.data.examples import Mapped, Padded, TaskData
from headjax.data.files import ImageRows, image_rows, library_sources, reference_topics
from headjax.data.forms import Form, ImageForm, LabelledForm, QuestionForm, SimilarityForm
from headjax.data.forms.form import Stored, load_rows, task_data
from headjax.data.forms.images import preprocessing_of
from headjax.data.forms.labelled import finite
from headjax.data.forms.questions import usual_stride
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split, hold_out_files
from headjax.data.source import Source, first_file, resolve
from headjax.data.spec import TaskSpec, find_layout, task_rows
from headjax.data.store import load_prepared
from headjax.data.tables import header
from headjax.storage.paths import path_of, source_of
from headjax.tokenizers.files import open_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import TRAINERS, WORDPIECE_SPECIAL, train_bpe, wordpiece_of

ROOT = "HEADJAX_DATA"  # environment variable that names the folder in which data sets are looked for
EMBEDDED = {"python": reference_topics, "python_code": library_sources}  # tasks whose texts every Python carries


class Opened(NamedTuple):
    """The rows of a task, and the form that encodes them."""

    spec: TaskSpec
    form: Form
    rows: Rows
    place: str
    images: str = ""  # hash of images, which are read from their files when they are asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Examples of a task: its own data set, the user's files in its form, or what `headjax prepare` wrote.

    Attributes:
        task: a task's name, such as `sst2`, whose files are looked for under the folder that the environment variable
            HEADJAX_DATA names; `NAME:PATH` (a file, a folder or a pattern); or a path, whose form is recognised.
        validation: path of the examples to evaluate on; empty takes the files whose names say so (`dev`, `valid`), or
            holds some rows out.
        whole: whether all rows are evaluated on, and none trained on.
        validation_fraction: approximate share of the rows that is held out; 0 is the task's own.
        columns: columns of a table by field (`text`, `second`, `label`, `source`, `target`, ...) where they have other
            names than usual; numbers from 0 where a table has no header.
        form: other values of fields of the task's form, such as `packed`, `stride`, `size`, `mean`.
        length: number of tokens of an example; 0 is the form's own.
        classes: names of the classes in the order of their numbers; empty takes the task's own, or the labels of the
            training rows, sorted (as numbers if they all are).
        tokenizer: the tokenizer if the model brings none: `bpe`, learned from the training text; `bytes`;
            a BERT's `vocab.txt`; or a folder with a tokenizer or a model. Empty: `bpe` if a task learns one.
        vocab_size: number of tokens to learn; 0 is the task's own.
        limit: number of examples to evaluate on that are read, from the start; 0 is all.
        buckets: lengths to which training batches are padded, besides the longest example's; one compilation each.
        preprocessing: fields of the form of images that a model's files set.
        seed: seed of random choices of the form.
        rehearsal: number of made-up examples in place of the task's own, to rehearse a run; 0 for none.
    """

    task: str
    validation: str = ""
    whole: bool = False
    validation_fraction: Rate = 0.0
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    form: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    length: Count = 0
    classes: tuple[str, ...] = ()
    tokenizer: str = ""
    vocab_size: Count = 0
    limit: Count = 0
    buckets: tuple[Size, ...] = ()
    preprocessing: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    seed: Count = 0
    rehearsal: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.task), "task", "name a task, a path, or NAME:PATH")

    @functools.cached_property
    def source(self) -> Source:
        """The task's record, with the path, the columns and the labels of its data."""
        return resolve(self.task, columns=self.columns)

    def for_classes(self, names: Sequence[str]) -> DataConfig:
        """Return the same data with its classes numbered as a model numbers its own, if the data has classes."""
        source = self.source
        if self.rehearsal or source.prepared or not source.has_classes:
            return self
        known = self.classes or source.form.label_names
        if tell_nothing(names):
            return self if known else dataclasses.replace(self, classes=class_numbers(len(names)))
        if known and reorder(names, known) is None:
            where = source.path if source.spec.own else source.spec.name
            raise DataError(f"{where}: its classes are {', '.join(known)}; the model's are {', '.join(names)}")
        return dataclasses.replace(self, classes=tuple(names))

    def for_files(self, files: Mapping[str, bytes]) -> DataConfig:
        """Return the same data, read as the files that came with a model say (`Model.files`)."""
        return dataclasses.replace(self, preprocessing=self.preprocessing or preprocessing_of(files))

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        """Read and encode the data, with the model's tokenizer or one of its own; nothing is written to disk."""
        with self._hint():
            data = self._rehearsed(tokenizer) if self.rehearsal else self._load(tokenizer)
        if not self.buckets or not len(data.train):
            return data
        if not isinstance(data.train, Padded):
            raise DataError("config.data.buckets: the examples of this task are all of one length")
        return data._replace(train=dataclasses.replace(data.train, bounds=self.buckets))

    @contextlib.contextmanager
    def _hint(self) -> Iterator[None]:
        """Add to errors of the user's files the form that they look like, if it is another one than the task's."""
        try:
            yield
        except DataError as error:
            better = ""
            with contextlib.suppress(HeadjaxError, OSError):
                spec, path = self.source.spec, self.source.path
                if path and path != self.task and not self.columns:
                    likely = resolve(path)
                    kinds = [(type(each.form), getattr(each.form, "pairs", False)) for each in (likely, spec)]
                    if kinds[0] != kinds[1] or (spec.own and likely.spec.name != spec.name):
                        better = f"; it looks like {likely.task}"
            if better not in str(error):
                error.args = (f"{error}{better}",)
            raise

    def _load(self, tokenizer: Tokenizer | None) -> TaskData:
        if self.source.prepared:
            return load_prepared(source_of(self.source.path), tokenizer, self._fields(), self.preprocessing)
        spec, form, rows, place, images = self.open()
        if isinstance(form, ImageForm):
            stored: dict[Split, Stored] = {}
            for split, source in rows.items():  # an image is read from its file, and encoded, each time
                records = Mapped(Mapped(range(source.count), cast(Any, source.at)), form.record)
                stored[split] = Stored(records, np.ones(source.count), {"examples": source.count})
            return task_data(form, None, stored, {"images": place, "data": images}, spec.metrics)
        read: dict[Split, list[Row]] = {split: [*rows[split].rows()] if split in rows else [] for split in SPLITS}
        read["validation"] = read["validation"][: self.limit or None]
        tokenizer = tokenizer or self._tokenizer(spec, (text for row in read["train"] for text in form.texts(row)))
        data = load_rows(form, read, tokenizer, {"text": place}, spec.metrics, (self.seed,))
        if "f1" not in spec.metrics or not self.classes or data.measured is None:
            return data
        # GLUE's F1 is that of its class 1, whatever number the model has for it.
        positive = ClassIndex(self.classes).find(spec.form.label_names[1])
        arguments = {**data.measured.arguments, "positive": positive}
        return data._replace(measured=data.measured._replace(arguments=arguments))

    def open(self, paths: Sequence[str] = (), rows: Rows | None = None) -> Opened:
        """Return the rows of the task's files, of these paths or of its own, and their form; or rows of elsewhere."""

        def hinted(source: RowSource, share: Share) -> Iterator[Row]:
            with self._hint():
                yield from source.read(share)

        with self._hint():
            opened = self._open(paths, rows)
        sources = {
            split: dataclasses.replace(source, read=functools.partial(hinted, source))
            for split, source in opened.rows.items()
        }
        return opened._replace(rows=sources)

    def _open(self, paths: Sequence[str], rows: Rows | None) -> Opened:
        spec, path = self.source.spec, self.source.path
        if rows is not None:
            return Opened(spec, self._form(spec), rows, spec.name)
        locations = [*paths] or ([path] if path else [])
        if spec.name in EMBEDDED and not locations:
            texts = hold_out_files(EMBEDDED[spec.name](), self.validation_fraction or spec.held_out)
            return Opened(spec, self._form(spec), texts, spec.files)
        train = [spec.located(source_of(location)) for location in locations] or [self._folder(spec)]
        validation = [spec.located(source_of(self.validation))] if self.validation else []
        place = ", ".join(locations) or str(train[0])
        if isinstance(spec.form, ImageForm):
            images = image_rows(train[0])
            return Opened(spec, self._image_form(spec, images, place), images.rows, place, images.fingerprint)
        form = self._form(spec, train[0])
        read, fraction = dataclasses.replace(spec, form=form), self.validation_fraction
        sources = task_rows(read, train, validation, columns=self.columns, fraction=fraction, whole=self.whole)
        return Opened(spec, self._learned(form, sources, place), sources, place)

    def _folder(self, spec: TaskSpec) -> Path:
        """Return the folder of a task's own files under `ROOT`."""
        layouts = " or ".join(" and ".join(filter(None, layout[:2])) for layout in spec.layouts)
        expected, names = layouts or spec.files, spec.folders
        if not (root := os.environ.get(ROOT)):
            raise DataError(f"{spec.name}: set {ROOT} to the folder that holds {names[0]}, or give that one's path")
        for folder in (source_of(root) / name for name in names):
            if find_layout(spec, folder) if spec.layouts else folder.is_dir():
                return folder
        raise DataError(f"{spec.name}: {ROOT} ({root}) has no folder {' or '.join(names)} with {expected}")

    def _fields(self) -> dict[str, Any]:
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in self.form.items()}
        return fields | ({"length": self.length} if self.length else {})

    def _form(self, spec: TaskSpec, path: Path | None = None) -> Form:
        """Return the task's form with the fields that are asked for; one's own tables may have second texts."""
        fields = self._fields()
        known = {field.name for field in dataclasses.fields(spec.form)}
        for name in fields:
            require(name in known, f"form.{name}", unknown_name("field", name, known))
        if isinstance(spec.form, QuestionForm) and "stride" not in fields:
            fields["stride"] = usual_stride(fields.get("length", spec.form.length))
        if spec.own and isinstance(spec.form, LabelledForm) and not spec.form.pairs and path is not None:
            there = self.columns or header(first_file(str(path)))
            fields["pairs"] = "second" in there or spec.column("second", there) != "second"
        with within("form"):
            return dataclasses.replace(spec.form, **fields)

    def _learned(self, form: Form, rows: Rows, place: str) -> Form:
        """Return the form with what stands in the rows: classes of the training rows, the largest similarity."""
        if self.source.spec.own and isinstance(form, SimilarityForm) and "scale" not in self.form:
            label = [*form.fields][-1]
            labels = ((row.place, row.values[label]) for source in rows.values() for row in source.rows())
            scores = [finite(place, value) for place, value in labels if not is_missing(value, numbers=True)]
            return dataclasses.replace(form, scale=max([1.0, *scores]))
        if not self.source.has_classes:
            return form
        classes = self.classes or form.label_names
        if not classes:
            source = rows.get("train") or rows["validation"]
            names = {label for row in source.rows() for label in form.labels_of(row)}
            names = names if names == {"+", "-"} else {label for label in names if not is_missing(label)}
            if not names:
                raise DataError(f"{place}: no row has a label in the column {self.columns.get('label', 'label')}")
            classes = sorted_names(names)
        return dataclasses.replace(form, classes=classes)  # type: ignore[call-arg]

    def _image_form(self, spec: TaskSpec, images: ImageRows, place: str) -> ImageForm:
        """Return the form of images: that of their data set, at the size that is asked for or that they have."""
        usual = cast(ImageForm, TASKS["mnist" if images.mnist else "imagenet"].form if spec.own else spec.form)
        if not spec.own and len(images.classes) != len(usual.classes) and not images.mnist:
            has = f"{spec.name} has {len(usual.classes)} classes"
            raise DataError(f"{place}: {len(images.classes)} folders of images, but {has}; name it images:{place}")
        if images.mnist:
            side = min(next(iter(images.rows["train"].rows())).values["image"].shape)
            usual = dataclasses.replace(usual, size=side, stored=side)
        usual = usual.preprocessed(self.preprocessing)
        fields: dict[str, Any] = {"classes": images.classes, **self._fields()}
        fields.setdefault("stored", round(usual.stored * fields.get("size", usual.size) / usual.size))
        with within("form"):
            return dataclasses.replace(usual, **fields)

    def _tokenizer(self, spec: TaskSpec, texts: Iterable[str]) -> Tokenizer:
        """Return a tokenizer for a model that brings none."""
        name = self.tokenizer or ("bpe" if spec.vocabulary == "bpe" else "")
        if not name:
            raise DataError("config.data.tokenizer: the model brings no tokenizer; name a vocab.txt or a folder")
        if name not in TRAINERS:
            known = path_of(name).expanduser().exists()
            require(known, "tokenizer", f"{unknown_name('tokenizer', name, TRAINERS)}, and there is no such path")
            return open_tokenizer(name)
        texts = [*texts]
        if not texts and name != "bytes":
            raise DataError("config.data.tokenizer: there is no text to learn a vocabulary from")
        return TRAINERS[name](texts, self.vocab_size or spec.vocab_size)

    def _rehearsed(self, tokenizer: Tokenizer | None) -> TaskData:
        """Return made-up examples in the form of a task; a quarter as many are evaluated on, at least one."""
        spec = self.source.spec
        known = {field.name for field in dataclasses.fields(spec.form)}
        sizes: dict[str, Any] = {"length": 96, "stride": 24, "size": 32, "stored": 36}
        form = dataclasses.replace(spec.form, **{name: size for name, size in sizes.items() if name in known})
        rows = made_up_rows(form, self.rehearsal + max(self.rehearsal // 4, 1))
        texts = [text for row in rows for text in form.texts(row)]
        if tokenizer is None and spec.vocabulary == "bpe":
            tokenizer = train_bpe(texts, VOCABULARY)
        elif tokenizer is None and form.reads_text:  # one like BERT's whose pieces are single characters
            letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
            pieces = [*WORDPIECE_SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters)]
            tokenizer = wordpiece_of(pieces[:VOCABULARY], "made-up vocabulary")
        splits: dict[Split, list[Row]] = {"train": rows[: self.rehearsal], "validation": rows[self.rehearsal :]}
        info = {"text": "made up to rehearse", "task": spec.name}
        return load_rows(form, splits, tokenizer if form.reads_text else None, info, spec.metrics)


VOCABULARY = 320  # number of tokens of the vocabularies learned from made-up texts
CHARACTERS = 120  # number of characters of a made-up text


def made_up_rows(form: Form, count: int) -> list[Row]:
    """Return rows of the form's types of fields, the same in every process; an answer is its paragraph's first word."""
    texts = [row.values["text"].strip()[:CHARACTERS] for row in reference_topics()]
    rows = []
    for index in range(count):
        text, classes = texts[index % len(texts)], len(form.label_names)
        values: dict[str, Any] = {
            "text": text,
            "texts": (text.split()[0],),
            "integer": 0,
            "number": float(index % 2),
            "label": index % classes if classes else float(index % 6),
        }
        if "image" in form.wanted.values():
            shape = (form.stored, form.stored, len(form.mean))  # type: ignore[attr-defined]
            values["image"] = np.random.default_rng(index).integers(0, 256, shape).astype(np.uint8)
        rows.append(Row(f"made-up row {index}", {name: values[what] for name, what in form.wanted.items()}))
    return rows
