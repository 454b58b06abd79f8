"""Compiled programs are forgotten before a process has no more room for them, and only then."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import pytest

from headjax.core import programs
from headjax.evaluation.task import evaluate_task
from headjax.training.distillation import distill
from headjax.training.loop import train


def compiled(function):
    return function._cache_size()


@pytest.fixture
def doubled():
    function = jax.jit(lambda x: x * 2)
    function(jnp.ones(3))
    assert compiled(function) == 1
    return function


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_programs_are_forgotten_where_half_of_the_maps_are_taken(doubled, tmp_path, monkeypatch):
    taken = programs.MAPS.read_bytes().count(b"\n")
    monkeypatch.setattr(programs, "ALLOWED", tmp_path / "max_map_count")
    programs.ALLOWED.write_text(f"{4 * taken}\n")
    assert not programs.make_room()
    assert compiled(doubled) == 1
    programs.ALLOWED.write_text(f"{taken}\n")
    assert programs.make_room()
    assert compiled(doubled) == 0
    assert doubled(jnp.ones(3)).tolist() == [2, 2, 2]


@pytest.mark.parametrize("content", [None, "many"])
def test_a_system_without_the_limit_forgets_nothing(doubled, content, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "ALLOWED", tmp_path / "max_map_count")
    if content is not None:
        programs.ALLOWED.write_text(content)
    assert not programs.make_room()
    assert compiled(doubled) == 1


class MadeRoom(Exception):
    """Ends what made room, before it looks at its arguments."""


@pytest.mark.parametrize(
    ("module", "work"),
    [
        ("headjax.evaluation.task", lambda folder: evaluate_task(None, None)),
        ("headjax.training.distillation", lambda folder: distill(None, None, (), None)),
        ("headjax.training.loop", lambda folder: train(None, folder)),
    ],
    ids=["evaluate", "distill", "train"],
)
def test_room_is_made_before_a_model_is_compiled(module, work, tmp_path, monkeypatch):
    def make_room():
        raise MadeRoom

    monkeypatch.setattr(f"{module}.make_room", make_room)
    with pytest.raises(MadeRoom):
        work(tmp_path)
