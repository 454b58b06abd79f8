"""The report on heads: curves by name, patterns without padding, and measurements on disjoint examples as a page."""

import contextlib
import dataclasses
import itertools
import types

import jax
import numpy as np
import pytest

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.evaluation.selection import split_task, subset
from headjax.evaluation.task import evaluate_task
from headjax.head_report.curves import CurveConfig, CurvePoint, curve, removable
from headjax.head_report.measure import agreement, estimate, measure
from headjax.head_report.sections import best_head_table, curve_table, tolerance, write_report
from headjax.head_report.study import StudyConfig, begin, fingerprint
from headjax.heads import gates as head_gates
from headjax.heads.head_id import all_heads
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.models.shared_stack import SharedStack
from headjax.storage.kept import Kept
from tests import tiny


def test_a_curve_has_known_additions():
    assert CurveConfig.parse("reconstruction+reconstruct").reconstruct
    with pytest.raises(HeadjaxError, match=r"^by: unknown order 'random\+mean'"):
        CurveConfig.parse("random+mean")


def points(values):
    """Points of two seeds, whose mean is the value."""
    return [CurvePoint(share, 1, seed, mean + 1 - 2 * seed) for share, mean in values.items() for seed in (0, 1)]


@pytest.mark.parametrize(
    ("higher_is_better", "values", "share"),
    [
        (True, {0.25: 9.5, 0.5: 9.0, 0.75: 8.5}, 0.5),
        (True, {0.25: 8.0, 0.5: 10.0}, 0.0),  # a smaller share already costs too much
        (False, {0.25: 10.5, 0.5: 11.0, 0.75: 11.5}, 0.5),
        (False, {0.25: 9.0, 0.5: 8.0}, 0.5),
    ],
)
def test_heads_can_go_up_to_the_first_share_that_costs_too_much(higher_is_better, values, share):
    assert removable(points(values), 10.0, 1.0, higher_is_better) == share


class Judged:
    """What a curve has asked to judge."""

    def __init__(self):
        self.asked = []

    def __call__(self, model, gates):
        self.asked.append((model, gates))
        return float(gates["decoder"].sum())


def test_kept_heads_of_a_curve_are_solved_anew_until_none_is_left():
    model, judged = tiny.model(tiny.decoder_config()), Judged()
    batches = [tiny.tokens(8, 12, seed) for seed in range(2)]
    config = CurveConfig.parse("reconstruction+reconstruct")
    found = curve(model, config, batches, (50, 100), judged)
    assert [point.value for point in found] == [4.0, 0.0]
    (half, gates), (none_left, _) = judged.asked
    removed = reconstruction_order(model, batches)[:4]
    np.testing.assert_array_equal(gates["decoder"], head_gates.without(model.config, removed)["decoder"])
    changed = jax.tree.map(lambda one, other: bool((one != other).any()), half.params, model.params)
    assert any(jax.tree.leaves(changed["decoder"]["layers_0_1"]["attention"]))
    assert none_left is model


def test_a_curve_takes_heads_that_layers_share_together():
    model = tiny.model(tiny.decoder_config(decoder=SharedStack(layers=(tiny.layer(tiny.multi_head(4)),) * 2)))
    config = CurveConfig.parse("random+reconstruct")
    found = list(curve(model, config, [tiny.tokens(8, 12)], (5, 40, 95), Judged()))
    assert [point.removed for point in found] == [0, 2, 6]
    assert [point.value for point in found] == [8.0, 6.0, 2.0]


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
    assert (study.second_name, study.second is None) == ("letters", False)
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


def test_bars_count_batches_of_ablation_and_checkpoints(study, task, monkeypatch):
    shown = []

    @contextlib.contextmanager
    def progress(title, total, unit):
        yield lambda done, values: shown.append((title, total, unit, done))

    monkeypatch.setattr("headjax.head_report.measure.snapshots", lambda run: iter([(2, study.model), (4, study.model)]))
    config = StudyConfig(batch_size=4, orders=("importance",), seeds=1, percentages=(100,), resamples=20)
    found = begin(study.model, task, config)
    list(measure(found, run="somewhere", progress=progress))
    assert [(snapshot.step, snapshot.agreement) for snapshot in found.snapshots] == [(2, 1.0), (4, 1.0)]
    for title, total, unit in (("checkpoints", 0, "checkpoint"), ("ablating 4 heads, each", 2, "batch")):
        assert [entry for entry in shown if entry[0] == title] == [(title, total, unit, done) for done in (1, 2)]


