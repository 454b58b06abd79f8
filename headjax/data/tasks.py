"""The tasks by name: forms, local files, data sets in TFDS, metrics."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headjax.core.class_names import class_numbers
from headjax.core.errors import DataError
from headjax.core.fields import unknown_name
from headjax.data.forms import ImageForm, LabelledForm, LanguageForm, PretrainingForm, QuestionForm, TranslationForm
from headjax.data.local_files import (
    local_cifar,
    local_documents,
    local_glue,
    local_images,
    local_mnist,
    local_pairs,
    local_rows,
    local_sentences,
    local_squad,
)
from headjax.data.rows import Rows, Split
from headjax.data.tables import Rules
from headjax.data.task_spec import FileLayout, TaskSpec, TfdsSource

BOTH: Mapping[Split, str] = {"train": "train", "validation": "validation"}

# Text.

WIKIPEDIA = TfdsSource(
    "wikipedia/20230601.en:1.0.0", {"train": "train[:-5000]", "validation": "train[-5000:]"}, {"text": "text"}
)
BOOKS = TfdsSource("pg19:0.1.1", BOTH, {"text": "book_text"})
"""BooksCorpus is no longer distributed; TFDS's books are PG-19, from before 1919."""

C4 = TfdsSource("c4/en:3.1.0", {"train": "train", "validation": "validation[:5000]"}, {"text": "text"})
LM1B = TfdsSource("lm1b:1.1.0", {"train": "train", "validation": "test"}, {"text": "text"})


def _documents(name: str, *sources: TfdsSource) -> TaskSpec:
    """Return a task of whole documents."""
    form, files = LanguageForm(length=512), "text files"
    return TaskSpec(name, form, local_documents, sources, vocabulary="bpe", vocab_size=32_000, files=files)


SQUAD_FIELDS = {
    "id": "id",
    "question": "question",
    "context": "context",
    "answers": "answers/text",
    "start": "answers/answer_start/0",
}

TEXT = (
    TaskSpec(
        name="lm1b",
        form=LanguageForm(length=256, packed=True),
        local=local_sentences,
        sources=(LM1B,),
        vocabulary="bpe",
        vocab_size=32_000,
        files="text files, a sentence a line",
    ),
    _documents("wikipedia", WIKIPEDIA),
    _documents("books", BOOKS),
    _documents("c4", C4),
    _documents("wikitext"),
    _documents("text"),
    TaskSpec(
        name="bert_pretraining",
        form=PretrainingForm(),
        local=local_documents,
        sources=(WIKIPEDIA, BOOKS),
        files="text files",
    ),
    TaskSpec(
        name="squad",
        form=QuestionForm(),
        local=local_squad,
        sources=(TfdsSource("squad/v1.1:3.0.0", BOTH, SQUAD_FIELDS),),
        files="SQuAD's JSON",
        folders=("squad",),
    ),
)

# Translations.


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
        folders=(f"mt/{name}", name),
    )


WMT14_DE, WMT14_FR = "wmt14_translate/de-en:1.0.0", "wmt14_translate/fr-en:1.0.0"

