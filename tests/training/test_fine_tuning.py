from __future__ import annotations

import jax
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_trees_close, close_to
from tests.data.vocabulary import TEXT, WORDS, write_lines, write_vocabulary
from tests.tiny import flatten, multi_head

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences that are positive if they say good."""
    folder = tmp_path_factory.mktemp("fine_tuning")
    generator = np.random.default_rng(0)
    for name, count in (("train", 120), ("dev", 30)):
        sentences = [" ".join(generator.choice(TEXT[:12], generator.integers(2, 14))) for _ in range(count)]
        labelled = [f"{sentence}\t{int('good' in sentence.split())}" for sentence in sentences]
        write_lines(folder / f"{name}.tsv", "sentence\tlabel", *labelled)
    return folder


def config_of(folder, task, **fields):
    model = headjax.EncoderConfig(
        attention=multi_head(), hidden=32, vocab_size=len(WORDS), max_length=16, width=16, num_layers=1,
        dropout=0.0, attention_dropout=0.0, task=task,
    )  # fmt: skip
    data = headjax.data.DataConfig(
        task=str(folder / "train.tsv"), validation=str(folder / "dev.tsv"), length=16, buckets=(8,),
        tokenizer=str(write_vocabulary(folder)),
    )  # fmt: skip
    fields = {
        "model": model, "data": data, "batch_size": 16, "steps": 100, "tensorboard": False,
        "optimizer": headjax.AdamW(schedule=headjax.ConstantRate(peak=0.01)),
    } | fields  # fmt: skip
    return headjax.TrainConfig(**fields)


def test_a_classifier_learns_and_is_evaluated_as_it_was_trained(folder, tmp_path):
    result = headjax.train(config_of(folder, headjax.tasks.Classification(classes=2)), tmp_path / "run")
    assert result.metrics["accuracy"] > 0.9
    assert set(result.metrics) == {"loss", "accuracy", "macro_f1", "matthews"}
    task = headjax.load_task(str(folder / "dev.tsv"), result.model)
    assert headjax.evaluate_task(result.model, task) == close_to(dict(result.metrics), sums=tiny.SUMS)
    assert result.model.history[-1]["data"]["labels"] == ["0", "1"]


def test_seeds_of_a_fine_tuning_start_from_outputs_of_their_own(folder, tmp_path):
    tiny.model(config_of(folder, headjax.tasks.NoTask()).model).save(tmp_path / "model")
    fields = {"model": None, "start": str(tmp_path / "model"), "task": headjax.tasks.Classification(classes=2)}
    config = headjax.TrainConfig(**vars(config_of(folder, headjax.tasks.NoTask())) | fields)
    first, again, other = (config.trained(seed).params for seed in (1, 1, 2))
    assert_trees_close(flatten(first), flatten(again), sums=1)
    first, other = flatten(first), flatten(other)
    differing = {path for path in first if not np.array_equal(first[path], other[path])}
    assert "output/kernel" in differing
    assert all(path.startswith(("output/", "pooler/")) for path in differing)


def test_sentence_embeddings_learn_similarities(folder, tmp_path):
    """From a directory, with the output that compares sentences; equal sentences are similar, others are not."""

    generator = np.random.default_rng(1)
    sentences = [" ".join(generator.choice(TEXT[:12], 5)) for _ in range(40)]
    pairs = [f"{s}\t{s if i % 2 else sentences[i - 1]}\t{5 * (i % 2)}" for i, s in enumerate(sentences)]
    path = write_lines(folder / "pairs.tsv", "first\tsecond\tscore", *pairs)
    base = config_of(folder, headjax.tasks.NoTask()).model
    model = headjax.Model(
        base, base.initialize(jax.random.key(0)), (), config_of(folder, headjax.tasks.NoTask()).data.load().tokenizer
    )
    model.save(tmp_path / "model")
    columns = {"text": "first", "second": "second", "label": "score"}
    data = headjax.data.DataConfig(task=f"similarity:{path}", validation=str(path), columns=columns, length=8)
    fields = {
        "model": None,
        "start": str(tmp_path / "model"),
        "task": headjax.tasks.SentenceSimilarity(),
        "data": data,
        "steps": 40,
    }
    result = headjax.train(
        headjax.TrainConfig(**vars(config_of(folder, headjax.tasks.NoTask())) | fields), tmp_path / "run"
    )
    assert result.metrics["spearman"] > 0.8
    assert result.model.history[0]["action"] == "task"
