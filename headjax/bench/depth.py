"""`headjax bench depth`: time and memory of 144 single-head layers to compile and run, beside 12 layers of 12 heads."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from headjax.bench.result import BenchResult
from headjax.bench.train_step import bert
from headjax.core import tensors as declared
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.heads.deepen import deep_config
from headjax.mesh.distributed import put_batch
from headjax.mesh.mesh import MeshConfig
from headjax.models.compute import Compute
from headjax.models.config import ModelConfig
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.training.optimizer import AdamW, LinearDecay
from headjax.training.state import abstract_state, initial_state
from headjax.training.step import train_step

REPEATS, STEPS = 3, 5
BATCH, LENGTH = 8, 128


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


class Step(NamedTuple):
    """A compiled train step and what it is a step of."""

    model: ModelConfig
    call: Any

    def start(self) -> Any:
        """A fresh training state."""
        return initial_state(self.model, optimizer(self.model), one_device(), 0)


def run(progress: Progress = silent) -> BenchResult:
    """Compile the train step of both models several times, in turns, then run it; full rematerialisation."""
    shallow_model = bert(12, 12)
    models = {"12 heads x 12 layers": shallow_model, "1 head x 144 layers": deep_config(shallow_model)}
    measured: dict[str, list[Compiled]] = {name: [] for name in models}
    steps: dict[str, Step] = {}
    with progress("compiling", REPEATS * len(models), "step") as bar:
        for repeat in range(REPEATS):
            for place, (name, model) in enumerate(models.items()):
                jax.clear_caches()
                compiled, steps[name] = compile_step(model, batch_size=BATCH, length=LENGTH)
                measured[name].append(compiled)
                bar(repeat * len(models) + place + 1, {})
    timings = time_steps(steps, progress)
    shallow, deep = (_summary(runs) for runs in measured.values())
    shallow_step, deep_step = timings.values()
    compile_ratio = (deep.trace_seconds + deep.compile_seconds) / (shallow.trace_seconds + shallow.compile_seconds)
    return BenchResult(
        ours=deep._asdict()
        | {"step": deep_step._asdict()}
        | {
            "memory_ratio": deep.total_bytes / shallow.total_bytes,
            "step_ratio": deep_step.median / shallow_step.median,
        },
        peer=shallow._asdict() | {"step": shallow_step._asdict()},
        ratio=compile_ratio,
        tables=(_table(models, (shallow, deep), timings),),
    )


def _table(models: Mapping[str, ModelConfig], compiled: tuple[Compiled, ...], timings: Mapping[str, Timing]) -> Table:
    rows: list[tuple[Any, ...]] = [
        (
            name,
            c.parameters,
            BATCH * models[name].flops(LENGTH),
            c.trace_seconds,
            c.compile_seconds,
            c.temporary_bytes,
            c.total_bytes,
            timings[name].median,
            timings[name].low,
            timings[name].high,
        )
        for name, c in zip(models, compiled, strict=True)
    ]
    columns = (
        Column("Train step"),
        Column("Parameters", numbers.count),
        Column("Work of a forward", numbers.flops),
        Column("Trace", numbers.duration, "lower"),
        Column("Compile", numbers.duration, "lower"),
        Column("Temporaries", numbers.size, "lower"),
        Column("With state", numbers.size, "lower"),
        Column("Step", numbers.duration, "lower"),
        Column("First quartile", numbers.duration),
        Column("Third quartile", numbers.duration),
    )
    shape = f"Batch {BATCH} x {LENGTH}, AdamW, full rematerialisation"
    notes = (f"{shape}; medians of {REPEATS} compilations and {STEPS} turns of two steps, of which the second counts.",)
    return Table(columns, rows, notes=notes)


def compile_step(model: ModelConfig, *, batch_size: int, length: int) -> tuple[Compiled, Step]:
    """Compile a train step from shapes alone."""
    transformation, mesh = optimizer(model), one_device()
    state = abstract_state(model, transformation, mesh)
    tokens = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
    step = train_step(model, transformation, mesh, compute=Compute(remat="full"), seed=0)
    start = time.perf_counter()
    lowered = step.lower(state, {"input_ids": tokens, "labels": tokens})
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    memory = compiled.memory_analysis()
    total = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    parameters = declared.count(model.tensors())
    costs = Compiled(traced - start, done - traced, memory.temp_size_in_bytes, total, parameters)
    return costs, Step(model, lambda state, batch: compiled(state, batch, step.seed))


def time_steps(steps: Mapping[str, Step], progress: Progress = silent) -> dict[str, Timing]:
    """Seconds of a step of each on random tokens, see `time_in_turns`."""
    tokens = np.random.default_rng(0).integers(1000, 30_000, size=(BATCH, LENGTH)).astype(np.int32)
    batch = put_batch({"input_ids": tokens, "labels": tokens}, one_device())
    states = {name: step.start() for name, step in steps.items()}

    def advance(name: str) -> Any:
        states[name], metrics = steps[name].call(states[name], batch)
        return states[name], metrics

    calls = {name: functools.partial(advance, name) for name in steps}
    return time_in_turns(calls, repeats=STEPS, progress=progress)


def optimizer(model: ModelConfig) -> optax.GradientTransformation:
    """The optimizer of the steps."""
    return AdamW(schedule=LinearDecay(peak=1e-4, warmup_steps=10)).build(model.tensors(), 100)


def one_device() -> Mesh:
    """A mesh of the first device."""
    return MeshConfig(data=1).build(jax.devices()[:1])


def _summary(runs: list[Compiled]) -> Compiled:
    """The medians of the times; sizes are the same in every run."""
    return runs[0]._replace(
        trace_seconds=statistics.median(run.trace_seconds for run in runs),
        compile_seconds=statistics.median(run.compile_seconds for run in runs),
    )