TRANSLATIONS = (
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

# GLUE (Wang et al. 2019). Class numbers are those of Hugging Face's GLUE, so that published models fit.

_NLI = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")


def _own(text: str, second: str, label: str) -> FileLayout:
    """Return the layout of GLUE's own two files."""
    return FileLayout("train.tsv", "dev.tsv", text, second, label)


def _glue(
    folder: str,
    features: Sequence[str],
    layouts: Sequence[FileLayout],
    examples: int,
    *,
    metrics: Sequence[str] = ("accuracy",),
    classes: Sequence[str] = (),
    labels: Sequence[str] = (),
    other_folders: Sequence[str] = (),
    splits: Mapping[Split, str] = BOTH,
    skips: bool = False,
) -> TaskSpec:
    """Return a task of GLUE."""
    name = folder.replace("-", "").lower()
    columns = dict(zip(("text", "second"), features, strict=False)) | {"label": "label"}
    return TaskSpec(
        name=name,
        form=LabelledForm(pairs=len(features) == 2, classes=tuple(classes)),
        local=local_glue,
        sources=(TfdsSource(f"glue/{name}:2.0.0", splits, columns),),
        files="GLUE's own files",
        metrics=tuple(metrics),
        columns={field: _names(field, layouts) for field in columns},
        folders=(f"glue/{folder}", folder, *other_folders),
        layouts=tuple(layouts),
        labels=tuple(labels or classes),
        examples=examples,
        rules=Rules(raw=True, skips=skips),
    )


def _names(field: str, layouts: Sequence[FileLayout]) -> tuple[str, ...]:
    """Return the names of a field's column in a task's own files."""
    names = dict.fromkeys(getattr(layout, field) for layout in layouts)
    return tuple(name for name in names if not name.isdecimal())


_MRPC = ("#1 String", "#2 String", "Quality")
MNLI = _glue(
    "MNLI",
    ("premise", "hypothesis"),
    [
        FileLayout("train.tsv", "dev_matched.tsv", "sentence1", "sentence2", "gold_label"),
        FileLayout("mnli_dev_matched_gold.tsv", "", "premise", "hypothesis", "gold_label"),
    ],
    392_702,
    classes=_NLI,
    other_folders=("nli",),
    splits={"train": "train", "validation": "validation_matched"},
)
MISMATCHED = TfdsSource("glue/mnli:2.0.0", {"validation": "validation_mismatched"}, MNLI.sources[0].fields)

GLUE_TASKS = (
    _glue(
        "CoLA",
        ("sentence",),
        [_own("3", "", "1"), FileLayout("in_domain_train.tsv", "*_domain_dev.tsv", "3", "", "1")],
        8551,
        metrics=("matthews", "accuracy"),
        classes=("unacceptable", "acceptable"),
        labels=("0", "1"),
    ),
    _glue(
        "SST-2",
        ("sentence",),
        [FileLayout("train.tsv", "dev_glue.tsv", "sentence", "", "label"), _own("sentence", "", "label")],
        67_349,
        classes=("negative", "positive"),
        labels=("0", "1"),
    ),
    _glue(
        "MRPC",
        ("sentence1", "sentence2"),
        [
            _own(*_MRPC),
            FileLayout("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", *_MRPC),
            FileLayout("msr_paraphrase_train.txt", "", *_MRPC),
        ],
        3668,
        metrics=("f1", "accuracy"),
        classes=("not_equivalent", "equivalent"),
        labels=("0", "1"),
    ),
    _glue(
        "STS-B",
        ("sentence1", "sentence2"),
        [_own("sentence1", "sentence2", "score"), FileLayout("stsb-en-train.csv", "stsb-en-dev.csv", "0", "1", "2")],
        5749,
        metrics=("spearman", "pearson"),
    ),
    _glue(
        "QQP",
        ("question1", "question2"),
        [_own("question1", "question2", "is_duplicate")],
        363_846,
        metrics=("accuracy", "f1"),
        classes=("not_duplicate", "duplicate"),
        labels=("0", "1"),
        skips=True,
    ),
    MNLI,
    _glue("QNLI", ("question", "sentence"), [_own("question", "sentence", "label")], 104_743, classes=_ENTAILMENT),
    _glue("RTE", ("sentence1", "sentence2"), [_own("sentence1", "sentence2", "label")], 2490, classes=_ENTAILMENT),
    dataclasses.replace(
        MNLI, name="mnli_mismatched", sources=(MISMATCHED,), local=local_rows, files="", folders=(), layouts=()
    ),
)

# Images.

MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the pixels of MNIST's training images, scaled to [0, 1]."""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

IMAGENET = ImageForm(
    size=224,
    stored=256,
    flip=True,
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    classes=class_numbers(1000),
)


def _cifar(mean: tuple[float, ...], deviation: tuple[float, ...], classes: tuple[str, ...]) -> ImageForm:
    return ImageForm(size=32, stored=32, margin=4, flip=True, mean=mean, deviation=deviation, classes=classes)


def _images(
    name: str,
    form: ImageForm,
    tfds: str,
    local: Callable[[TaskSpec, Sequence[Path]], Rows],
    files: str = "",
    held: str = "test",
) -> TaskSpec:
    source = TfdsSource(tfds, {"train": "train", "validation": held}, {"image": "image", "label": "label"})
    files = f"{files}folders of images by class"
    folders = (f"images/{name}", name)
    return TaskSpec(name, form, local, (source,), vocabulary="none", files=files, folders=folders)


IMAGES = (
    _images(
        "mnist",
        ImageForm(size=28, stored=28, mean=(MNIST_MEAN,), deviation=(MNIST_DEVIATION,), classes=class_numbers(10)),
        "mnist:3.0.1",
        local_mnist,
        "MNIST's own files, ",
    ),
    _images(
        "cifar10",
        _cifar((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), CIFAR10),
        "cifar10:3.0.2",
        local_cifar,
        "CIFAR's binary files, ",
    ),
    _images(
        "cifar100",
        _cifar((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), class_numbers(100)),
        "cifar100:3.0.2",
        local_cifar,
        "CIFAR's binary files, ",
    ),
    _images("imagenet", IMAGENET, "imagenet2012:5.1.0", local_images, held="validation"),
)

TASKS: Mapping[str, TaskSpec] = {spec.name: spec for spec in (*TEXT, *TRANSLATIONS, *GLUE_TASKS, *IMAGES)}
"""The tasks by name."""

GLUE: Mapping[str, TaskSpec] = {name: spec for name, spec in TASKS.items() if spec.layouts}
"""Tasks of GLUE that are read from its own files."""


def find_task(name: str) -> TaskSpec:
    """Return a task by name."""
    if name not in TASKS:
        raise DataError(f"task: {unknown_name('task', name, TASKS)}")
    return TASKS[name]


def metrics_of(name: str) -> tuple[str, ...]:
    """Return a task's own metrics, the headline first; empty if the task is unknown or has its form's usual metrics."""
    return TASKS[name].metrics if name in TASKS else ()
