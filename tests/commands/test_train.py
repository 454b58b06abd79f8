"""`headjax train` and `quickstart`: a model that inspect reads, and a run that goes on only as it began."""

import json
import os
import signal

import pytest

from headjax.cli import main
from headjax.core.errors import DIVERGED, INTERRUPTED
from headjax.quickstart import study
from headjax.training import loop
from headjax.training.loop import TrainResult
from tests.test_cli import CONFIG, error_of


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}." for i in range(400)))
    return str(path)


def test_train_writes_a_model_that_inspect_reads(config, text, tmp_path, capsys):
    workdir = str(tmp_path / "run")
    arguments = ["train", "--config", config, "--workdir", workdir, f"--config.data.path={text}", "--json", "-"]
    assert main(arguments) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["steps"] == 2
    assert trained["finished"] is True
    assert trained["metrics"]["perplexity"] > 1
    assert trained["tokens_per_second"] > 0
    assert main(["inspect", trained["model"], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == trained["parameters"]
    assert "config.batch_size is 8 there" in error_of(capsys, *arguments[:-2], "--config.batch_size=16")
    assert "2 steps" in error_of(capsys, *arguments[:-2], "--config.steps=1")
    assert main([*arguments, "--config.steps=3"]) == 0
    printed = capsys.readouterr()
    assert "extended from 2 to 3 steps; model: " in printed.err
    extended = json.loads(printed.out)
    assert (extended["steps"], extended["extended_from"]) == (3, 2)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_has_its_own_exit_code(signal_number, config, text, tmp_path, capsys, monkeypatch):
    """So that `headjax train ... && headjax evaluate ...` stops; the same command goes on and ends with 0."""
    step = loop.train_step

    def interrupted(*arguments, **options):
        jitted = step(*arguments, **options)

        def stepped(*arguments):
            os.kill(os.getpid(), signal_number)
            return jitted(*arguments)

        return stepped

    arguments = ["train", "--config", config, "--workdir", str(tmp_path / "run"), f"--config.data.path={text}"]
    arguments += ["--config.steps=4", "--json", "-"]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", interrupted)
        assert main(arguments) == INTERRUPTED == 130
    printed = capsys.readouterr()
    assert "interrupted after step 1; the same command goes on from there" in printed.err
    assert json.loads(printed.out)["finished"] is False
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4


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
