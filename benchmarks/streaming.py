"""Import, pruning and export of a model of 1.2 billion parameters: their time and memory beside its file.

The model has the shape of Llama-3.2-1B and random weights in bfloat16. Its Hugging Face directory is made tensor by
tensor. Each step runs in a process of its own; the peer reads the same files and writes them again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from benchmarks.result import in_new_process, peak_bytes
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.hub.families import LLAMA
from headjax.hub.fields import Fields
from headjax.hub.importing import read_config
from headjax.hub.rules import BoundRule, bind
from headjax.hub.safetensors_files import INDEX, write_safetensors
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.tokenizers.files import write_tokenizer
from headjax.tokenizers.learned import byte_tokenizer

SHAPE: Mapping[str, Any] = {
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
"""Bytes of a file of the directory, at least; it ends with the tensor that reaches them."""

BLOCK = 2**24
"""Bytes that the peer reads and writes at once."""

REPEATS = 3
"""Runs of import, export and copy, in turns."""

REMOVED, SEQUENCES, LENGTH = "25%", 16, 128
"""Heads that go, and the sequences that they are chosen on."""


class Step(NamedTuple):
    """Measurement of one step.

    Attributes:
        seconds: of every run, without the interpreter's start and imports.
        peak_bytes: the most memory that a run's process held, interpreter and libraries included.
    """

    seconds: tuple[float, ...]
    peak_bytes: int


def run(progress: Progress = silent, fields: Mapping[str, Any] = SHAPE, repeats: int = REPEATS) -> dict[str, Any]:
    """Return time and peak memory of each step, by quantity; `table` shows them.

    Args:
        progress: shows the runs.
        fields: config of the model.
        repeats: runs of import, export and copy.

    Raises:
        HeadjaxError: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="headjax-") as name, progress("moving", 3 * repeats + 2, "runs") as bar:
        folder = Path(name)
        size = write_random(folder / "theirs", fields)
        bar(1, {})
        done: dict[str, list[dict[str, float]]] = {"copy": [], "import": [], "export": [], "prune": []}
        for repeat in range(repeats):
            for place, step in enumerate(("copy", "import", "export")):
                shutil.rmtree(folder / PLACES[step][1], ignore_errors=True)
                done[step].append(in_new_process(move_and_report, step, name))
                bar(2 + 3 * repeat + place, {})
        shutil.rmtree(folder / PLACES["export"][1])
        done["prune"].append(in_new_process(move_and_report, "prune", name))
    steps = {step: _step(runs) for step, runs in done.items()}
    return _summary(steps, size)


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
    names: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(_shards(bind(LLAMA.tensor_rules(config), config, LLAMA.model_type)), start=1):
        file = f"model-{number:05}.safetensors"
        entries = {rule.theirs: jax.ShapeDtypeStruct(rule.shape, ml_dtypes.bfloat16) for rule in shard}
        write_safetensors(folder / file, entries, ((rule.theirs, _random(rule)) for rule in shard))
        names |= dict.fromkeys(entries, file)
        total += sum(map(_bytes, shard))
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    return total


def _shards(rules: list[BoundRule]) -> Iterator[list[BoundRule]]:
    """Yield the tensors of each file."""
    shard: list[BoundRule] = []
    for rule in rules:
        shard.append(rule)
        if sum(map(_bytes, shard)) >= SHARD:
            yield shard
            shard = []
    if shard:
        yield shard


def _bytes(rule: BoundRule) -> int:
    return int(np.prod(rule.shape)) * 2


def _random(rule: BoundRule) -> np.ndarray:
    """Return weights of standard deviation 0.02, about 1 for norms, which depend on the tensor's name alone."""
    generator = np.random.default_rng(list(rule.theirs.encode()))
    array = np.empty(rule.shape, ml_dtypes.bfloat16)
    flat = array.reshape(-1)
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        part[...] = 0.02 * generator.standard_normal(len(part), np.float32) + (array.ndim == 1)
    return array


