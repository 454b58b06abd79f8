"""Fine-tuning with a teacher: a pruned or converted model learns back from the model it was made of."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.errors import DataError, HeadjaxError
from headjax.core.losses import Losses
from headjax.core.programs import make_room
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.mesh.distributed import on_this_process, put_batch
from headjax.mesh.mesh import MeshConfig, batch_sharding
from headjax.mesh.rules import shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig, Output
from headjax.models.inputs import check_batch
from headjax.models.model import Model
from headjax.models.passes import Pass
from headjax.training.checkpoints import Checkpoints
from headjax.training.loop import run_steps
from headjax.training.objectives import (
    TEACHER,
    Answers,
    Distillation,
    answers_of,
    distillation_objective,
)
from headjax.training.state import TrainState, abstract_state, initial_state
from headjax.training.step import StepMetrics, train_step

CHECKPOINT_EVERY = 100
"""Steps between the checkpoints from which a stopped distillation continues."""


class Distilled(NamedTuple):
    """A student after distillation."""

    model: Model
    losses: np.ndarray


def distill(
    student: Model,
    teacher: Model | None,
    batches: Iterable[Batch],
    settings: Distillation,
    *,
    mesh: Mesh | None = None,
    compute: Compute = Compute(),
    checkpoints: Checkpoints | None = None,
    progress: Update | None = None,
) -> Distilled:
    """Train a student on a task with the teacher's answers beside the labels.

    The student draws its dropout as in training, the teacher computes without. Any two models of the same outputs go
    together: pruned, converted to other formulations, of fewer layers.

        >>> from headjax.training.objectives import Distillation
        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> student = headjax.prune(model, ["decoder/0/0"])
        >>> headjax.distill(student, model, [batch, batch], Distillation(steps=2)).losses.shape
        (2,)

    Args:
        student: the model to train; its parameters stay as they are, the result has new ones.
        teacher: the model to learn from; None learns from the labels alone, which is ordinary fine-tuning.
        batches: training batches with labels, at least `steps` of them (`Task.train_batches` never ends); of few
            shapes, since each is compiled once.
        settings: sources to learn from, and number of steps.
        mesh: devices to spread the batches over; None is the first device alone.
        compute: how to compute.
        checkpoints: where the state is kept every `CHECKPOINT_EVERY` steps; those of the same run that are there are
            gone on from, and the batches up to there are passed over. None keeps nothing.
        progress: called after every step with the number of steps done and the latest loss that the host knows, see
            `headjax.core.losses`.

    Raises:
        CheckpointError: the checkpoints are of another run.
        DataError: the batches end early.
        HeadjaxError: the teacher's outputs have other shapes than the student's, or the loss is not finite.
    """
    make_room()
    mesh = MeshConfig(data=1).build(jax.devices()[:1]) if mesh is None else mesh
    if teacher is None:
        settings = dataclasses.replace(settings, task=1.0, logits=0.0, hidden=0.0)
    config, losses = student.config, Losses("distillation", settings.steps)
    state = _begin(student, settings, mesh, checkpoints, losses)
    feed = _fed(batches, int(state.step), student, teacher, settings, mesh, compute)

    def after(number: int, state: TrainState, measured: StepMetrics) -> bool:
        losses.add(measured.loss)
        if checkpoints is not None and number % CHECKPOINT_EVERY == 0 and number < settings.steps:
            checkpoints.save(number, state, {"losses": losses.fetch().tolist()})
        if progress is not None:
            progress(number, losses.latest())
        return False

    step = _step(config, settings, mesh, compute)
    remaining = range(int(state.step) + 1, settings.steps + 1)
    state = run_steps(lambda _, state, batch: step(state, batch), state, feed, remaining, after)
    numbers = {name: getattr(settings, name) for name in ("task", "logits", "hidden", "temperature")}
    entry = history.entry("distill", steps=settings.steps, **numbers)
    params = on_this_process(state.params, mesh)
    return Distilled(student.replace(params=params, history=(*student.history, entry)), losses.fetch())


def _begin(
    student: Model, settings: Distillation, mesh: Mesh, checkpoints: Checkpoints | None, losses: Losses
) -> TrainState:
    """Return the state of the newest checkpoint, the losses up to there among the others; without one, the first."""
    optimizer = settings.optimizer.build(student.config.tensors(), settings.steps)
    if checkpoints is not None:
        restored = checkpoints.restore_newest(abstract_state(student.config, optimizer, mesh))
        if restored is not None:
            state, position = restored
            losses.fetched += position["losses"]
            return state
    return initial_state(student.config, optimizer, mesh, settings.seed, student.params)


@functools.lru_cache(maxsize=8)
def _step(student: ModelConfig, settings: Distillation, mesh: Mesh, compute: Compute) -> Any:
    return train_step(
        student,
        settings.optimizer.build(student.tensors(), settings.steps),
        mesh,
        compute=compute,
        seed=settings.seed,
        objective=distillation_objective(student, settings),
    )


def _answered(
    batches: Iterator[Batch], student: Model, teacher: Model, settings: Distillation, mesh: Mesh, compute: Compute
) -> Iterator[Batch]:
    """Yield the batches with the teacher's answers beside the labels."""
    params = jax.device_put(teacher.params, shardings(teacher.config.tensors(), mesh))
    task = getattr(student.config, "task", None)
    for batch in batches:
        yield {**batch, TEACHER: _answer(teacher.config, task, settings, mesh, compute, params, batch)}


@functools.partial(jax.jit, static_argnames=("teacher", "task", "settings", "mesh", "compute"))
def _answer(
    teacher: ModelConfig,
    task: Any,
    settings: Distillation,
    mesh: Mesh,
    compute: Compute,
    params: Params,
    batch: Batch,
) -> Answers:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        output = Model(teacher, params).forward(batch, Pass(compute=compute))
        answers = answers_of(task, output, batch, settings)
    return jax.lax.with_sharding_constraint(answers, batch_sharding(mesh))


def _fed(
    batches: Iterable[Batch],
    done: int,
    student: Model,
    teacher: Model | None,
    settings: Distillation,
    mesh: Mesh,
    compute: Compute,
) -> Iterator[Batch]:
    """Return the batches after `done` of them, on the mesh, with the teacher's answers."""
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("batches: there is no example to learn from")
    rest = itertools.islice(itertools.chain([first], iterator), done, None)
    feed = (put_batch(check_batch(student.config, batch), mesh) for batch in rest)
    if teacher is None:
        return feed
    _check_outputs(student, teacher, first, settings)
    return _answered(feed, student, teacher, settings, mesh, compute)


def _check_outputs(student: Model, teacher: Model, batch: Batch, settings: Distillation) -> None:
    """Raise `HeadjaxError` where the two models compute arrays of different shapes that are to be compared."""

    def shapes(model: Model) -> Output:
        return jax.eval_shape(Model.forward, model, batch)

    own, other = shapes(student), shapes(teacher)
    compared = (
        ("logits", settings.logits, own.logits, other.logits),
        ("hidden", settings.hidden, own.hidden, other.hidden),
    )
    for name, weight, mine, theirs in compared:
        if weight and (mine is None) != (theirs is None):
            raise HeadjaxError(f"teacher: {name}: one of teacher and student computes none")
        if weight and mine is not None and theirs is not None and mine.shape != theirs.shape:
            raise HeadjaxError(f"teacher: its {name} are {list(theirs.shape)}, the student's {list(mine.shape)}")
