"""Rehearsals of the papers' experiments run to the end; `tests/configs/test_papers.py` builds those of all files."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

import headjax

PAPERS = Path(__file__).parents[2] / "configs" / "papers"

pytestmark = [pytest.mark.usefixtures("first_device"), pytest.mark.whole]


@pytest.fixture
def first_device(monkeypatch):
    """Meshes see one device, for which a step compiles faster."""
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *arguments: first)


def rehearse(spec, workdir, *overrides):
    name, _, arguments = spec.partition(":")
    return headjax.train(
        headjax.train_config(headjax.load_config(f"{PAPERS / name}.py:{arguments},smoke", overrides)), workdir
    )


def test_the_second_stage_of_bert_starts_from_the_first(tmp_path):
    first = rehearse("concise_bert:heads=2", tmp_path / "first")
    second = rehearse(f"concise_bert:stage=2,start={first.path}", tmp_path / "second")
    assert [entry["action"] for entry in second.model.history] == ["train", "train"]
    assert second.metrics["loss"] < first.metrics["loss"]
