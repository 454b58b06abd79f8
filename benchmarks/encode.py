"""`python -m benchmarks encode --models ORIGINAL SMALLER ...`: encoders in headjax, PyTorch and onnxruntime."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from benchmarks.result import BenchResult, pytorch
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.hub import to_huggingface
from headjax.hub.either import read_model
from headjax.hub.onnx import ONNX, QUANTIZED
from headjax.models.model import Model
from headjax.models.summary import summarize
from headjax.report.tables import Column, Table

SHAPES = ((1, 32), (32, 32), (32, 128))
"""Sentences and tokens of the batches that are timed."""

REPEATS = 7

Runs = Mapping[str, Callable[[np.ndarray], Any]]
"""What encodes tokens `[batch, length]`, by runtime."""


def run(progress: Progress = silent, models: Sequence[Path] = ()) -> BenchResult:
    """Time a forward pass of every directory in every runtime, all in turns; the first directory is the original.

    Raises:
        HeadjaxError: there are fewer than two directories, or PyTorch, transformers or onnxruntime is not installed.
    """
    if len(models) < 2:
        raise HeadjaxError("--models: names the original directory and smaller ones")
    opened = {folder.name: read_model(folder) for folder in models}
    vocabulary = min(getattr(model.config, "vocab_size", 0) for model in opened.values())
    with tempfile.TemporaryDirectory() as graphs:
        sides = {
            (folder.name, runtime): call
            for folder in models
            for runtime, call in runtimes(opened[folder.name], folder, Path(graphs) / folder.name).items()
        }
        timings: dict[tuple[int, int], dict[tuple[str, str], Timing]] = {}
        with progress("encoding", len(SHAPES), "shape") as bar:
            for shape in SHAPES:
                timings[shape] = _in_turns(sides, shape, vocabulary)
                bar(len(timings), {})
    whole, *smaller = opened
    tables = [_table(shape, timings[shape], {name: _flops(model, shape) for name, model in opened.items()})
              for shape in SHAPES]  # fmt: skip
    largest = timings[SHAPES[-1]]
    found = {
        f"{batch}x{length}": {f"{name}, {runtime}": timing._asdict() for (name, runtime), timing in each.items()}
        for (batch, length), each in timings.items()
    }
    ratio = largest[smaller[0], "PyTorch"].median / largest[whole, "PyTorch"].median
    return BenchResult(found, {}, ratio, tuple(tables), ("torch", "transformers", "onnxruntime"))


def runtimes(model: Model, folder: Path, graph: Path) -> Runs:
    """Return what encodes with a directory; its graph is written first."""
    torch, transformers = pytorch("encode")
    import onnxruntime

    theirs = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    to_huggingface(model, graph, layout="onnx", quantize="int8")
    whole, rounded = (
        onnxruntime.InferenceSession(graph / file, providers=["CPUExecutionProvider"])
        for file in (ONNX, QUANTIZED["int8"])
    )
    needed = [entry.name for entry in whole.get_inputs()]
    forward, model = nnx.jit(lambda model, tokens: model({"input_ids": tokens}).hidden), model.unstacked()

    def in_pytorch(tokens: np.ndarray) -> Any:
        given = torch.from_numpy(tokens).long()
        with torch.inference_mode():
            return theirs(input_ids=given, attention_mask=torch.ones_like(given)).last_hidden_state

    def in_onnxruntime(session: Any, tokens: np.ndarray) -> Any:
        ids = tokens.astype(np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return session.run(None, {name: given[name] for name in needed})

    return {
        "headjax": lambda tokens: forward(model, tokens),
        "PyTorch": in_pytorch,
        "onnxruntime": functools.partial(in_onnxruntime, whole),
        "onnxruntime, int8": functools.partial(in_onnxruntime, rounded),
    }


def _in_turns(
    sides: Mapping[tuple[str, str], Callable[[np.ndarray], Any]], shape: tuple[int, int], vocabulary: int
) -> dict[tuple[str, str], Timing]:
    """Return the timings of one shape."""
    tokens = np.random.default_rng(0).integers(5, vocabulary, shape, dtype=np.int32)
    calls = {" / ".join(side): lambda call=call: call(tokens) for side, call in sides.items()}
    return dict(zip(sides, time_in_turns(calls, repeats=REPEATS).values(), strict=True))


def _flops(model: Model, shape: tuple[int, int]) -> float:
    return float(summarize(model.config, shape[1]).flops * shape[0])


def _table(shape: tuple[int, int], timings: Mapping[tuple[str, str], Timing], flops: Mapping[str, float]) -> Table:
    """Return the sentences a second, with each directory's time and FLOPs over the original's."""
    whole = next(iter(flops))
    rows = [
        (
            name,
            runtime,
            shape[0] / timing.median,
            timing.median / timings[whole, runtime].median,
            flops[name] / flops[whole],
        )
        for (name, runtime), timing in timings.items()
    ]
    columns = (
        Column("Directory"),
        Column("Runtime"),
        Column("Sentences a second", numbers.significant, "higher"),
        Column("Time over the original's", numbers.significant),
        Column("FLOPs over the original's", numbers.significant),
    )
    return Table(columns, rows, notes=(f"{shape[0]} sentences of {shape[1]} tokens, medians of {REPEATS} turns.",))
