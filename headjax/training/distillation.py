"""Fine-tuning with a teacher: a pruned or converted model learns back from the model it was made of."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Size
from headjax.core.losses import Losses
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.mesh.distributed import on_this_process, put_batch
from headjax.mesh.mesh import MeshConfig, batch_sharding
from headjax.mesh.rules import shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.inputs import check_batch
from headjax.models.model import Model
from headjax.models.outputs import IGNORED
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.models.tasks.text import cosines
from headjax.training.loop import run_steps
from headjax.training.optimizer import AdamW, LinearDecay, Optimizer
from headjax.training.state import TrainState, initial_state
from headjax.training.step import Objective, StepMetrics, train_step

TEACHER = "teacher"
"""Name of the teacher's `Answers` in a student's batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """Sources that a student learns from, and their weights.

        task * L + logits * T^2 KL(softmax(z' / T) || softmax(z / T)) + hidden * mean((h - h')^2)

    L is the task's own loss; z and h are the student's logits and last hidden states, z' and h' the teacher's (Hinton
    et al. 2015; hidden states as in TinyBERT, Jiao et al. 2020). The divergence is a mean over predictions: examples of
    a classifier, both ends of a span, tokens that are not padding elsewhere. Where a model predicts numbers
    (regression, similarity of sentences), their squared difference takes its place.

    Attributes:
        steps: optimizer steps.
        optimizer: optimizer and learning-rate schedule.
        task, logits, hidden: weights of the three parts.
        temperature: T.
        seed: of dropout.
    """

    steps: Size
    optimizer: Optimizer = AdamW(schedule=LinearDecay(peak=5e-5))
    task: NotNegative = 1.0
    logits: NotNegative = 1.0
    hidden: NotNegative = 0.0
    temperature: Positive = 2.0
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer.check(self.steps)
        require(self.task + self.logits + self.hidden > 0.0, "task", "all weights are 0, there is nothing to learn")


class Answers(NamedTuple):
    """A teacher's outputs on a batch, as far as a student is compared with them.

    Attributes:
        predictions: logits whose last axis counts the choices, or predicted numbers: one array, of a span two.
        hidden: last hidden states `[batch, length, width]`; None where they are not compared.
    """

    predictions: tuple[jax.Array, ...]
    hidden: jax.Array | None


class Distilled(NamedTuple):
    """A student after distillation.

    Attributes:
        model: the student, with a history entry of action `distill`.
        losses: `[steps]` the loss of each step's batch.
    """

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
    progress: Update | None = None,
) -> Distilled:
    """Train a student on a task with the teacher's answers beside the labels.

    The student draws its dropout as in training, the teacher computes without. Any two models of the same outputs go
    together: pruned, converted to other formulations, of fewer layers.

    Args:
        student: the model to train; its parameters stay as they are, the result has new ones.
        teacher: the model to learn from; None learns from the labels alone, which is ordinary fine-tuning.
        batches: training batches with labels, at least `steps` of them (`Task.train_batches` never ends); of few
            shapes, since each is compiled once.
        settings: sources to learn from, and number of steps.
        mesh: devices to spread the batches over; None is the first device alone.
        compute: how to compute.
        progress: called after every step with the number of steps done and the latest loss that the host knows, see
            `headjax.core.losses`.

    Raises:
        DataError: the batches end early.
        HeadjaxError: the teacher's outputs have other shapes than the student's, or the loss is not finite.
    """
    mesh = MeshConfig(data=1).build(jax.devices()[:1]) if mesh is None else mesh
    settings = settings if teacher is not None else dataclasses.replace(settings, task=1.0, logits=0.0, hidden=0.0)
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("batches: there is no example to learn from")
    config = student.config
    feed: Iterator[Batch] = (
        put_batch(check_batch(config, batch), mesh) for batch in itertools.chain([first], iterator)
    )
    if teacher is not None:
        _check_outputs(student, teacher, first, settings)
        feed = _answered(feed, student, teacher, settings, mesh, compute)
    losses = Losses("distillation", settings.steps)

    def after(number: int, state: TrainState, measured: StepMetrics) -> bool:
        losses.add(measured.loss)
        if progress is not None:
            progress(number, losses.latest())
        return False

    optimizer = settings.optimizer.build(config.tensors(), settings.steps)
    state = initial_state(config, optimizer, mesh, settings.seed, student.params)
    step = _step(config, settings, mesh, compute)
    state = run_steps(lambda _, state, batch: step(state, batch), state, feed, range(1, settings.steps + 1), after)
    weights = {name: getattr(settings, name) for name in ("task", "logits", "hidden", "temperature")}
    entry = history.entry("distill", steps=settings.steps, **weights)
    params = on_this_process(state.params, mesh)
    return Distilled(student.replace(params=params, history=(*student.history, entry)), losses.fetch())


