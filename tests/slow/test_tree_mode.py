"""Modules also work where Flax treats them as trees, which is to become its default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("tests/test_flax.py", "tests/models/test_model.py")


def test_modules_are_trees():
    environment = os.environ | {"NNX_GRAPH_MODE": "false", "NNX_GRAPH_UPDATES": "false"}
    chosen = ["-m", "not parity and not whole and not attack"]
    words = [sys.executable, "-m", "pytest", "-x", "-q", *chosen, "-p", "no:xdist", *FILES]
    run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:]
