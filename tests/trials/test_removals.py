"""Removals are tried as `headjax prune` would do them, and every trial is judged beside the whole model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.data.examples import TokenBlocks
from headjax.data.task import TaskData
from headjax.evaluation.measures import LanguageModelling
from headjax.evaluation.selection import split_task
from headjax.evaluation.task import Task, evaluate_task
from headjax.heads.agreement import agreement
from headjax.heads.named_orders import parse_order
from headjax.heads.ordering import random_order
from headjax.heads.pruning import prune
from headjax.heads.reconstruction import reconstruct
from headjax.trials.removals import Removal, parse_repair, prepare_removals
from tests import tiny
from tests.closeness import close_to

DRAWN = np.random.default_rng(0).integers(0, 31, 12 * 40)
TASK = Task("text", TaskData(None, (), TokenBlocks(DRAWN, 12), {}), LanguageModelling())


@pytest.fixture(scope="module")
def trials():
    model = tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer()))
    parts = split_task(TASK)
    return prepare_removals(model, parts.evaluation, parts.selection, calibrate=16, batch_size=8)


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


def test_gates_repair_too(trials):
    removal = Removal("importance+normalize", "2", 0)
    bare, scaled = (trials.run(removal, repair) for repair in ("none", "rescale"))
    assert scaled.removed == 2
    assert scaled.metrics != bare.metrics


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
        (parse_order, "importanse", "order: unknown order 'importanse'"),
        (parse_order, "importance+rescale", "order: .*unknown addition 'rescale'"),
        (parse_repair, "scale", "repair: unknown repair 'scale'"),
    ],
)
def test_unknown_names_are_refused(read, text, message):
    with pytest.raises(HeadjaxError, match=message):
        read(text)
