"""Fine-tuning with a teacher: what a pruned or converted model lost is learned back from the model it was made of."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
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
from headjax.mesh.distributed import on_this_process
from headjax.mesh.mesh import MeshConfig, batch_sharding
from headjax.mesh.random_bits import step_key
from headjax.mesh.rules import shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.inputs import check_batch
from headjax.models.model import Model
from headjax.models.outputs import IGNORED
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.models.tasks.text import cosines
from headjax.training.gradient import gradient
from headjax.training.optimizer import AdamW, LinearDecay, Optimizer
from headjax.training.state import TrainState, initial_state
from headjax.training.step import StepMetrics, put_batch, updated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """What a student learns from.

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


class Distilled(NamedTuple):
    """A student after its lessons.

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
    """Trains a student on a task with the teacher's answers beside the labels.

    The student draws its dropout as in training, the teacher computes without. Any two models of the same outputs go
    together: pruned, converted to other formulations, of fewer layers.

    Args:
        student: the model to train; its parameters stay as they are, the result has new ones.
        teacher: the model to learn from; None learns from the labels alone, which is ordinary fine-tuning.
        batches: training batches with labels, at least `steps` of them (`Task.train_batches` never ends); of few
            shapes, since each is compiled once.
        settings: what to learn from, and for how long.
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
    teacher = student if teacher is None else teacher
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("batches: there is no example to learn from")
    _check_outputs(student, teacher, first, settings)
    config = student.config
    optimizer = settings.optimizer.build(config.tensors(), settings.steps)
    state = initial_state(config, optimizer, mesh, settings.seed, student.params)
    answers = jax.device_put(teacher.params, shardings(teacher.config.tensors(), mesh))
    step = _step(config, teacher.config, settings, mesh, compute)
    losses = Losses("distillation", settings.steps)
    for batch in itertools.islice(itertools.chain([first], iterator), settings.steps):
        state, metrics = step(state, answers, put_batch(check_batch(config, batch), mesh))
        losses.add(metrics.loss)
        if progress is not None:
            progress(len(losses), losses.latest())
    if len(losses) < settings.steps:
        raise DataError(f"batches: they end after {len(losses)} of {settings.steps} steps")
    weights = {name: getattr(settings, name) for name in ("task", "logits", "hidden", "temperature")}
    entry = history.entry("distill", steps=settings.steps, **weights)
    params = on_this_process(state.params, mesh)
    return Distilled(student.replace(params=params, history=(*student.history, entry)), losses.fetch())


def distillation_loss(
    student: ModelConfig, given: Output, teacher: Output, batch: Batch, settings: Distillation
) -> tuple[jax.Array, Loss]:
    """The loss of a batch as `Distillation` has it, and the task's own losses.

    Args:
        student: the student's architecture.
        given: what the student computes.
        teacher: what the teacher computes.
        batch: the batch, with labels.
        settings: the weights.
    """
    losses = student.loss(given, batch)
    # Weights are static: a part that does not count costs nothing.
    total = settings.task * losses.mean() if settings.task else jnp.zeros(())
    if settings.logits:
        total = total + settings.logits * _divergence(student, given, teacher, batch, losses, settings.temperature)
    if settings.hidden:
        squares = jnp.square(given.hidden - jax.lax.stop_gradient(teacher.hidden)).astype(jnp.float32).mean(axis=-1)
        total = total + settings.hidden * _mean(squares, _counted(student, batch, losses, squares.shape))
    return total, losses


def _divergence(
    student: ModelConfig, given: Output, teacher: Output, batch: Batch, losses: Loss, temperature: float
) -> jax.Array:
    task = getattr(student, "output", None)
    pairs = [
        (own, jax.lax.stop_gradient(other))
        for own, other in zip(_answers(task, given, batch), _answers(task, teacher, batch), strict=True)
    ]
    total = jnp.zeros(())
    for own, other in pairs:
        if isinstance(task, Regression | SentenceSimilarity):
            each = jnp.square(own - other).reshape(own.shape[0], -1).mean(axis=-1)
        else:
            wanted, offered = (jax.nn.log_softmax(array / temperature, axis=-1) for array in (other, own))
            each = temperature**2 * jnp.sum(jnp.exp(wanted) * (wanted - offered), axis=-1)
        total = total + _mean(each, _counted(student, batch, losses, each.shape))
    return total / len(pairs)


def _answers(task: Any, output: Output, batch: Batch) -> list[jax.Array]:
    """What is compared: logits whose last axis counts the choices, or numbers."""
    if isinstance(task, SentenceSimilarity):
        return [cosines(output, batch)]
    if isinstance(task, Span):
        return [output.require_logits("start_logits"), output.require_logits("end_logits")]
    return [output.require_logits()]


def _counted(student: ModelConfig, batch: Batch, losses: Loss, shape: tuple[int, ...]) -> jax.Array:
    """1.0 where something of `shape`, `[batch]` or `[batch, length]`, is no padding."""
    examples = (losses.weight > 0).astype(jnp.float32)
    if len(shape) == 1:
        return examples
    if isinstance(student, EncoderDecoderModel):
        tokens = batch["labels"] != IGNORED
    else:
        tokens = batch.get("attention_mask", jnp.ones(()))
    return jnp.broadcast_to(jnp.atleast_2d(tokens).astype(jnp.float32), shape) * examples[:, None]


def _mean(values: jax.Array, counted: jax.Array) -> jax.Array:
    return jnp.sum(values * counted) / jnp.maximum(counted.sum(), 1.0)


def _check_outputs(student: Model, teacher: Model, batch: Batch, settings: Distillation) -> None:
    """Raises `HeadjaxError` where the two models compute arrays of different shapes that are to be compared."""

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


@functools.lru_cache(maxsize=8)
def _step(student: ModelConfig, teacher: ModelConfig, settings: Distillation, mesh: Mesh, compute: Compute) -> Any:
    """The jitted step; it donates the state it is given, as `train_step`."""
    optimizer = settings.optimizer.build(student.tensors(), settings.steps)

    def step(state: TrainState, answers: Params, batch: Batch) -> tuple[TrainState, StepMetrics]:
        wanted = teacher.apply(answers, batch, Options(compute=compute))

        def loss_of(params: Params, key: jax.Array) -> tuple[jax.Array, Loss]:
            given = student.apply(params, batch, Options(key=key, compute=compute))
            return distillation_loss(student, given, wanted, batch, settings)

        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            key = step_key(settings.seed, state.step, "threefry2x32")
            return updated(optimizer, state, gradient(loss_of, state.params, key), student.count_tokens(batch))

    return jax.jit(step, in_shardings=(None, None, batch_sharding(mesh)), donate_argnums=0)
