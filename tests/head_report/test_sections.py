"""The page of a study: its sections and its tables."""

from __future__ import annotations

import pytest

from headjax.head_report.measure import measure
from headjax.head_report.sections import best_head_table, curve_table, tolerance, write_report
from headjax.head_report.study import begin

TITLES = ("What the scores say", "Removing heads", "One head less", "What heads look at", "is being written")


def test_the_page_has_a_section_for_every_measurement(study, tmp_path):
    page = write_report(study, tmp_path / "heads.html").read_text()
    for title in ("What the scores say", "One head less", "Removing heads", "Other data", "What heads look at"):
        assert title in page
    assert "During training" not in page
    assert "8 examples of numbers" in page


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


def test_a_loss_of_a_twentieth_does_not_count_where_the_headline_is_no_share(study):
    assert study.task.headline == "perplexity"
    assert tolerance(study) == pytest.approx(0.05 * study.baseline["perplexity"])