def distillation_objective(student: ModelConfig, settings: Distillation) -> Objective:
    """Return the objective of `Distillation`, for batches that hold the teacher's `Answers` as `teacher`.

    A term of weight 0 is left out; without a term of the teacher's, no answers are needed.

    Args:
        student: the student's architecture.
        settings: the weights and the temperature.
    """
    terms: tuple[tuple[float, Callable[[Output, Batch, Loss], Loss]], ...] = (
        (settings.task, lambda given, batch, own: own),
        (settings.logits, functools.partial(_divergence, student, settings.temperature)),
        (settings.hidden, functools.partial(_hidden_difference, student)),
    )
    kept = [(weight, term) for weight, term in terms if weight]

    def losses_of(given: Output, batch: Batch) -> tuple[Loss, ...]:
        own = student.loss(given, batch)
        return tuple(term(given, batch, own) for _, term in kept)

    return Objective(losses_of, tuple(weight for weight, _ in kept))


def answers_of(task: Any, output: Output, batch: Batch, settings: Distillation) -> Answers:
    """Return the part of a teacher's output that the objective compares.

    Args:
        task: the student's task, `output` of its config; None where its config has none.
        output: the teacher's output.
        batch: the batch.
        settings: the weights.
    """
    predictions = _predictions(task, output, batch) if settings.logits else ()
    return Answers(predictions, output.hidden if settings.hidden else None)


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
    task = getattr(student.config, "output", None)
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
        output = teacher.apply(params, batch, Options(compute=compute))
        answers = answers_of(task, output, batch, settings)
    return jax.lax.with_sharding_constraint(answers, batch_sharding(mesh))


def _divergence(student: ModelConfig, temperature: float, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return T^2 KL(teacher || student) of every prediction, or squared differences of predicted numbers."""
    task = getattr(student, "output", None)
    pairs = list(zip(_predictions(task, given, batch), batch[TEACHER].predictions, strict=True))
    if isinstance(task, Regression | SentenceSimilarity):
        each = [jnp.square(mine - theirs).reshape(mine.shape[0], -1).mean(axis=-1) for mine, theirs in pairs]
    else:
        each = []
        for pair in pairs:
            offered, wanted = (jax.nn.log_softmax(array / temperature, axis=-1) for array in pair)
            each.append(temperature**2 * jnp.sum(jnp.exp(wanted) * (wanted - offered), axis=-1))
    return _over_counted(student, functools.reduce(jnp.add, each) / len(each), batch, own)


def _hidden_difference(student: ModelConfig, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return the mean squared difference of every token's last hidden state from the teacher's."""
    squares = jnp.square(given.hidden - batch[TEACHER].hidden).astype(jnp.float32).mean(axis=-1)
    return _over_counted(student, squares, batch, own)


def _predictions(task: Any, output: Output, batch: Batch) -> tuple[jax.Array, ...]:
    """Return logits whose last axis counts the choices, or predicted numbers."""
    if isinstance(task, SentenceSimilarity):
        return (cosines(output, batch),)
    if isinstance(task, Span):
        return (output.require_logits("start_logits"), output.require_logits("end_logits"))
    return (output.require_logits(),)


def _over_counted(student: ModelConfig, values: jax.Array, batch: Batch, own: Loss) -> Loss:
    """Return values `[batch]` or `[batch, length]` as losses of the examples and tokens that are no padding."""
    counted = (own.weight > 0).astype(jnp.float32)
    if values.ndim == 1:
        return Loss(values * counted, counted)
    if isinstance(student, EncoderDecoderModel):
        tokens = batch["labels"] != IGNORED
    else:
        tokens = batch.get("attention_mask", jnp.ones(()))
    by_token = jnp.broadcast_to(jnp.atleast_2d(tokens).astype(jnp.float32), values.shape) * counted[:, None]
    return Loss((values * by_token).sum(axis=1), by_token.sum(axis=1))


def _check_outputs(student: Model, teacher: Model, batch: Batch, settings: Distillation) -> None:
    """Raise `HeadjaxError` where the two models compute arrays of different shapes that are to be compared."""

    def shapes(model: Model) -> Output:
        return jax.eval_shape(lambda params, batch: model.config.apply(params, batch, Options()), model.params, batch)

    own, other = shapes(student), shapes(teacher)
    compared = [("logits", settings.logits, own.logits, other.logits)]
    compared.append(("hidden", settings.hidden, own.hidden, other.hidden))
    for name, weight, mine, theirs in compared:
        if weight and (mine is None) != (theirs is None):
            raise HeadjaxError(f"teacher: {name}: one of teacher and student computes none")
        if weight and mine is not None and theirs is not None and mine.shape != theirs.shape:
            raise HeadjaxError(f"teacher: its {name} are {list(theirs.shape)}, the student's {list(mine.shape)}")
