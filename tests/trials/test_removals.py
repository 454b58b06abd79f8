"""Conversions and removals are tried as commands would do them, and every trial is judged beside the original model."""

import contextlib
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.data.examples import TokenBlocks
from headjax.data.task import TaskData
from headjax.evaluation.measures import LanguageModelling
from headjax.evaluation.selection import split_task
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import Task, evaluate_task
from headjax.heads.agreement import agreement
from headjax.heads.ordering import random_order
from headjax.heads.pruning import prune
from headjax.heads.reconstruction import reconstruct
from headjax.models.config import Output
from headjax.models.tasks import Classification
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from headjax.trials.conversions import BUCKETS, embeddings, expand, prepare_trials
from headjax.trials.removals import Removal, parse_repair, prepare_removals
from tests import tiny
from tests.closeness import close_to
from tests.data.vocabulary import TEXT, write_lines, write_vocabulary
from tests.tiny import text_encoder


def test_sizes_after_slashes_are_targets_each():
    assert expand("grouped:kv_heads=6/4/2") == ["grouped:kv_heads=6", "grouped:kv_heads=4", "grouped:kv_heads=2"]
    assert expand("collaborative:shared_dim=8") == ["collaborative:shared_dim=8"]


HIDDEN = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("hidden", "batch", "wanted"),
    [
        (HIDDEN, {}, HIDDEN.mean(axis=1)[:, None]),
        (HIDDEN, {"attention_mask": [[1, 1, 0, 0], [0, 0, 0, 0]]}, [[HIDDEN[0, :2].mean(axis=0)], [np.zeros(3)]]),
        # Texts that are kept apart have embeddings of their own.
        (HIDDEN[:1], {"segment_ids": [[1, 1, 2, 0]]}, [[HIDDEN[0, :2].mean(axis=0), HIDDEN[0, 2]]]),
    ],
)
def test_an_embedding_is_the_mean_of_a_texts_hidden_states(hidden, batch, wanted):
    given = {name: jnp.asarray(array) for name, array in batch.items()}
    np.testing.assert_array_equal(embeddings(Output(jnp.asarray(hidden)), given), wanted)


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


DRAWN = np.random.default_rng(0).integers(0, 31, 12 * 40)
TASK = Task("text", TaskData(None, (), TokenBlocks(DRAWN, 12), {}), LanguageModelling())


@pytest.fixture(scope="module")
def trials():
    model = tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer()))
    parts = split_task(TASK)
    return prepare_removals(model, parts.evaluation, parts.selection, calibrate=16, batch_size=8)


@pytest.mark.whole
def test_a_trial_is_the_pruned_and_repaired_model(trials):
    removal = Removal("random", "50%", draw=1)
    bare, repaired = (trials.run(removal, repair) for repair in ("none", "reconstruct"))
    removed = random_order(trials.model.config, 1)[:4]
    batches = trials.calibration(1)
    assert (bare.removed, bare.repair, repaired.repair, repaired.solved) == (4, "none", "reconstruct", 2)
    task = split_task(TASK).evaluation
    for trial, model in (
        (bare, prune(trials.model, removed)),
        (repaired, reconstruct(trials.model, batches, removed).model),
    ):
        assert trial.metrics["perplexity"] == close_to(evaluate_task(model, task)["perplexity"], sums=16 * tiny.SUMS)
        apart = agreement(trials.model, model, task.batches(8)).value
        assert trial.agreement == close_to(apart, sums=64 * tiny.SUMS)
    assert repaired.against_none is not None
    assert bare.against_none is None
    change = np.log(bare.metrics["perplexity"]) - np.log(trials.own.metrics["perplexity"])
    assert bare.against_whole["difference"] == close_to(change, sums=64 * tiny.SUMS)


def test_draws_take_other_examples_and_the_same_ones_again(trials):
    first, again, other = (trials.calibration(draw)[0]["input_ids"] for draw in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()


def test_shares_are_of_the_heads_of_the_stacks(trials):
    trial = trials.run(Removal("random", "25%", 0, ("decoder",)), "none")
    assert (trial.removed, trials.total_heads(("decoder",))) == (2, 8)
    with pytest.raises(HeadjaxError, match=r"remove: 9 asks for 9 heads, the model has 8$"):
        trials.run(Removal("random", "9", 0), "none")
    with pytest.raises(HeadjaxError, match=r"remove: 9 asks for 9 heads, the model has 8 in decoder$"):
        trials.run(Removal("random", "9", 0, ("decoder",)), "none")


def test_the_agreement_may_be_taken_on_the_first_batches_alone(trials, monkeypatch):
    monkeypatch.setattr("headjax.trials.removals.KEPT_BYTES", 0)
    parts = split_task(TASK)
    few = prepare_removals(trials.model, parts.evaluation, parts.selection, calibrate=16, batch_size=8)
    assert (len(few.wanted), len(few.batches)) == (1, 3)
    removal = Removal("random", "50%", draw=1)
    some, every = (one.run(removal, "none") for one in (few, trials))
    assert some.metrics == every.metrics
    assert some.agreement != every.agreement
    assert dataclasses.replace(few).test == trials.test


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (parse_repair, "scale", "repair: unknown repair 'scale'"),
    ],
)
def test_unknown_names_are_refused(read, text, message):
    with pytest.raises(HeadjaxError, match=message):
        read(text)
