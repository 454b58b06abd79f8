"""`headjax train --help-config` lists every field of a run's config, as text of 100 columns and as data."""

import dataclasses
import json
import re

import pytest

import headjax
from headjax.core.serialize import class_of_kind, kinds_of
from headjax.training.config import Optimizer, Schedule
from tests.command_line import main


def listed(capsys, *words):
    """The rows by path as data, and the lines that are printed."""
    assert main(["train", "--help-config", *words, "--json", "-"]) == 0
    shown = capsys.readouterr()
    rows = json.loads(shown.out)["fields"]
    return rows, [line for line in shown.err.splitlines() if line]


@pytest.fixture
def every(capsys):
    return listed(capsys)


def test_every_field_stands_there_with_type_default_and_meaning(every):
    rows, lines = every
    found = {row["path"]: row for row in rows}
    assert [row["path"] for row in rows[: len(dataclasses.fields(headjax.TrainConfig))]] == [
        f"config.{field.name}" for field in dataclasses.fields(headjax.TrainConfig)
    ]
    peak, steps, remat = (found[f"config.{path}"] for path in ("optimizer.schedule.peak", "steps", "compute.remat"))
    assert (peak["type"], peak["required"], peak["meaning"]) == ("number, positive", True, "the highest learning rate.")
    assert (steps["required"], found["config.seed"]["default"]) == (True, 0)
    assert remat["choices"] == ["none", "dots", "full"]
    assert "config.optimizer.schedule.peak: number, positive; required" in lines
    assert "    the highest learning rate." in lines


def test_groups_have_their_kinds_and_each_kind_its_fields(every):
    rows, lines = every
    found = {row["path"]: row for row in rows}
    assert found["config.optimizer"]["choices"] == kinds_of(Optimizer)
    assert found["config.optimizer.schedule"]["choices"] == kinds_of(Schedule)
    for field in dataclasses.fields(headjax.AdamW):
        assert f"config.optimizer.{field.name}" in found
    assert found["config.optimizer.weight_decay"]["of"] == ["adamw"]
    assert found["config.optimizer.clip_norm"]["of"] == []
    assert "config.optimizer.weight_decay (adamw): number, not negative; default 0.01" in lines
    assert any(re.match(r"      adamw: Adam with", line) for line in lines)
    for row in rows:
        assert row["same_as"] is None or row["same_as"] in found


def foreign(row):
    """Whether only kinds that other tests registered have a field."""
    return row["of"] and not any(class_of_kind(name).__module__.startswith("headjax.") for name in row["of"])
