"""Lists the other Pythons of this machine that headjax supports, one line each: version, and path of the interpreter.

    python tests/slow/pythons.py

Found are those on PATH, of pyenv and of uv. The versions are those that pyproject.toml names, but for the one that runs
this. What was found and what was not is said on the standard error stream.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def main() -> None:
    """List them."""
    supported = re.findall(r"Python :: (3\.\d+)", PROJECT.read_text())
    for version in supported:
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        path = next((path for path in candidates(version) if answers(path, version)), None)
        print(f"Python {version}: {path or 'not found'}", file=sys.stderr, flush=True)
        if path:
            print(version, path, flush=True)


def candidates(version: str) -> Iterator[str]:
    """Paths where an interpreter of a version may lie; the shims of pyenv lie on PATH and may answer for another."""
    yield f"python{version}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True))
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
        yield from found.stdout.splitlines()


def answers(path: str, version: str) -> bool:
    """Whether a path starts a Python of a version that can build environments."""
    asked = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.stdout.strip() == version


if __name__ == "__main__":
    main()
