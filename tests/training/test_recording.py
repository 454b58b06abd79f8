"""Records of a run, and the steps that are traced."""

from __future__ import annotations

from pathlib import Path

import pytest

import headjax
from headjax.training.recording import Metrics, read_metrics
from tests.buckets import path_of


def test_a_continued_run_drops_the_records_after_its_step(tmp_path):
    with Metrics(tmp_path, 0, tensorboard=False) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"loss": float(step)})
    with writer.path.open("a") as file:
        file.write('{"step": 4, "lo')  # a crash in the middle of a line
    assert [record["step"] for record in read_metrics(writer.path)] == [1, 2, 3]
    with Metrics(tmp_path, 2, tensorboard=False) as writer:
        writer.write(3, {"loss": 0.5})
    assert read_metrics(writer.path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 0.5}]
    assert read_metrics(tmp_path / "other") == []


def test_an_evaluation_that_is_made_anew_is_recorded_once(tmp_path):
    with Metrics(tmp_path, 0, tensorboard=False) as writer:
        writer.write(1, {"validation/loss": 1.0})
        writer.write(2, {"train/loss": 1.0})
        writer.write(2, {"validation/loss": 1.0})
    with Metrics(tmp_path, 2, tensorboard=False):
        assert read_metrics(writer.path) == [{"step": 1, "validation/loss": 1.0}, {"step": 2, "train/loss": 1.0}]


def test_what_cannot_be_written_is_named(tmp_path):
    with Metrics(tmp_path, 0, tensorboard=False) as writer:
        writer.path = Path("/dev/full")
        with pytest.raises(headjax.HeadjaxError, match=r"^/dev/full: "):
            writer.write(1, {"loss": 1.0})


def test_records_of_a_bucket_are_written_anew_with_each_checkpoint_and_now_and_then(bucket, monkeypatch):
    workdir = path_of(bucket)
    file = workdir / "metrics.jsonl"
    with Metrics(workdir, 0, tensorboard=True) as writer:
        writer.write(1, {"loss": 1.0})
        assert read_metrics(file) == []
        writer.publish()
        assert len(read_metrics(file)) == 1
        writer.write(2, {"loss": 2.0})
    assert len(read_metrics(file)) == 2
    assert len(list((workdir / "tensorboard").glob("events*"))) == 1
    with Metrics(workdir, 1, tensorboard=True) as writer:
        assert [record["step"] for record in read_metrics(file)] == [1]
        writer.write(2, {"loss": 0.5})
    assert read_metrics(file) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
