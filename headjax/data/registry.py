"""The registry of tasks: each is one record of its form, files, data sets in TFDS, metrics and the papers' settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headjax.core.class_names import class_numbers
from headjax.core.errors import DataError, require
from headjax.core.fields import parse_arguments
from headjax.data import forms
from headjax.data.files import CONLL, aligned_pairs, articles, questions, tagged_words, text_lines, whole_text
from headjax.data.rows import Row, Split
from headjax.data.spec import OWN_HELD_OUT, FileLayout, Recipe, TaskSpec, TfdsSource

BOTH: Mapping[Split, str] = {"train": "train", "validation": "validation"}
TESTED: Mapping[Split, str] = {"train": "train", "validation": "test"}

# Text.

DIVIDED: Mapping[Split, str] = {"train": "train[:-5000]", "validation": "train[-5000:]"}
WIKIPEDIA = TfdsSource("wikipedia/20230601.en:1.0.0", DIVIDED, {"text": "text"})
BOOKS = TfdsSource("pg19:0.1.1", BOTH, {"text": "book_text"})  # from before 1919: BooksCorpus is no longer distributed
C4 = TfdsSource("c4/en:3.1.0", {"train": "train", "validation": "validation[:5000]"}, {"text": "text"})
LM1B = TfdsSource("lm1b:1.1.0", TESTED, {"text": "text"})

TEXTS = (".txt", ".md", ".tokens", ".raw")  # suffixes of text files

PAIR_COLUMNS = {
    "text": ("sentence", "sentence1", "text", "text1", "premise", "question1"),
    "second": ("sentence2", "text2", "hypothesis", "question2"),
    "label": ("label", "score", "labels", "class"),
}
"""Names of the columns of labelled text by field, those that are looked for first before others."""


def _text(
    name: str, *sources: TfdsSource, form: forms.Form = forms.LanguageForm(length=512), **fields: Any
) -> TaskSpec:
    learned: dict[str, Any] = {"vocabulary": "bpe", "vocab_size": 32_000}
    defaults = {"files": "text files", "suffixes": TEXTS, "read": articles, "documents": True, "sources": sources}
    return TaskSpec(name, form, **(learned | defaults | fields))


GIVEN: dict[str, Any] = {"vocabulary": "given", "vocab_size": 0}
OWN_TEXT: dict[str, Any] = {"form": forms.LanguageForm(), "read": whole_text, "vocab_size": 1024}
ANSWERS = {"answers": "answers/text", "start": "answers/answer_start/0"}
SQUAD = TfdsSource("squad/v1.1:3.0.0", BOTH, {"id": "id", "question": "question", "context": "context", **ANSWERS})
QUESTIONS: dict[str, Any] = {
    "form": forms.QuestionForm(), "suffixes": (".json",), "read": questions, "files": "SQuAD's JSON",
    "held_out": OWN_HELD_OUT,
}  # fmt: skip


def _wikitext2(file: Path) -> Iterable[Row]:
    """Return the articles to train on, or the text to evaluate on as it is."""
    return articles(file) if file.name.startswith("wiki.train") else whole_text(file)


def _by_protocol(spec: TaskSpec, words: str) -> tuple[TaskSpec, str]:
    """Read `FOLDER,context=1024,stride=512,split=test`; all can be left out."""
    parts = words.split(",")
    folder = "" if "=" in parts[0] else parts[0]
    usual = {"context": 0, "stride": 0, "split": "validation"}
    options = parse_arguments(",".join(parts[bool(folder) :]), spec.name, **usual)
    require(options.split in ("validation", "test"), "split", f"must be validation or test, got {options.split!r}")
    form = forms.WikitextForm(context=options.context, stride=options.stride, split=options.split)
    return dataclasses.replace(spec, form=form, layouts=(FileLayout("wiki.train.raw*", f"{form.file}*"),)), folder


TEXT = (
    _text("python", **OWN_TEXT, files="the language reference that ships with Python"),
    _text("python_code", **OWN_TEXT, files="the source code of Python's standard library"),
    _text("text", **OWN_TEXT, own=True, columns=PAIR_COLUMNS),
    _text("lm1b", LM1B, form=forms.LanguageForm(length=256, packed=True), read=text_lines, documents=False, recipes=(
        # 4096 tokens on each of 8 cores; 0.1 / sqrt(10,000).
        Recipe("Bhojanapalli 2020", 128, (1e-3,), length=256, warmup_steps=10_000, steps=250_000),
    )),
    _text("wikipedia", WIKIPEDIA),
    _text("books", BOOKS),
    _text("c4", C4),
    _text("wikitext"),
    _text(
        "wikitext2", form=forms.WikitextForm(), read=_wikitext2, arguments=_by_protocol,
        folders=("lm/wikitext-2-raw", "wikitext-2-raw"), files="wiki.valid.raw and wiki.train.raw",
        layouts=(FileLayout("wiki.train.raw*", "wiki.valid.raw*"),),
    ),
    _text("bert_pretraining", WIKIPEDIA, BOOKS, form=forms.PretrainingForm(), **GIVEN, recipes=(
        Recipe("Devlin 2019", 256, (1e-4,), length=128, warmup_steps=10_000, steps=900_000),
        Recipe("Devlin 2019", 256, (1e-5,), length=512, steps=100_000),  # the end of the same line
        Recipe("Bhojanapalli 2020", 1024, (1e-4,), length=128, warmup_steps=5000, steps=450_000),
        Recipe("Bhojanapalli 2020", 1024, (1e-4,), length=512, warmup_steps=3000, steps=50_000),
    )),
    TaskSpec("questions", own=True, **QUESTIONS),
    TaskSpec(
        "squad", sources=(SQUAD,), folders=("squad",), layouts=(FileLayout("train-v1.1.json", "dev-v1.1*.json"),),
        examples=87_599, recipes=(Recipe("Devlin 2019", 32, (5e-5,), length=384, epochs=3),), **QUESTIONS,
    ),
)  # fmt: skip

# Translations.


def _pairs(source: str, target: str, file: Path) -> Iterable[Row]:
    return aligned_pairs(str(file).removesuffix(".gz").removesuffix(f".{source}"), source, target)


def _by_languages(spec: TaskSpec, words: str) -> tuple[TaskSpec, str]:
    """Read `PATH:SOURCE-TARGET`."""
    place, _, languages = words.rpartition(":")
    source, _, target = languages.partition("-")
    if words and (not place or not source or not target or source == target):
        name = f"{spec.name}:{words}"
        raise DataError(f"task: expected translation:PATH:SOURCE-TARGET (data/newstest:de-en), got {name!r}")
    return (of_languages(spec, source, target), place) if words else (spec, "")


def of_languages(spec: TaskSpec, source: str, target: str) -> TaskSpec:
    """Return a task of translations from one language to another: suffixes of its files, or columns of its tables."""
    return dataclasses.replace(
        spec,
        suffixes=(f".{source}",),
        read=functools.partial(_pairs, source, target),
        files=f"`NAME.{source}` with `NAME.{target}`",
        columns={"source": (source,), "target": (target,)},
    )


def _translation(
    name: str, tfds: str = "", splits: Mapping[Split, str] = BOTH, languages: str = "", **more: Any
) -> TaskSpec:
    """Return a task of two languages (`..._ende`). TFDS names the features by language, or `src` and `dst`."""
    languages = languages or name[-4:]
    source, target = languages[:2], languages[2:]
    features = ("src", "dst") if tfds.startswith("mtnt") else (source, target)
    usual: dict[str, Any] = {"vocabulary": "bpe", "vocab_size": 32_768, "folders": (f"mt/{name}", name)}
    if tfds:
        usual["sources"] = (TfdsSource(tfds, splits, {"source": features[0], "target": features[1]}),)
    return of_languages(TaskSpec(name, forms.TranslationForm(length=256), **(usual | more)), source, target)


WMT14_DE, WMT14_FR = "wmt14_translate/de-en:1.0.0", "wmt14_translate/fr-en:1.0.0"
WMT16_DE = "wmt16_translate/de-en:1.0.0"

# Batches of recipes are of packed examples of 256 tokens: 4 x 8192, 4 x 3584 x 2 and 4000 tokens.
# WMT14 validates on newstest2013 and tests on newstest2014.
TRANSLATIONS = (
    TaskSpec(
        "translation", forms.TranslationForm(length=128, packed=False), own=True, vocabulary="bpe", vocab_size=8000,
        arguments=_by_languages,
        files="translation:PATH:SOURCE-TARGET, line-aligned files or a table of both columns", held_out=OWN_HELD_OUT,
    ),
    _translation("wmt14_ende", WMT14_DE, recipes=(Recipe("Liu 2021", 128, (1e-3,), warmup_steps=8000, steps=400_000),)),
    _translation("wmt14_enfr", WMT14_FR, vocab_size=44_512),
    _translation("wmt16_ende", WMT16_DE, recipes=(Recipe("Cordonnier 2020", 112, (7e-4,), warmup_steps=4000),)),
    _translation("newstest2013_ende", WMT14_DE, {"validation": "validation"}),
    _translation("newstest2014_ende", WMT14_DE, {"validation": "test"}),
    _translation("newstest2013_enfr", WMT14_FR, {"validation": "validation"}),
    _translation("newstest2014_enfr", WMT14_FR, {"validation": "test"}),
    _translation("mtnt_enfr", "mtnt/en-fr:1.0.0", TESTED),
    _translation("mtnt_fren", "mtnt/fr-en:1.0.0", TESTED),
    _translation(
        "iwslt14_deen", vocab_size=10_000,
        recipes=(Recipe("Michel 2019", 16, (5e-4,), warmup_steps=4000, steps=50_000),),
    ),
    _translation("multi30k", vocab_size=6_000, languages="ende"),
)  # fmt: skip

# GLUE (Wang et al. 2019). Class numbers are those of Hugging Face's GLUE, so that published models fit.

_ENTAILMENT = "entailment not_entailment"
_OWN = FileLayout("train.tsv", "dev*.tsv")  # the layout of GLUE's own two files


def _glue(
    folder: str, fields: str, examples: int, classes: str = "", metrics: str = "accuracy", **more: Any
) -> TaskSpec:
    """Return a task of GLUE: its features in TFDS, its number of training examples, classes and metrics."""
    name, features = folder.replace("-", "").lower(), fields.split()
    epochs = 10 if name in ("sst2", "rte") else 3
    named = {**dict(zip(("text", "second"), features, strict=False)), "label": "label"}
    usual: dict[str, Any] = {
        "sources": (TfdsSource(f"glue/{name}:2.0.0", more.pop("splits", BOTH), named),),
        "layouts": (_OWN,),
        "files": "GLUE's own files",
        "folders": (f"glue/{folder}", folder),
        "recipes": (Recipe("Cordonnier 2020", 32, (2e-5,), length=128, epochs=epochs), *more.pop("recipes", ())),
    }
    form = forms.LabelledForm(pairs=len(features) == 2, classes=tuple(classes.split()))
    return TaskSpec(name, form, examples=examples, metrics=tuple(metrics.split()), **(usual | more))


MNLI = _glue(
    "MNLI", "premise hypothesis", 392_702, "entailment neutral contradiction",
    columns={"text": ("sentence1",), "second": ("sentence2",), "label": ("gold_label",)},
    layouts=(FileLayout("train.tsv", "dev_matched.tsv"), FileLayout("mnli_dev_matched_gold.tsv", "")),
    folders=("glue/MNLI", "MNLI", "nli"),
    splits={"train": "train", "validation": "validation_matched"},
    recipes=(
        Recipe("Michel 2019", 32, (2e-5,), length=128, epochs=3),
        Recipe("Devlin 2019", 32, (2e-5, 3e-5, 4e-5, 5e-5), epochs=3),
    ),
)  # fmt: skip
MISMATCHED = TfdsSource("glue/mnli:2.0.0", {"validation": "validation_mismatched"}, MNLI.sources[0].fields)
STSB = _glue(
    "STS-B", "sentence1 sentence2", 5749, metrics="spearman pearson", columns={"label": ("score",)},
    layouts=(_OWN, FileLayout("stsb-en-train.csv", "stsb-en-dev.csv", ("0", "1", "2"))),
)  # fmt: skip

GLUE_TASKS = (
    _glue(
        "CoLA", "sentence", 8551, "unacceptable acceptable", "matthews accuracy",
        layouts=(FileLayout("*train.tsv", "*dev.tsv", ("3", "1")),),
    ),
    _glue("SST-2", "sentence", 67_349, "negative positive"),
    _glue(
        "MRPC", "sentence1 sentence2", 3668, "not_equivalent equivalent", "f1 accuracy",
        columns={"text": ("#1 String",), "second": ("#2 String",), "label": ("Quality",)},
        layouts=(_OWN, FileLayout("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")),
    ),
    STSB,
    _glue(
        "QQP", "question1 question2", 363_846, "not_duplicate duplicate", "accuracy f1",
        columns={"label": ("is_duplicate",)},
    ),
    MNLI,
    _glue("QNLI", "question sentence", 104_743, _ENTAILMENT),
    _glue("RTE", "sentence1 sentence2", 2490, _ENTAILMENT),
    dataclasses.replace(MNLI, name="mnli_mismatched", sources=(MISMATCHED,), files="", folders=(), layouts=()),
)  # fmt: skip

# Forms of the user's own tables.


def _own_table(name: str, form: forms.Form, *, columns: Mapping[str, tuple[str, ...]] = {}, **fields: Any) -> TaskSpec:
    defaults: dict[str, Any] = {"own": True, "files": f"{name}:FILE, a table", "held_out": OWN_HELD_OUT}
    return TaskSpec(name, form, columns={**PAIR_COLUMNS, **columns}, **(defaults | fields))


OWN_TABLES = (
    _own_table("classification", forms.LabelledForm(), learns_classes=True),
    _own_table("pairs", forms.LabelledForm(pairs=True), learns_classes=True),
    _own_table(
        "multi_label", forms.MultiLabelForm(), learns_classes=True, columns={"label": ("labels", "label", "classes")}
    ),
    _own_table("regression", forms.LabelledForm()),
    _own_table("similarity", forms.SimilarityForm()),
    _own_table("retrieval", forms.RetrievalForm(), columns={
        "relevance": ("score", "label"), "query": ("question",), "text": ("passage",)
    }),
    _own_table(
        "tokens", forms.TagForm(), columns={"tokens": ("words",), "tags": ("ner_tags", "labels", "pos_tags")},
        learns_classes=True, suffixes=CONLL, read=tagged_words,
        files="tokens:FILE, a file in CoNLL's format or a table of lists",
    ),
    TaskSpec(
        "sentence_similarity", forms.SimilarityForm(scale=5.0), columns=PAIR_COLUMNS,
        layouts=STSB.layouts, files=STSB.files, folders=STSB.folders,
    ),
)  # fmt: skip

# Images: mean and standard deviation are of the pixels of the training images, scaled to [0, 1].

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _images(name: str, form: forms.ImageForm, tfds: str, splits: Mapping[Split, str] = TESTED, **more: Any) -> TaskSpec:
    source = TfdsSource(tfds, splits, {"image": "image", "label": "label"})
    usual: dict[str, Any] = {"files": "folders of images by class", "folders": (f"images/{name}", name)}
    return TaskSpec(name, form, vocabulary="none", sources=(source,), **(usual | more))


MNIST = forms.ImageForm(size=28, stored=28, mean=(0.1307,), deviation=(0.3081,), classes=class_numbers(10))
_CIFAR: dict[str, Any] = {"size": 32, "stored": 32, "margin": 4, "flip": True}
_TEN = forms.ImageForm(mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616), classes=CIFAR10, **_CIFAR)
_HUNDRED = forms.ImageForm(
    mean=(0.5071, 0.4865, 0.4409), deviation=(0.2673, 0.2564, 0.2762), classes=class_numbers(100), **_CIFAR
)
IMAGENET = forms.ImageForm(
    size=224, stored=256, mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225), flip=True,
    classes=class_numbers(1000),
)  # fmt: skip
DEIT = Recipe("Cordonnier 2020", 1024, (1e-3,), epochs=300)
IMAGES = (
    _images("mnist", MNIST, "mnist:3.0.1", files="MNIST's own files, folders of images by class"),
    _images("cifar10", _TEN, "cifar10:3.0.2"),
    _images("cifar100", _HUNDRED, "cifar100:3.0.2"),
    _images("imagenet", IMAGENET, "imagenet2012:5.1.0", BOTH, examples=1_281_167, recipes=(DEIT,)),
    TaskSpec("images", IMAGENET, own=True, vocabulary="none", files="images:FOLDER, as of the image tasks"),
)

TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in (*TEXT, *TRANSLATIONS, *GLUE_TASKS, *OWN_TABLES, *IMAGES)}
"""The tasks by name; a task that is added here is known to every command."""

GLUE: Mapping[str, TaskSpec] = {spec.name: spec for spec in GLUE_TASKS if spec.layouts}
"""Tasks of GLUE that are read from its own files."""
