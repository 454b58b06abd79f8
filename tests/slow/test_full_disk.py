"""A disk that takes no more: one line that names the path, and what was there stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headjax
from tests.commands.language_folder import write_language_folder
from tests.slow.test_kills import CONFIG, values

COMMANDS = {
    "prune": "prune model out --remove 50% --by random --overwrite",
    "train": "train --config config.py:4 --workdir run",
}
LIMITED = """
import resource, sys
from headjax.cli import main
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
sys.exit(main(sys.argv[2:]))
"""
"""Lets no file of the process grow beyond a size; writes then fail as on a full disk.

Python runs with -B: it would cut the bytecode of the modules that it imports, and take it for whole.
"""


@pytest.mark.parametrize(("name", "size"), [("prune", 200), ("prune", 8_000), ("train", 20_000)])
def test_a_command_ends_in_one_line(name, size, tmp_path):
    """The smallest size ends the writing of JSON, the others that of weights, in files of 18,000 bytes or more."""
    write_language_folder(tmp_path, max_length=16)
    headjax.load(tmp_path / "model").save(tmp_path / "out")
    (tmp_path / "config.py").write_text(CONFIG)
    command = [sys.executable, "-B", "-c", LIMITED, str(size), *COMMANDS[name].split()]
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    variables |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env=os.environ | variables
    )
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr, done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("headjax: error: "), done.stderr
    assert ("out" if name == "prune" else "run") in said
    np.testing.assert_array_equal(values(tmp_path / "model"), values(tmp_path / "out"))
    assert not [path for path in tmp_path.rglob(".*") if "@" in path.name]
