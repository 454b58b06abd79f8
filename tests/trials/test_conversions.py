"""Conversions to many sizes on a task."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
import numpy as np

from headjax.evaluation.specs import load_task
from headjax.models.config import Output
from headjax.models.tasks import Classification
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from headjax.trials.conversions import BUCKETS, embeddings, expand, prepare_trials
from tests.data.vocabulary import TEXT, write_lines, write_vocabulary
from tests.tiny import text_encoder


def test_sizes_after_slashes_are_targets_each():
    assert expand("grouped:kv_heads=6/4/2") == ["grouped:kv_heads=6", "grouped:kv_heads=4", "grouped:kv_heads=2"]
    assert expand("collaborative:shared_dim=8") == ["collaborative:shared_dim=8"]


def test_an_embedding_is_the_mean_of_a_texts_hidden_states():
    hidden = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    found = embeddings(Output(jnp.asarray(hidden)), {"attention_mask": jnp.asarray(mask)})
    np.testing.assert_array_equal(found, [[hidden[0, :2].mean(axis=0)], [np.zeros(3)]])
    every = embeddings(Output(jnp.asarray(hidden)), {})
    np.testing.assert_array_equal(every[:, 0], hidden.mean(axis=1))


def test_texts_kept_apart_have_embeddings_of_their_own():
    hidden = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    found = embeddings(Output(jnp.asarray(hidden)), {"segment_ids": jnp.asarray([[1, 1, 2, 0]])})
    np.testing.assert_array_equal(found, [[hidden[0, :2].mean(axis=0), hidden[0, 2]]])


def test_texts_are_padded_to_the_lengths_that_are_asked_for_and_every_batch_is_shown(tmp_path):
    tokenizer = wordpiece_tokenizer(write_vocabulary(tmp_path))
    rows = [f"{' '.join(TEXT[: 1 + row])}\t{row % 3}" for row in range(10)]
    model = text_encoder(Classification(classes=3), tokenizer)
    task = load_task(str(write_lines(tmp_path / "rows.tsv", "sentence\tlabel", *rows)), model)
    shown = []

    @contextlib.contextmanager
    def progress(title, total, unit):
        yield lambda done, values: shown.append((title, done, total))

    trials = prepare_trials(model, task, calibration=2, selection=task, batch_size=2, buckets=(5, 8), progress=progress)
    assert trials.own.examples == 10
    lengths = {batch["input_ids"].shape[1] for batch in task.batches(2, buckets=trials.buckets)}
    assert {5, 8} < lengths
    batches = task.count_batches(2, buckets=(5, 8))
    assert batches > task.count_batches(2, buckets=BUCKETS)
    evaluating = [entry for entry in shown if entry[0] == "evaluating the original"]
    assert evaluating == [("evaluating the original", done, batches) for done in range(1, batches + 1)]
    _, done, total = [entry for entry in shown if entry[0] == "calibrating"][-1]
    assert done == total == len(task.first_batches(2, 2, buckets=(5, 8)))