def move_and_report(step: str, folder: str) -> None:
    """Do one step in a folder that `run` has made, and print its time and this process's memory as JSON."""
    move = STEPS[step](*(f"{folder}/{place}" for place in PLACES[step]))
    start = time.perf_counter()
    move()
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_bytes": peak_bytes()}))


def _copy(source: str, target: str) -> Callable[[], None]:
    """Return the peer: it reads every file, writes the bytes again and brings them to disk."""

    def copy() -> None:
        Path(target).mkdir()
        buffer = memoryview(bytearray(BLOCK))
        for file in Path(source).iterdir():
            with file.open("rb", buffering=0) as read, (Path(target) / file.name).open("wb", buffering=0) as written:
                while count := read.readinto(buffer):
                    written.write(buffer[:count])
                os.fsync(written.fileno())

    return copy


def _command(name: str, *words: str) -> Callable[[str, str], Callable[[], None]]:
    """Return a step that runs a command of headjax with other words behind its two folders."""

    def prepared(source: str, target: str) -> Callable[[], None]:
        import orbax.checkpoint  # noqa: F401  (imports are not measured)

        from headjax.cli import main
        from headjax.core.errors import HeadjaxError

        jax.devices()

        def command() -> None:
            if code := main([name, source, target, *words]):
                raise HeadjaxError(f"{name}: exit code {code}")

        return command

    return prepared


STEPS: Mapping[str, Callable[[str, str], Callable[[], None]]] = {
    "copy": _copy,
    "import": _command("import"),
    "export": _command("export"),
    "prune": _command(
        *("prune", "--remove", REMOVED, "--by", "output_norm", "--no-metrics", "--task", "python"),
        *("--length", str(LENGTH), "--selected", str(SEQUENCES)),
    ),
}
"""Steps by name, each a function from source and target to what is timed; it imports what that needs before."""

PLACES: Mapping[str, tuple[str, str]] = {
    "copy": ("theirs", "copied"),
    "import": ("theirs", "ours"),
    "export": ("ours", "exported"),
    "prune": ("ours", "pruned"),
}
"""Source and target of each step."""


def _step(runs: list[dict[str, float]]) -> Step:
    return Step(tuple(each["seconds"] for each in runs), max(int(each["peak_bytes"]) for each in runs))


def _timing(step: Step) -> Timing:
    """Return the quartiles of a step's runs; of a single run it is all three."""
    return Timing.of(list(step.seconds) * (2 if len(step.seconds) == 1 else 1))


def _summary(steps: Mapping[str, Step], size: int) -> dict[str, Any]:
    """Return the measurements by step and quantity."""
    copied = _timing(steps["copy"]).median
    found: dict[str, Any] = {"file_bytes": size}
    for name, step in steps.items():
        timing = _timing(step)
        found[name] = {
            "seconds": timing.median,
            "seconds_low": timing.low,
            "seconds_high": timing.high,
            "seconds_over_copy": timing.median / copied,
            "peak_bytes": step.peak_bytes,
            "peak_over_file": step.peak_bytes / size,
        }
    return found


def table(found: Mapping[str, Any]) -> Table:
    """Return the measurements as a table."""
    columns = (
        Column("Moving"),
        Column("Median", numbers.duration, "lower"),
        Column("First quartile", numbers.duration),
        Column("Third quartile", numbers.duration),
        Column("over copying", numbers.significant),
        Column("Peak memory", numbers.size, "lower"),
        Column("over the file", numbers.significant),
    )
    keys = ("seconds", "seconds_low", "seconds_high", "seconds_over_copy", "peak_bytes", "peak_over_file")
    rows = [(name, *(step[key] for key in keys)) for name, step in found.items() if name != "file_bytes"]
    note = (
        f"Random weights of {numbers.size(found['file_bytes'])}; a process each, its interpreter and libraries counted "
        f"in its memory and their start not in its time. copy: the peer, which reads the files and writes them again. "
        f"prune: {REMOVED} of the heads by output_norm on {SEQUENCES} sequences of {LENGTH} tokens."
    )
    return Table(columns, rows, notes=(note,))
