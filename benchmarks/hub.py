"""`python -m benchmarks hub`: time and memory of import, pruning and export.

Importing a BERT-base directory of 440 MB stands beside reading its file with safetensors alone; import, pruning and
export of a model of 1.2 billion parameters beside a copy of its files. The large model has the shape of Llama-3.2-1B
and random weights in bfloat16. Every run is a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from benchmarks.result import SPREAD, BenchResult, in_new_process, peak_bytes
from benchmarks.train_step import bert
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.families import LLAMA
from headjax.hub.fields import Fields
from headjax.hub.importing import read_config
from headjax.hub.rules import BoundRule, bind
from headjax.hub.safetensors_files import INDEX, write_safetensors
from headjax.models.model import Model
from headjax.report.tables import Column, Table
from headjax.tokenizers.files import write_tokenizer
from headjax.tokenizers.vocabularies import byte_tokenizer

LARGE: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
"""Fields of Llama-3.2-1B's config that say which tensors there are; its positions are not stretched."""

SHARD = 10**9
"""Bytes of a file of the directory: it holds the tensors that end within them."""
BLOCK = 2**24
"""Bytes that the copy reads and writes at once."""

REPEATS, LARGE_REPEATS = 5, 3
"""Runs of each step, in turns: of reading BERT-base, and of import, export and copy of the large model."""
REMOVED = "25%"
"""Heads that go, and the sequences that they are chosen on."""


class Step(NamedTuple):
    """A measured step.

    Attributes:
        prepare: returns the function that is timed, for a source and a target; what that needs is imported before.
        source, target: names of both in the benchmark's folder.
    """

    prepare: Callable[[Path, Path], Callable[[], Any]]
    source: str
    target: str = ""


def run(progress: Progress = silent, fields: Mapping[str, Any] = LARGE) -> BenchResult:
    """Measure all steps, those that are compared in turns; memory is a process's peak.

    Args:
        progress: shows the runs.
        fields: config of the large model.

    Raises:
        HeadjaxError: a process failed.
    """
    moving = ("copy", "import", "export")
    total = len(READING) * REPEATS + len(moving) * LARGE_REPEATS + 1
    with tempfile.TemporaryDirectory(prefix="headjax-") as name, progress("reading and writing", total, "runs") as bar:
        folder, done = Path(name), 0

        def measure(steps: Sequence[str], repeats: int, size: int) -> dict[str, dict[str, Any]]:
            nonlocal done
            runs: dict[str, list[dict[str, float]]] = {step: [] for step in steps}
            for _ in range(repeats):
                for step in steps:
                    if STEPS[step].target:
                        shutil.rmtree(folder / STEPS[step].target, ignore_errors=True)
                    runs[step].append(in_new_process(report, step, name))
                    bar(done := done + 1, {})
            return {step: _summary(found, size) for step, found in runs.items()}

        config = bert()
        size = to_huggingface(Model(config, config.initialize(jax.random.key(0))), folder / "bert").bytes
        reading = measure(READING, REPEATS, size)
        size = write_random(folder / "theirs", fields)
        large = measure(moving, LARGE_REPEATS, size)
        shutil.rmtree(folder / "exported", ignore_errors=True)
        large |= measure(("prune",), 1, size)
    for step in large.values():
        step["seconds_over_copy"] = step["seconds"] / large["copy"]["seconds"]
    ours, peer = reading.values()
    tables = (_reading_table(reading), _moving_table(large))
    ratio = ours["seconds"] / peer["seconds"]
    return BenchResult({**ours, "large": {"file_bytes": size, **large}}, peer, ratio, tables, ("safetensors",))


def report(name: str, folder: str) -> None:
    """Do one step in the benchmark's folder, and print its time and this process's memory as JSON."""
    step = STEPS[name]
    jax.devices()  # so that all processes hold the same besides
    call = step.prepare(Path(folder) / step.source, Path(folder) / step.target)
    before = peak_bytes()
    start = time.perf_counter()
    held = call()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "before_bytes": before}))
    del held


def write_random(folder: Path, fields: Mapping[str, Any]) -> int:
    """Write a Hugging Face directory with random weights, one tensor after another; return the bytes of its tensors.

    Args:
        folder: the new directory.
        fields: its config.
    """
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(fields), indent=2))
    write_tokenizer(byte_tokenizer(), folder, None)
    config = read_config(LLAMA, Fields(fields))
    rules = bind(LLAMA.tensor_rules(config), config, LLAMA.model_type)
    ends = np.cumsum([2 * math.prod(rule.shape) for rule in rules])
    files = {
        rule.theirs: f"model-{(end - 1) // SHARD + 1:05}.safetensors" for rule, end in zip(rules, ends, strict=True)
    }
    for file in sorted(set(files.values())):
        shard = [rule for rule in rules if files[rule.theirs] == file]
        entries = {rule.theirs: jax.ShapeDtypeStruct(rule.shape, ml_dtypes.bfloat16) for rule in shard}
        write_safetensors(folder / file, entries, ((rule.theirs, _random(rule)) for rule in shard))
    index = {"metadata": {"total_size": int(ends[-1])}, "weight_map": files}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    return int(ends[-1])


