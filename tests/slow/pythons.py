"""Lists the other Pythons of this machine that headjax supports, one line each: version, and path of the interpreter.

Looked for are those on PATH, of pyenv and of uv. What is not found is said on the standard error stream.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def said(*words: object) -> str:
    """What a program prints; nothing where it fails or is not there."""
    try:
        return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main() -> None:
    """List those that can build environments; shims of pyenv lie on PATH and may answer for another version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in re.findall(r"Python :: (3\.\d+)", PROJECT.read_text()):
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        places = [f"python{version}", *pyenv.glob(f"versions/{version}.*/bin/python{version}")]
        places += said("uv", "python", "find", version).splitlines()
        asked = ("-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])")
        path = next((path for path in places if said(path, *asked) == version), None)
        print(*((version, path) if path else (f"Python {version}: not found",)), file=None if path else sys.stderr)


if __name__ == "__main__":
    main()
