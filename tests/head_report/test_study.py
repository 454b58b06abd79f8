"""Measurements of the report: the same numbers as the functions that it calls, on disjoint examples."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.core.kept import Kept
from headjax.evaluation.selection import split_task
from headjax.evaluation.task import evaluate_task
from headjax.head_report.measure import agreement, estimate, measure
from headjax.head_report.study import StudyConfig, begin, fingerprint
from headjax.heads.head_id import all_heads


def test_heads_are_judged_on_other_examples_than_they_are_ordered_on(study, task):
    selection, evaluation = split_task(task)
    assert (study.selection.split, study.task.split) == (selection.split, evaluation.split)
    assert study.ordered_by == "8 examples of numbers, selection half, others for each seed"
    assert study.examples == evaluation.count() == 8
    assert study.baseline == evaluate_task(study.model, evaluation, batch_size=4)


def test_every_order_has_a_curve_and_every_layer_a_best_head(study):
    assert list(study.curves) == ["importance", "random"]
    assert [[point.removed for point in points] for points in study.curves.values()] == [[2, 4], [2, 4]]
    assert study.curves["importance"][1].value == study.curves["random"][1].value
    assert [(head.stack, head.layer) for head in study.best] == [("decoder", 0), ("decoder", 1)]
    assert set(study.effects) == {"each", "all-but-one"}
    assert set(study.roles) == set(all_heads(study.model.config))
    assert study.second.name == "letters"
    assert study.snapshots == []


def test_importance_at_a_checkpoint_is_compared_by_rank(study):
    heads = all_heads(study.model.config)

    def values(*numbers):
        return dict(zip(heads, numbers, strict=True))

    final = values(1.0, 2.0, 3.0, 40.0)
    assert agreement(values(0.1, 0.2, 0.3, 0.4), final) == pytest.approx(1)
    assert agreement(values(4.0, 3.0, 2.0, 1.0), final) == pytest.approx(-1)
    assert agreement(values(0.0, 0.0, 0.0, 0.0), final) is None
    assert agreement({heads[0]: 1.0}, {heads[0]: 2.0}) is None


def test_the_bar_advances_with_every_checkpoint(study, task, monkeypatch):
    shown = []

    @contextlib.contextmanager
    def progress(title, total, unit):
        yield lambda done, values: shown.append((title, total, unit, done))

    checkpoints = [(2, study.model), (4, study.model)]
    monkeypatch.setattr("headjax.head_report.measure.snapshots", lambda run: iter(checkpoints))
    config = StudyConfig(batch_size=4, orders=("importance",), seeds=1, percentages=(100,), resamples=20, shown=1)
    found = begin(study.model, task, config)
    list(measure(found, run="somewhere", progress=progress))
    assert [(snapshot.step, snapshot.agreement) for snapshot in found.snapshots] == [(2, 1.0), (4, 1.0)]
    bar = [entry for entry in shown if entry[0] == "checkpoints"]
    assert bar == [("checkpoints", 0, "checkpoint", 1), ("checkpoints", 0, "checkpoint", 2)]


def test_a_study_that_was_stopped_goes_on(study, task, tmp_path):
    """Measurements are read back as they were; another setting, model or task begins anew."""
    selection, evaluation = split_task(task)
    key = fingerprint(study.model, [task], study.config)
    first = begin(study.model, evaluation, study.config, selection=selection, kept=Kept(tmp_path / "part", key))
    for number, _ in enumerate(measure(first)):
        if number == 1:
            break
    there = {name: dict(first.kept.seconds)[name] for name in first.kept.found}
    assert list(there) == ["baseline", "scores", "curve/importance/0"]
    again = begin(study.model, evaluation, study.config, selection=selection, kept=Kept(tmp_path / "part", key))
    assert 0 < estimate(again) < estimate(begin(study.model, evaluation, study.config, selection=selection))
    list(measure(again))
    assert {name: again.kept.seconds[name] for name in there} == there
    assert (again.curves, again.best, again.scores) == (study.curves, study.best, study.scores)
    other = dataclasses.replace(study.config, seeds=2)
    assert fingerprint(study.model, [task], other) != key
    assert Kept(tmp_path / "part", "another").found == {}
    (tmp_path / "part").write_text("{")
    assert Kept(tmp_path / "part", key).found == {}


def test_single_heads_are_ablated_on_a_draw_of_the_examples(study, task):
    config = dataclasses.replace(study.config, judged=6, ablated=4)
    begun = begin(study.model, task, config)
    assert (begun.examples, begun.few.count()) == (6, 4)
    rows, fewer = ([bytes(row["input_ids"]) for row in each.data.validation] for each in (begun.task, begun.few))
    assert set(fewer) < set(rows)


def test_the_bar_counts_batches_and_names_the_number_of_heads(study, task):
    shown = []

    @contextlib.contextmanager
    def progress(title, total, unit):
        yield lambda done, values: shown.append((title, total, unit, done))

    list(measure(begin(study.model, task, study.config), progress=progress))
    bar = [entry for entry in shown if entry[0] == "ablating 4 heads, each"]
    assert bar == [("ablating 4 heads, each", 2, "batch", 1), ("ablating 4 heads, each", 2, "batch", 2)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"percentages": (50, 20)}, r"^percentages: must rise within 1..100, got \[50, 20\]$"),
        ({"profile_percentages": ()}, r"^profile_percentages: must rise within 1..100, got \[\]$"),
        ({"buckets": (0,)}, r"^buckets: must be positive, got \[0\]$"),
        ({"seeds": 0}, r"^seeds: "),
        ({"orders": ("importanse",)}, r"^order: unknown order 'importanse'; did you mean 'importance'\?$"),
    ],
)
def test_bad_settings_are_errors(fields, message):
    with pytest.raises((ConfigError, HeadjaxError), match=message):
        StudyConfig(**fields)
