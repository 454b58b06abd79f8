"""The report on heads: curves by name, patterns without padding, and measurements on disjoint examples as a page."""

import contextlib
import dataclasses

import numpy as np
import pytest

import headjax
from headjax.head_report.page import answer, curve_table, tolerance, write_report
from headjax.head_report.study import CurveConfig, CurvePoint, curve, removable, study_heads
from headjax.heads.seam import UNIT
from tests import tiny
from tests.models.test_encoder import config as encoder


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


class Judge:
    """What a curve has asked to judge."""

    def __init__(self):
        self.asked = []

    def __call__(self, model):
        self.asked.append(model)
        return float(self.gates(model).sum()), None

    @staticmethod
    def gates(model):
        (stack,) = model.config.stacks()
        return np.asarray(getattr(model, stack).layers_0_1.attention.head_gate[...]) / UNIT


def test_kept_heads_of_a_curve_are_solved_anew_until_none_is_left():
    model, judged = tiny.model(tiny.decoder_config()), Judge()
    batches = [tiny.tokens(8, 12, seed) for seed in range(2)]
    config = CurveConfig.parse("reconstruction+reconstruct")
    found = curve(model, config, batches, (50, 100), judged)
    assert [point.value for point in found] == [4.0, 0.0]
    half, none_left = judged.asked
    removed = headjax.reconstruction_order(model, batches)[:4]
    off = [(head.layer, head.head) for head in removed]
    assert sorted(map(tuple, np.argwhere(judged.gates(half) == 0.0).tolist())) == sorted(off)
    kernels = [each.decoder.layers_0_1.attention.output.kernel[...] for each in (model, half, none_left)]
    assert bool((kernels[1] != kernels[0]).any())
    assert bool((kernels[2] == kernels[0]).all())


def test_a_curve_takes_heads_that_layers_share_together():
    model = tiny.model(encoder("albert", num_layers=2))
    config = CurveConfig.parse("random+reconstruct")
    found = list(curve(model, config, [tiny.tokens(8, 12)], (5, 40, 95), Judge()))
    assert [point.removed for point in found] == [0, 2, 6]
    assert [point.value for point in found] == [8.0, 6.0, 2.0]


def test_heads_are_judged_on_other_examples_than_they_are_ordered_on(study, task):
    selection, evaluation = headjax.split_task(task)
    assert (study.selection.split, study.task.split) == (selection.split, evaluation.split)
    assert study.ordered_by == "8 examples of numbers, selection half, others for each seed"
    assert study.task.count() == evaluation.count() == 8
    assert study.baseline == headjax.evaluate_task(study.model, evaluation, batch_size=4)


def test_every_order_has_a_curve_and_every_head_an_effect(study):
    assert list(study.curves) == ["importance", "random"]
    assert [[point.removed for point in points] for points in study.curves.values()] == [[2, 4], [2, 4]]
    assert study.curves["importance"][1].value == study.curves["random"][1].value
    assert set(study.effects.effect) == set(study.roles) == set(headjax.all_heads(study.model.config))


def test_single_heads_are_ablated_on_a_draw_of_the_examples_and_bars_count_their_batches(study, task):
    shown = []

    @contextlib.contextmanager
    def progress(title, total, unit):
        yield lambda done, values: shown.append((title, total, unit, done))

    config = dataclasses.replace(study.config, judged=6, ablated=4, batch_size=2, orders=("random",))
    found = study_heads(study.model, task, config, progress=progress)
    assert (found.task.count(), found.few.count()) == (6, 4)
    rows, fewer = ([bytes(row["input_ids"]) for row in each.data.validation] for each in (found.task, found.few))
    assert set(fewer) < set(rows)
    bar = ("ablating 4 heads", 2, "batch")
    assert [entry for entry in shown if entry[0] == bar[0]] == [(*bar, done) for done in (1, 2)]


def test_the_page_has_a_section_for_every_measurement(study, tmp_path):
    page = write_report(study, answer(study), tmp_path / "heads.html").read_text()
    titles = ("Removing heads", "What the scores say", "What heads look at", "What each head attends")
    for text in (*titles, "8 examples of numbers"):
        assert text in page


def test_the_answer_is_the_largest_removal_within_the_tolerance_with_its_interval_and_the_command(study):
    def told(values, few=lambda found: found):
        made = [CurvePoint(share, count, 0, value, change, tuple(heads[:count])) for share, count, value in values]
        return answer(few(study._replace(curves={"importance_layer": made})), "model/", "texts.txt").text

    heads, base = headjax.all_heads(study.model.config), study.baseline["perplexity"]
    change = study.curves["importance"][0].change
    text = told([(0.25, 1, base), (0.5, 2, 1.04 * base), (0.75, 3, 1.2 * base)])
    timed = answer(study, timer=lambda models: ({"1": 2.0, "32": 38.1}, {"1": 1.5, "32": 31.2})).text
    assert "parameters, 38.1 to 31.2 ms for a batch of 32, perplexity" in timed or timed.startswith("No removal")
    assert text.startswith("Remove 2 of 4 heads: ")
    assert "on 8 examples (95% interval of the change: " in text
    assert "nats of the loss)" in text
    assert text.endswith("`headjax prune model/ OUT --remove 2 --by importance_layer --task texts.txt`")
    assert told([(0.25, 1, 2 * base)]).startswith("No removal is recommended: no order removes the first 50%")


def test_a_tolerance_below_one_example_is_not_judged(study):
    class Right(type(study.task.measure)):
        kind = "binary"

    few = study._replace(task=dataclasses.replace(study.task, measure=Right()))
    assert "one of 8 examples is more than one point, so judge at least 100 (`--judged`)" in answer(few).text.lower()


def test_tables_hold_the_numbers_of_the_study(study):
    shown = {row[0]: row[2:] for row in curve_table(study).rows}
    values = [tuple(point.value for point in points) for points in study.curves.values()]
    assert shown == dict(zip(("importance", "chance"), values, strict=True))
    # A loss of a twentieth does not count where the primary metric is no share.
    assert study.task.primary_metric == "perplexity"
    assert tolerance(study) == pytest.approx(0.05 * study.baseline["perplexity"])


def test_a_curve_has_known_additions():
    assert CurveConfig.parse("reconstruction+reconstruct").reconstruct
    with pytest.raises(headjax.HeadjaxError, match=r"^by: unknown order 'random\+mean'"):
        CurveConfig.parse("random+mean")
