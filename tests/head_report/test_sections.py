"""The page of a study: its sections and its tables."""

from __future__ import annotations

import pytest

from headjax.head_report.sections import best_head_table, curve_table, tolerance, write_report


def test_the_page_has_a_section_for_every_measurement(study, tmp_path):
    page = write_report(study, tmp_path / "heads.html").read_text()
    for title in ("What the scores say", "One head less", "Removing heads", "Other data", "What heads look at"):
        assert title in page
    assert "During training" not in page
    assert "8 examples of numbers" in page


def test_tables_hold_the_numbers_of_the_study(study):
    effects = study.effects["all-but-one"].effects()
    rows = best_head_table(study).rows
    assert [row[:4] for row in rows] == [(head.stack, head.layer, head.head, effects[head]) for head in study.best]
    shown = {row[0]: row[2:] for row in curve_table(study, tolerance(study)).rows}
    assert shown == {name: tuple(point.value for point in points) for name, points in study.curves.items()}


def test_a_loss_of_a_twentieth_does_not_count_where_the_headline_is_no_share(study):
    assert study.task.headline == "perplexity"
    assert tolerance(study) == pytest.approx(0.05 * study.baseline["perplexity"])
