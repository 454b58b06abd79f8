"""`headjax quickstart`: what it refuses before it trains, and how it ends where training stops."""

import pytest

from headjax.cli import main
from headjax.core.errors import DIVERGED, INTERRUPTED
from headjax.quickstart import study
from headjax.training.loop import TrainResult


@pytest.mark.parametrize(
    ("diverged", "exit_code", "message"),
    [
        (None, INTERRUPTED, "headjax: {run}: interrupted after step 1; the same command goes on from there\n"),
        ("the loss of step 1 is nan", DIVERGED, "headjax: error: {run}: diverged: the loss of step 1 is nan\n"),
    ],
)
def test_a_training_run_that_stops_early_ends_it_with_that_exit_code(
    diverged, exit_code, message, tmp_path, capsys, monkeypatch
):
    (tmp_path / "text.txt").write_text("\n\n".join(f"Paragraph {i} says {i * i}." for i in range(4000)))

    def stopped(config, workdir, **options):
        return TrainResult(None, None, 1, {}, 0.0, finished=False, diverged=diverged)

    monkeypatch.setattr(study, "train", stopped)
    arguments = ["--workdir", str(tmp_path / "run"), "--path", str(tmp_path / "text.txt"), "--train-steps", "2"]
    assert main(["quickstart", *arguments]) == exit_code
    assert capsys.readouterr().err == message.format(run=tmp_path / "run" / "standard")