def test_a_study_that_was_stopped_goes_on(study, task, tmp_path, monkeypatch):
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
    anew = begin(study.model, evaluation, study.config, selection=selection)
    with monkeypatch.context() as steady:  # every batch takes as long, whatever else the machine does
        clock = itertools.count()
        steady.setattr("headjax.head_report.measure.time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
        assert 0 < estimate(again) < estimate(anew)
    list(measure(again))
    assert {name: again.kept.seconds[name] for name in there} == there
    assert (again.curves, again.best, again.scores) == (study.curves, study.best, study.scores)
    other = dataclasses.replace(study.config, seeds=2)
    assert fingerprint(study.model, [task], other) != key
    exchanged = subset(task.data.validation, np.r_[: task.count() - 2, task.count() - 1, task.count() - 2])
    later = dataclasses.replace(task, data=task.data._replace(validation=exchanged))
    assert fingerprint(study.model, [later], study.config) != key
    assert Kept(tmp_path / "part", "another").found == {}
    (tmp_path / "part").write_text("{")
    assert Kept(tmp_path / "part", key).found == {}


def test_single_heads_are_ablated_on_a_draw_of_the_examples(study, task):
    config = dataclasses.replace(study.config, judged=6, ablated=4)
    begun = begin(study.model, task, config)
    assert (begun.examples, begun.few.count()) == (6, 4)
    rows, fewer = ([bytes(row["input_ids"]) for row in each.data.validation] for each in (begun.task, begun.few))
    assert set(fewer) < set(rows)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"percentages": (50, 20)}, "percentages"),
        ({"profile_percentages": ()}, "profile_percentages"),
        ({"buckets": (0,)}, "buckets"),
        ({"seeds": 0}, "seeds"),
        ({"orders": ("importanse",)}, "by"),
    ],
)
def test_bad_settings_are_errors(fields, field):
    with pytest.raises((ConfigError, HeadjaxError), match=f"^{field}: "):
        StudyConfig(**fields)


TITLES = ("What the scores say", "Removing heads", "One head less", "What heads look at", "is being written")


def test_the_page_has_a_section_for_every_measurement(study, tmp_path):
    page = write_report(study, tmp_path / "heads.html").read_text()
    for title in (*TITLES[:-1], "Other data", "8 examples of numbers"):
        assert title in page
    assert "During training" not in page


def test_the_page_grows_while_sections_are_measured(study, task, tmp_path, monkeypatch):
    """Each time with what there is; drawn sections are not drawn again."""
    begun = begin(study.model, task, study.config)
    page, shown, seen = tmp_path / "heads.html", {}, []
    for _ in measure(begun):
        text = write_report(begun, page, shown).read_text()
        seen.append([title in text for title in TITLES])
    scores, one_curve, both, single, roles = seen
    assert scores == [True, False, False, False, True]
    assert one_curve == both == [True, True, False, False, True]
    assert single == [True, True, True, False, True]
    assert roles == [True, True, True, True, False]
    assert len(shown) == 6, "two of them the pruning curves, with one order and with two"


def test_tables_hold_the_numbers_of_the_study(study):
    effects = study.effects["all-but-one"].effect
    rows = best_head_table(study).rows
    assert [row[:4] for row in rows] == [(head.stack, head.layer, head.head, effects[head]) for head in study.best]
    shown = {row[0]: row[2:] for row in curve_table(study, tolerance(study)).rows}
    assert shown == {name: tuple(point.value for point in points) for name, points in study.curves.items()}
    # A loss of a twentieth does not count where the headline is no share.
    assert study.task.headline == "perplexity"
    assert tolerance(study) == pytest.approx(0.05 * study.baseline["perplexity"])
