"""Compiled programs of the command line are kept in the user's cache folder, unless JAX's variable says otherwise."""

import os
import sys
import warnings

import pytest

from headjax.core.programs import PLACE, SETTINGS, keep_programs


@pytest.fixture
def before_jax(monkeypatch, tmp_path):
    """An environment of its own, in which JAX seems not to be imported."""
    monkeypatch.delitem(sys.modules, "jax")
    for name in (PLACE, *SETTINGS):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        yield tmp_path / "cache" / "headjax" / "compiled"


def test_the_folder_is_told_of_once(before_jax, capsys, monkeypatch):
    keep_programs()
    assert os.environ[PLACE] == str(before_jax)
    assert before_jax.is_dir()
    assert capsys.readouterr().err == f"headjax: compiled programs are kept in {before_jax} ({PLACE}= turns this off)\n"
    monkeypatch.delenv(PLACE)
    keep_programs()
    assert os.environ[PLACE] == str(before_jax)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("chosen", ["", "/elsewhere"])
def test_a_folder_that_the_user_chose_or_none_stays(chosen, before_jax, monkeypatch):
    monkeypatch.setenv(PLACE, chosen)
    keep_programs()
    assert os.environ[PLACE] == chosen
    assert not before_jax.exists()


def test_a_place_that_cannot_be_used_and_an_imported_jax_are_no_error(before_jax, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", os)
    keep_programs()
    assert PLACE not in os.environ
    monkeypatch.delitem(sys.modules, "jax")
    before_jax.parents[1].write_text("a file where a folder should be")
    keep_programs()
    assert PLACE not in os.environ
    assert capsys.readouterr() == ("", "")
