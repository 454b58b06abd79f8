"""Commands that write, on tiny models, and a strict reading of what they write: for tests of kills and full disks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import load as load_safetensors

from headjax.cli import main
from headjax.data import DataConfig
from headjax.data.store import open_prepared
from headjax.hub import from_huggingface
from headjax.models.model import load
from headjax.storage.paths import files_below, path_of
from tests.commands.language_folder import write_classifier, write_language_folder

LENGTH = 16

CONFIG = """
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({
        "start": "FOLDER/model",
        "data": {"task": "FOLDER/text.txt", "length": 16},
        "batch_size": 8, "steps": int(arg), "log_every": 1, "checkpoint_every": 2, "keep_checkpoints": 2,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.01, "warmup_steps": 2}},
    })
"""
"""Of a training run; its argument is the number of steps. `FOLDER` is that of `write_inputs`."""


def write_inputs(folder: Path) -> None:
    """Write what the commands read: a language model, a classifier, a Hugging Face directory, texts and a table."""
    folder.mkdir(parents=True, exist_ok=True)
    write_language_folder(folder, max_length=LENGTH)
    (folder / "config.py").write_text(CONFIG.replace("FOLDER", str(folder)))
    write_classifier(folder)
    assert main(["export", str(folder / "classifier"), str(folder / "hf")]) == 0
    for name, count in (("train", 240), ("valid", 20)):
        (folder / "paragraphs").mkdir(exist_ok=True)
        text = "\n".join(f"Paragraph {i} says that {i * i} is the square of {i}." for i in range(count))
        (folder / "paragraphs" / f"{name}.txt").write_text(text)


def of_model(path: Path) -> str:
    """A fingerprint of a model directory, headjax's or Hugging Face's: parameters bit for bit, and actions."""
    model = load(path) if (path / "history.json").exists() else from_huggingface(path)
    found = hashlib.sha256(json.dumps([entry["action"] for entry in model.history]).encode())
    for name, array in jax.tree_util.tree_leaves_with_path(model.params):
        found.update(str((name, array.dtype, array.shape)).encode() + np.asarray(array).tobytes())
    return found.hexdigest()


def of_shards(path: Path) -> str | None:
    """What a prepared folder holds; None while it is not finished."""
    if not (path / "manifest.json").is_file() or open_prepared(path).waiting:
        return None
    data = DataConfig(task=str(path)).load()
    assert sum(len(data.train[index]["input_ids"]) for index in range(len(data.train))) > 0
    return str(data.info["data"])


def check_files(folder: Path | str) -> None:
    """Check that every file below a folder that has its name is whole, as any program reads it.

    Left out are `checkpoints` and `params`, whose files are Orbax's, `metrics.jsonl` and TensorBoard's files, which
    grow line by line, and hidden files, which have no name yet.
    """
    folder = path_of(folder)
    for name in files_below(folder):
        parts = name.split("/")
        if any(part.startswith(".") or part in ("checkpoints", "params", "tensorboard") for part in parts):
            continue
        check = WHOLE.get(parts[-1].rpartition(".")[2])
        if check is None or parts[-1] == "metrics.jsonl":
            continue
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:  # replaced meanwhile
            continue
        try:
            assert check(data)
        except Exception as error:
            raise AssertionError(f"{folder / name}: half of a file, {len(data)} bytes ({error!r})") from error


WHOLE: Mapping[str, Callable[[bytes], bool]] = {
    "json": lambda data: json.loads(data) is not None,
    "jsonl": lambda data: all(json.loads(line) for line in data.splitlines()) and data.endswith(b"\n"),
    "html": lambda data: data.rstrip().endswith(b"</html>"),
    "png": lambda data: data.endswith(b"IEND\xaeB`\x82"),
    "safetensors": lambda data: load_safetensors(data) is not None,
    "tsv": lambda data: data.endswith(b"\n"),
}
"""Checks of a whole file by its suffix."""


class Writer(NamedTuple):
    """A command that writes: its words, in which `IN` and `OUT` stand for folders, and what reads its result.

    The reading raises for half of a result. `before` writes an older one to the same place; `note` is a pattern of the
    line that the command says before it begins.
    """

    words: str
    read: Callable[[Path | str], Any]
    before: str = ""
    note: str = ""

    def command(self, inputs: Path, out: Path | str, before: bool = False) -> list[str]:
        """The words of the command line, or of that for the older result."""
        words = self.before if before else self.words
        return words.replace("IN/", f"{inputs}/").replace("OUT/", f"{out}/").split()


def _existing(read: Callable[[Path], Any], name: str) -> Callable[[Path | str], Any]:
    """The reading of one output by name; None where there is none."""

    def found(out: Path | str) -> Any:
        path = path_of(out) / name
        return read(path) if path.exists() else None

    return found


def _of_file(name: str) -> Callable[[Path | str], Any]:
    return _existing(lambda path: path.read_bytes() and True, name)


TASK = "--task IN/text.txt --limit 8 --batch-size 8"

WRITERS: Mapping[str, Writer] = {
    "train": Writer("train --config IN/config.py:6 --workdir OUT/run", _existing(of_model, "run/model")),
    "finetune": Writer(
        "finetune IN/classifier OUT/model --train IN/films.tsv --steps 4 --evaluations 2 --overwrite",
        _existing(of_model, "model"),
        "import IN/hf OUT/model",
    ),
    "prune": Writer(
        "prune IN/model OUT/model --remove 50% --by random --overwrite",
        _existing(of_model, "model"),
        "prune IN/model OUT/model --remove decoder/0/0",
    ),
    "convert": Writer(
        "convert IN/model OUT/model --to grouped:kv_heads=1 --overwrite",
        _existing(of_model, "model"),
        "prune IN/model OUT/model --remove decoder/0/0",
    ),
    "export": Writer(
        "export IN/classifier OUT/hf --overwrite --json OUT/export.json",
        _existing(of_model, "hf"),
        "export IN/classifier OUT/hf",
    ),
    "import": Writer(
        "import IN/hf OUT/model --overwrite",
        _existing(of_model, "model"),
        "prune IN/model OUT/model --remove 1 --by random",
    ),
    "prepare": Writer(
        f"prepare lm1b --out OUT/data --source IN/paragraphs/train.txt IN/paragraphs/valid.txt --vocab-size 280 "
        f"--length {LENGTH} --shard-mb 0.002",
        _existing(of_shards, "data"),
    ),
    "report": Writer(
        f"report IN/model --out OUT/heads.html {TASK} --orders importance,random --seeds 1 --calibrate 8 "
        "--percentages 50,100 --json OUT/report.json",
        _of_file("heads.html"),
        note=r"\d+ heads: about [^\n]*\n",
    ),
    "predict": Writer(
        "predict IN/classifier --task IN/films.tsv --out OUT/films.tsv --json OUT/films.json --overwrite",
        _of_file("films.tsv"),
    ),
    "inspect": Writer("inspect IN/model --json OUT/model.json", _of_file("model.json")),
}
"""Every command that writes; `--json` and `--out` of the others are the same function as here."""
