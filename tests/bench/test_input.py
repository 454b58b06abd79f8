"""The reading benchmark: every way to read counts the same tokens, and padding counts nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.bench import input as bench
from headjax.data.documents import Document
from headjax.data.stream import train_iterator


@pytest.fixture
def small(monkeypatch):
    text = "".join(f"Paragraph {i} says {'more and ' * (i % 40)}no more than {i * i}.\n\n" for i in range(400))
    monkeypatch.setattr(bench, "embedded_corpus", lambda: [Document("text", text)])
    monkeypatch.setattr(bench, "train_bpe", lambda texts, size: bench_tokenizer())
    monkeypatch.setattr(bench, "BATCHES", 3)
    monkeypatch.setattr(bench, "REPEATS", 2)


def bench_tokenizer():
    from headjax.tokenizers.learned import byte_tokenizer

    return byte_tokenizer()


def test_padding_is_not_counted(small, tmp_path):
    sources = bench._sources(str(tmp_path))
    for name, source in sources.items():
        found = bench._read(source)
        batch = next(train_iterator(source, bench.BATCH, 0))
        assert batch["input_ids"].shape[0] == bench.BATCH
        assert 0 < found.tokens <= bench.BATCH * bench.LENGTH
        assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds.median)
        if name == bench.HEADLINE:
            assert np.unique(batch["segment_ids"]).size > 2  # several paragraphs in a row
            assert found.tokens < bench.BATCH * bench.LENGTH


def test_the_ratio_is_that_of_seconds_per_token(small, monkeypatch):
    monkeypatch.setattr(bench, "our_step", lambda: lambda: None)
    result = bench.run()
    assert result.ratio == pytest.approx(
        result.peer["tokens_per_second"] / result.ours[bench.HEADLINE]["tokens_per_second"]
    )
    assert len(result.tables[0].rows) == len(result.ours) + 1
