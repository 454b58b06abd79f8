"""Translation: WMT, IWSLT, newstest, MTNT, Multi30k."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headjax.data.parallel_text import ParallelText
from headjax.data.prepared.form import Split
from headjax.data.prepared.rows import TaskRow
from headjax.data.prepared.translation import TranslationForm
from headjax.data.tasks.local import SUFFIXES, has_suffix, local_rows, rows_of, split_files
from headjax.data.tasks.spec import Rows, TaskSpec, TfdsSource

BOTH: Mapping[Split, str] = {"train": "train", "validation": "validation"}


def local_pairs(source: str, target: str, spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Line-aligned files `NAME.source` and `NAME.target`, also packed; or tables and TFRecords of both fields.

    Args:
        source, target: the languages.
        spec, paths: see `local_rows`.
    """
    given = [path for path in paths if not path.is_dir()]
    if given and all(has_suffix(path, SUFFIXES) for path in given):
        return local_rows(spec, paths)
    named = [path.parent / f"{path.name}.{source}{suffix}" for path in given for suffix in ("", ".gz")]
    asked = [path for path in paths if path.is_dir()] + [path for path in named if path.is_file()]
    files = split_files(asked or paths, (f".{source}",))
    return rows_of(spec, files, functools.partial(_pairs, source, target))


def _pairs(source: str, target: str, file: Path) -> Iterator[TaskRow]:
    base = str(file).removesuffix(".gz").removesuffix(f".{source}")
    config = ParallelText(validation=base, source=source, target=target)
    for number, pair in enumerate(config.pairs(base)):
        yield TaskRow(f"{base}: pair {number}", pair._asdict())


def _spec(
    name: str, languages: str, tfds: str = "", splits: Mapping[Split, str] = BOTH, vocab_size: int = 32_768
) -> TaskSpec:
    """A task of two languages: `en-de`. TFDS names the features by language, or `src` and `dst`."""
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


WMT14_DE, WMT14_FR = "wmt14_translate/de-en:1.0.0", "wmt14_translate/fr-en:1.0.0"

TASKS = (
    _spec("wmt14_ende", "en-de", WMT14_DE),
    _spec("wmt14_enfr", "en-fr", WMT14_FR, vocab_size=44_512),
    _spec("wmt16_ende", "en-de", "wmt16_translate/de-en:1.0.0"),
    # WMT14 validates on newstest2013 and tests on newstest2014.
    _spec("newstest2013_ende", "en-de", WMT14_DE, {"validation": "validation"}),
    _spec("newstest2014_ende", "en-de", WMT14_DE, {"validation": "test"}),
    _spec("newstest2013_enfr", "en-fr", WMT14_FR, {"validation": "validation"}),
    _spec("newstest2014_enfr", "en-fr", WMT14_FR, {"validation": "test"}),
    _spec("mtnt_enfr", "en-fr", "mtnt/en-fr:1.0.0", {"train": "train", "validation": "test"}),
    _spec("mtnt_fren", "fr-en", "mtnt/fr-en:1.0.0", {"train": "train", "validation": "test"}),
    _spec("iwslt14_deen", "de-en", vocab_size=10_000),
    _spec("multi30k", "en-de", vocab_size=6_000),
)
