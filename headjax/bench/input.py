"""`headjax bench input`: how fast examples are read, beside the BERT-base train step that consumes them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from headjax.bench.result import BenchResult
from headjax.bench.train_step import BATCH, LENGTH, our_step
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.data.corpus import embedded_corpus
from headjax.data.documents import paragraphs
from headjax.data.encoding import padding_id
from headjax.data.examples import Source, TokenBlocks, sequences
from headjax.data.forms import LanguageForm
from headjax.data.prepare import prepare
from headjax.data.prepared import PreparedData
from headjax.data.rows import Row, RowSource
from headjax.data.stream import LengthBuckets, train_iterator
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.tokenizers.learned import train_bpe
from headjax.tokenizers.tokenizer import Tokenizer

BATCHES, REPEATS, STEPS = 100, 7, 5
HEADLINE = "packed rows from shards"


class ReadingSpeed(NamedTuple):
    """Reading speed of a source.

    Attributes:
        seconds: of one batch, over repeats of `BATCHES` batches.
        tokens: tokens of one batch that are no padding, on average.
    """

    seconds: Timing
    tokens: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are no padding by the median time."""
        return self.tokens / self.seconds.median


def run(progress: Progress = silent) -> BenchResult:
    """Times reading shuffled batches in one thread, and then the step.

    The text is that which ships with Python. Headline: seconds per token, read from ArrayRecord shards whose rows pack
    several paragraphs, over those that the step takes for it.
    """
    with tempfile.TemporaryDirectory() as folder, progress("reading and steps", 4, "part") as bar:
        found: dict[str, ReadingSpeed] = {}
        for done, (name, source) in enumerate(_sources(folder).items(), start=1):
            found[name] = _read(source)
            bar(done, {})
        step = _step_seconds()
        bar(4, {})
    consumed = BATCH * LENGTH / step.median
    ours = {name: {"tokens_per_second": one.tokens_per_second, **one.seconds._asdict()} for name, one in found.items()}
    peer = {"tokens_per_second": consumed, **step._asdict()}
    ratio = consumed / found[HEADLINE].tokens_per_second
    return BenchResult(ours, peer, ratio, (_table(found, step, consumed),))


def _sources(folder: str) -> dict[str, Source]:
    """Return sources of one text: as blocks, in buckets of length, and packed on disk."""
    texts = [part for document in embedded_corpus() for part in paragraphs(document.text) if part.strip()]
    tokenizer = train_bpe(texts, 4096)
    encoded = [ids for ids in tokenizer.encode(texts) if 0 < len(ids) <= LENGTH]
    rows = sequences({"input_ids": encoded}, {}, padding_id(tokenizer), LENGTH)
    return {
        "blocks in memory": TokenBlocks(np.concatenate(encoded), LENGTH),
        "length buckets in memory": LengthBuckets(rows, (16, 32, 64, 96)),
        HEADLINE: _packed(folder, texts, tokenizer),
    }


def _packed(folder: str, texts: list[str], tokenizer: Tokenizer) -> Source:
    found = [Row(f"paragraph {number}", {"text": text}) for number, text in enumerate(texts)]
    splits: Mapping[Any, RowSource] = {"train": RowSource.of(found[10:]), "validation": RowSource.of(found[:10])}
    prepare("bench", LanguageForm(length=LENGTH, packed=True), splits, tokenizer, folder)
    return PreparedData(path=folder).load().train


def _read(source: Source) -> ReadingSpeed:
    iterator: Iterator[Mapping[str, np.ndarray]] = train_iterator(source, BATCH, 0)
    tokens = [_tokens(next(iterator)) for _ in range(BATCHES)]  # the warm-up: files are opened, windows sorted
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(BATCHES):
            next(iterator)
        seconds.append((time.perf_counter() - start) / BATCHES)
    return ReadingSpeed(Timing.of(seconds), float(np.mean(tokens)))


def _tokens(batch: Mapping[str, np.ndarray]) -> int:
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].size


def _step_seconds() -> Timing:
    step, seconds = our_step(), []
    step()  # compiles
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return Timing.of(seconds)


def _table(found: Mapping[str, ReadingSpeed], step: Timing, consumed: float) -> Table:
    rows: list[tuple[Any, ...]] = [
        (name, one.seconds.median, one.seconds.low, one.seconds.high, one.tokens_per_second)
        for name, one in found.items()
    ]
    rows.append(("BERT-base train step", step.median, step.low, step.high, consumed))
    columns = (
        Column("Shuffled batches"),
        Column("Median", numbers.duration, "lower"),
        Column("First quartile", numbers.duration),
        Column("Third quartile", numbers.duration),
        Column("Tokens/s", numbers.count, "higher"),
    )
    notes = (f"Batches of {BATCH}, up to {LENGTH} tokens; padding is not counted. One thread reads.",)
    return Table(columns, rows, notes=notes)
