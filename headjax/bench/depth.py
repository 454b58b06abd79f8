"""`headjax bench depth`: what 144 single-head layers cost to compile and to hold, beside 12 layers of 12 heads."""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax import tensors as declared
from headjax.bench.bert import bert
from headjax.bench.result import BenchResult
from headjax.models.base import ModelConfig
from headjax.models.compute import Compute
from headjax.parallel.mesh import MeshConfig
from headjax.report import numbers
from headjax.report.progress import Progress, silent
from headjax.report.tables import Column, Table
from headjax.training.optimizer import AdamW, LinearDecay
from headjax.training.state import abstract_state
from headjax.training.step import train_step

REPEATS = 3


class Compiled(NamedTuple):
    """A train step's compilation.

    Attributes:
        trace_seconds: tracing and lowering.
        compile_seconds: XLA's compilation.
        temporary_bytes: memory of the step besides its arguments and results.
        total_bytes: temporaries, parameters and optimizer state.
        parameters: number of parameters.
    """

    trace_seconds: float
    compile_seconds: float
    temporary_bytes: int
    total_bytes: int
    parameters: int


def run(progress: Progress = silent) -> BenchResult:
    """Compiles the train step of both models several times, in turns, with full rematerialisation."""
    models = {"12 heads x 12 layers": bert(12, 12), "1 head x 144 layers": bert(1, 144, hidden=256)}
    measured: dict[str, list[Compiled]] = {name: [] for name in models}
    with progress("compiling", REPEATS * len(models), "step") as bar:
        for repeat in range(REPEATS):
            for place, (name, model) in enumerate(models.items()):
                jax.clear_caches()
                measured[name].append(compile_step(model, batch_size=8, length=128))
                bar(repeat * len(models) + place + 1, {})
    shallow, deep = (_summary(runs) for runs in measured.values())
    rows: list[tuple[Any, ...]] = [
        (name, s.parameters, s.trace_seconds, s.compile_seconds, s.temporary_bytes, s.total_bytes)
        for name, s in zip(models, (shallow, deep), strict=True)
    ]
    columns = (
        Column("Train step"),
        Column("Parameters", numbers.count),
        Column("Trace", numbers.duration, "lower"),
        Column("Compile", numbers.duration, "lower"),
        Column("Temporaries", numbers.size, "lower"),
        Column("With state", numbers.size, "lower"),
    )
    notes = (f"Batch 8 x 128, AdamW, full rematerialisation; medians of {REPEATS} compilations taken in turns.",)
    ratio = (deep.trace_seconds + deep.compile_seconds) / (shallow.trace_seconds + shallow.compile_seconds)
    return BenchResult(
        ours=deep._asdict() | {"memory_ratio": deep.total_bytes / shallow.total_bytes},
        peer=shallow._asdict(),
        ratio=ratio,
        tables=(Table(columns, rows, notes=notes),),
    )


def compile_step(model: ModelConfig, *, batch_size: int, length: int) -> Compiled:
    """Compiles a train step from shapes alone."""
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    optimizer = AdamW(schedule=LinearDecay(peak=1e-4, warmup_steps=10)).build(model.tensors(), 100)
    state = abstract_state(model, optimizer, mesh)
    tokens = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
    step = train_step(model, optimizer, mesh, compute=Compute(remat="full"), seed=0)
    start = time.perf_counter()
    lowered = step.lower(state, {"input_ids": tokens, "labels": tokens})  # type: ignore[attr-defined]
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    memory = compiled.memory_analysis()
    total = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    parameters = declared.count(model.tensors())
    return Compiled(traced - start, done - traced, memory.temp_size_in_bytes, total, parameters)


def _summary(runs: list[Compiled]) -> Compiled:
    """The medians of the times; sizes are the same in every run."""
    return runs[0]._replace(
        trace_seconds=statistics.median(run.trace_seconds for run in runs),
        compile_seconds=statistics.median(run.compile_seconds for run in runs),
    )
