"""Bars are shown on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io

from rich.console import Console

from headjax.core.progress import bars, silent


def test_a_file_gets_no_bar():
    assert bars(Console(file=io.StringIO())) is silent


def test_a_terminal_shows_title_count_and_measurements():
    shown = io.StringIO()
    with bars(Console(file=shown, force_terminal=True, width=120))("training", 7, "step") as bar:
        bar(3, {"loss": 2.5})
    assert "training" in shown.getvalue()
    assert "3/7" in shown.getvalue()
    assert "loss 2.5" in shown.getvalue()