def _random(rule: BoundRule) -> np.ndarray:
    """Return weights of standard deviation 0.02, about 1 for norms, which depend on the tensor's name alone."""
    generator = np.random.default_rng(list(rule.theirs.encode()))
    array = np.empty(rule.shape, ml_dtypes.bfloat16)
    flat = array.reshape(-1)
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        part[...] = 0.02 * generator.standard_normal(len(part), np.float32) + (array.ndim == 1)
    return array


def _read(source: Path, _: Path) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(from_huggingface(source).params)


def _read_alone(source: Path, _: Path) -> Callable[[], Any]:
    from safetensors.numpy import load_file

    return lambda: load_file(source / "model.safetensors")


def _copy(source: Path, target: Path) -> Callable[[], None]:
    """Return the peer: it reads every file, writes the bytes again and brings them to disk."""

    def copy() -> None:
        target.mkdir()
        buffer = memoryview(bytearray(BLOCK))
        for file in source.iterdir():
            with file.open("rb", buffering=0) as read, (target / file.name).open("wb", buffering=0) as written:
                while count := read.readinto(buffer):
                    written.write(buffer[:count])
                os.fsync(written.fileno())

    return copy


def _command(name: str, *words: str) -> Callable[[Path, Path], Callable[[], None]]:
    """Return a step that runs a command of headjax with other words behind its two folders."""

    def prepared(source: Path, target: Path) -> Callable[[], None]:
        import orbax.checkpoint  # noqa: F401  (imports are not measured)

        from headjax.cli import main

        def command() -> None:
            if code := main([name, str(source), str(target), *words]):
                raise HeadjaxError(f"{name}: exit code {code}")

        return command

    return prepared


PRUNING = ("--remove", REMOVED, "--by", "random")

STEPS: Mapping[str, Step] = {
    "headjax": Step(_read, "bert"),
    "safetensors.numpy.load_file": Step(_read_alone, "bert"),
    "copy": Step(_copy, "theirs", "copied"),
    "import": Step(_command("import"), "theirs", "ours"),
    "export": Step(_command("export"), "ours", "exported"),
    "prune": Step(_command("prune", *PRUNING), "ours", "pruned"),
}
"""Steps by name."""

READING = ("headjax", "safetensors.numpy.load_file")
"""The two that read BERT-base."""


def _summary(runs: Sequence[Mapping[str, float]], size: int) -> dict[str, Any]:
    """Return the quartiles of the time, of a single run all three, and the most memory."""
    seconds = [run["seconds"] for run in runs]
    timing = Timing.of(seconds * 2 if len(seconds) == 1 else seconds)
    peak = int(max(run["peak_bytes"] for run in runs))
    return {
        "seconds": timing.median,
        "seconds_low": timing.low,
        "seconds_high": timing.high,
        "peak_bytes": peak,
        "before_bytes": int(max(run["before_bytes"] for run in runs)),
        "file_bytes": size,
        "peak_over_file": peak / size,
    }


def _rows(found: Mapping[str, Mapping[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    every = ("seconds", "seconds_low", "seconds_high", *keys)
    return [(name, *(step[key] for key in every)) for name, step in found.items()]


def _reading_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = (Column("Peak memory", numbers.size, "lower"), Column("of it before", numbers.size))
    size = numbers.size(found["headjax"]["file_bytes"])
    note = f"A BERT-base file of {size}, in the page cache; {REPEATS} new processes each, in turns."
    return Table((Column("Reading"), *SPREAD, *columns), _rows(found, "peak_bytes", "before_bytes"), notes=(note,))


def _moving_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = (
        Column("over copying", numbers.significant),
        Column("Peak memory", numbers.size, "lower"),
        Column("over the file", numbers.significant),
    )
    rows = _rows(found, "seconds_over_copy", "peak_bytes", "peak_over_file")
    note = (
        f"Random weights of {numbers.size(found['copy']['file_bytes'])}; a process each, its interpreter and libraries "
        "counted in its memory and their start not in its time. copy: the peer, which reads the files and writes them "
        f"again. prune: {REMOVED} of the heads, drawn at random."
    )
    return Table((Column("Moving"), *SPREAD, *columns), rows, notes=(note,))
