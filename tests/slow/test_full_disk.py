"""A disk that fills up or becomes read-only, at every write of every command: one line, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from headjax.cli import main
from tests.commands.language_folder import write_language_folder
from tests.slow import faults, writers
from tests.slow.writers import WRITERS

TRIES = 3
"""Operations of a command, about, at which `make test-slow` lets each fault in; `make attack` takes all."""

NOBODY = 65534
"""Number of a user who owns nothing."""

FEW = pytest.param(tuple(WRITERS), TRIES, id="all")
ALL = [pytest.param((name,), 0, marks=pytest.mark.attack, id=name) for name in WRITERS]


@pytest.mark.skipif(faults.missing() is not None, reason=str(faults.missing()))
@pytest.mark.parametrize(("names", "tries"), [FEW, *ALL])
def test_every_command(names, tries, tmp_path):
    found = faults.run_attack(names, tries, tmp_path)
    assert tuple(found) == names
    for name, by_fault in found.items():
        for fault, (moments, tried, failures) in by_fault.items():
            print(f"{name}: {fault} at {tried} of {moments} operations")
            assert tried > 0, name
            assert not failures[:5], name


@pytest.fixture
def shared():
    """A folder that every user can enter; pytest's own are the owner's alone."""
    with tempfile.TemporaryDirectory(prefix="headjax-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_permissions_that_are_missing(shared, capsys):
    """A user may read models and not write, or not read them either."""
    write_language_folder(shared, max_length=16)
    for name in ("out", "hidden"):
        (shared / name).mkdir()
    shutil.copytree(shared / "model", shared / "out" / "model")
    shutil.copytree(shared / "model", shared / "hidden" / "model")
    (shared / "hidden").chmod(0o700)
    model = str(shared / "model")
    requests = [
        (["inspect", model, "--json", f"{shared}/out/model.json"], "out/model.json"),
        (["prune", model, f"{shared}/out/new", "--remove", "decoder/0/0"], "out/new"),
        (["prune", model, f"{shared}/out/model", "--remove", "decoder/0/0", "--overwrite"], "out/model"),
        (["inspect", f"{shared}/hidden/model"], "hidden/model"),
        (["prune", f"{shared}/hidden/model", f"{shared}/out/new", "--remove", "decoder/0/0"], "hidden/model"),
    ]
    # Modules that a command imports late may be the owner's alone, too.
    assert main(["prune", model, f"{shared}/first", "--remove", "decoder/0/0"]) == 0
    assert main(["inspect", model]) == 0
    before = writers.of_model(shared / "out" / "model")
    capsys.readouterr()
    for words, named in requests:
        os.seteuid(NOBODY)
        try:
            code = main(words)
        finally:
            os.seteuid(0)
        said = capsys.readouterr().err
        assert code == 2, (words, said)
        assert said.startswith("headjax: error: "), (words, said)
        assert said.count("\n") == 1, (words, said)
        assert f"{shared}/{named}" in said, (words, said)
        assert "ermission denied" in said, (words, said)
    assert writers.of_model(shared / "out" / "model") == before
    assert sorted(path.name for path in (shared / "out").iterdir()) == ["model"]
