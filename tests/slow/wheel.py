"""`make test-wheel`: sdist and wheel hold what they should; the wheel works in an empty environment, then removed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / "build" / "tools" / "bin" / "uv"

PROGRAM = """
import pathlib
import sys

import numpy as np

import headjax

checkout, folder = map(pathlib.Path, sys.argv[1:])
assert not pathlib.Path(headjax.__file__).is_relative_to(checkout), headjax.__file__
model = headjax.demo_model()  # its weights are files of the package
batch = headjax.text_batch(model.tokenizer, ["def heads(model):"])
pruned = headjax.prune(model, ["decoder/0/1", "decoder/3/7"])
pruned.save(folder)
logits = np.asarray(headjax.load(folder)(batch).logits)
np.testing.assert_array_equal(logits, np.asarray(pruned(batch).logits))
assert np.isfinite(logits).all()
"""
"""Use of the installed package, from the weights it carries to a saved model."""


def build(folder: Path) -> tuple[Path, Path]:
    """Return the sdist of the last commit, without what only lies in the checkout, and the wheel made from it."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    subprocess.run([UV, "build", "--quiet", "--python", sys.executable, "--out-dir", folder, source], check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_sdist(sdist: Path) -> None:
    """Refuse a source distribution that has tests, or lacks what its reader needs."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "pyproject.toml"} <= names, names
    assert not any(name.startswith("tests/") for name in names), names


def check_contents(wheel: Path) -> int:
    """Compare a wheel's files with the tracked ones of the package, besides its metadata; return their number."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    listing = ["git", "ls-tree", "-r", "--name-only", "HEAD", "headjax"]
    wanted = set(subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())
    assert names - metadata == wanted, names - metadata ^ wanted
    described = {name.split("/", 1)[1] for name in metadata}
    assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"} <= described, described
    return len(names)


def use(wheel: Path, folder: Path) -> None:
    """Install a wheel with its dependencies into a new environment, and use it from another folder."""
    environment, saved = folder / "environment", folder / "saved"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python, command = environment / "bin" / "python", environment / "bin" / "headjax"
    pip(str(python), "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    # Neither the checkout nor PYTHONPATH of the caller may lend a module.
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    for words in ([python, "-c", PROGRAM, ROOT, saved], [command, "--version"], [command, "inspect", saved]):
        subprocess.run(list(map(str, words)), cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)


def pip(python: str, *arguments: str) -> None:
    """Run this environment's pip for an interpreter, which need not have one."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--python", python, *arguments], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headjax-wheel-") as name:
        source, made = build(Path(name))
        check_sdist(source)
        count = check_contents(made)
        use(made, Path(name))
        print(f"{made.name}: {count} files, {made.stat().st_size / 1e6:.1f} MB, installed and used")
