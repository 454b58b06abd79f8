"""Distillation: a pruned or converted model learns back from its labels and from the model that it was made of."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Steps
from headjax.core.programs import evict_compiled
from headjax.core.progress import Update
from headjax.core.tensors import Params, abstract
from headjax.core.timing import Losses
from headjax.heads.agreement import divergence
from headjax.mesh.distributed import on_this_process, place_copies, put_batch
from headjax.mesh.mesh import MeshConfig, batch_sharding
from headjax.mesh.rules import shardings
from headjax.models.config import Batch, Loss, ModelConfig, Output, declared_model
from headjax.models.inputs import check_batch, counted_at
from headjax.models.model import Model, history_entry
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.nn.block import Compute, ForwardOptions
from headjax.training.config import AdamW, LinearDecay, Optimizer, build_optimizer
from headjax.training.step import Objective, Trainer

TEACHER = "teacher"  # name of the teacher's `Output` in a student's batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """Sources that a student learns from, and their weights.

        task * L + logits * T^2 KL(softmax(z' / T) || softmax(z / T)) + hidden * mean((h - h')^2)

    L is the task's own loss; z and h are the student's logits and last hidden states, z' and h' the teacher's (Hinton
    et al. 2015; hidden states as in TinyBERT, Jiao et al. 2020). The divergence is a mean over predictions: examples of
    a classifier, both ends of a span, tokens that are not padding elsewhere. Where a model predicts numbers
    (regression, similarity of sentences), their squared difference takes its place, and where texts to embed have no
    label the squared distance of the vectors (Reimers and Gurevych 2020), if they are of one size.

        >>> headjax.Distillation(steps=2, temperature=4.0).task
        1.0

    Attributes:
        steps: optimizer steps.
        optimizer: optimizer and learning-rate schedule.
        task, logits, hidden: weights of the three parts.
        temperature: T.
        seed: of dropout.
    """

    steps: Steps
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
    progress: Update | None = None,
) -> Distilled:
    """Train a student on a task with the teacher's answers beside the labels.

    The student draws its dropout as in training, the teacher computes without. Any two models of the same outputs go
    together: pruned, converted to other formulations, of fewer layers.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> student = headjax.prune(model, ["decoder/0/0"])
        >>> headjax.distill(student, model, [batch, batch], headjax.Distillation(steps=2)).losses.shape
        (2,)

    Args:
        student: the model to train; its parameters stay as they are, the result has new ones.
        teacher: the model to learn from; None learns from the labels alone, which is ordinary fine-tuning.
        batches: training batches with labels, at least `steps` of them (`Task.train_batches` never ends); of few
            shapes, since each is compiled once.
        settings: sources to learn from, and number of steps.
        mesh: devices to spread the batches over; None is the first device alone.
        progress: called with the steps known to be done and the latest loss known, see `headjax.core.timing`.

    Raises:
        DataError: the batches end early.
        HeadjaxError: the teacher's outputs have other shapes than the student's, or the loss is not finite.
    """
    evict_compiled()
    mesh = MeshConfig(data=1).build(jax.devices()[:1]) if mesh is None else mesh
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("batches: there is no example to learn from")
    if teacher is None:
        settings = dataclasses.replace(settings, task=1.0, logits=0.0, hidden=0.0)
    else:
        check_outputs(student.config, teacher, first, settings)
    answered, losses = answers_of(teacher, mesh, compute), Losses("distillation", settings.steps)
    optimizer = build_optimizer(settings.optimizer, student.config, settings.steps)
    objective = distillation_objective(student.config, settings)
    trainer = Trainer(student.config, optimizer, mesh, compute, settings.seed, objective)
    state, feed = trainer.first_state(student.params), itertools.chain([first], iterator)
    for number in range(settings.steps):
        batch = next(feed, None)
        if batch is None:
            raise DataError(f"batches: they end after {number} of {settings.steps} steps")
        state, measured = trainer(state, answered(put_batch(check_batch(student.config, batch), mesh)))
        losses.add(measured.loss)
        if progress is not None:
            progress(len(losses.fetched), losses.latest())
    numbers = {name: getattr(settings, name) for name in ("steps", "task", "logits", "hidden", "temperature")}
    params, history = on_this_process(state.params, mesh), (*student.history, history_entry("distill", **numbers))
    return Distilled(student.replace(params=params, history=history), losses.fetch())


def check_outputs(student: ModelConfig, teacher: Model, batch: Batch, settings: Distillation) -> None:
    """Raise `HeadjaxError` where the two models compute arrays of different shapes that are to be compared."""

    def output(config: ModelConfig) -> Any:
        return jax.eval_shape(lambda params: Model(config, params).forward(batch), abstract(config.tensors()))

    of_student, of_teacher = output(student), output(teacher.config)
    for name in ("logits", "hidden"):
        arrays = (getattr(output, name) for output in (of_student, of_teacher))
        mine, theirs = (None if array is None else list(array.shape) for array in arrays)
        if getattr(settings, name) and mine != theirs:
            raise HeadjaxError(f"teacher: its {name} are {theirs or 'none'}, the student's {mine or 'none'}")


def answers_of(teacher: Model | None, mesh: Mesh, compute: Compute) -> Callable[[Batch], Batch]:
    """Return a function that adds a teacher's output to a batch on the mesh, and nothing without a teacher."""
    if teacher is None:
        return dict
    params = place_copies(teacher.params, shardings(teacher.config.tensors(), mesh))
    return lambda batch: {**batch, TEACHER: _answer(teacher.config, mesh, compute, params, batch)}


@functools.partial(jax.jit, static_argnames=("teacher", "mesh", "compute"))
def _answer(teacher: ModelConfig, mesh: Mesh, compute: Compute, params: Params, batch: Batch) -> Output:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        output = Model(teacher, params).forward(batch, ForwardOptions(compute=compute))
    return jax.lax.with_sharding_constraint(output, batch_sharding(mesh))


@functools.lru_cache(maxsize=8)  # equal objectives share compilations
def distillation_objective(student: ModelConfig, settings: Distillation) -> Objective:
    """Return the objective of `Distillation` for batches that hold the teacher's output, without terms of weight 0."""

    def losses_of(output: Output, batch: Batch) -> tuple[Loss, ...]:
        labels_loss = declared_model(student).losses(output, batch)
        losses = [labels_loss] if settings.task else []
        if settings.logits:
            losses.append(_divergence(student, settings.temperature, output, batch, labels_loss))
        if settings.hidden:
            squares = jnp.square(output.hidden - batch[TEACHER].hidden).astype(jnp.float32).mean(axis=-1)
            losses.append(_over_valid(student, squares, batch, labels_loss))
        return tuple(losses)

    return Objective(losses_of, tuple(filter(None, (settings.task, settings.logits, settings.hidden))))


def _divergence(student: ModelConfig, temperature: float, output: Output, batch: Batch, labels_loss: Loss) -> Loss:
    """Return T^2 KL(teacher || student) of every prediction, or squared differences of predicted numbers."""
    task, taught = getattr(student, "task", None), batch[TEACHER]
    if isinstance(task, SentenceSimilarity):
        return _distance(student, output, taught, batch, labels_loss.weight > 0)
    names = ("start_logits", "end_logits") if isinstance(task, Span) else (None,)
    pairs = [(output.require_logits(name), taught.require_logits(name)) for name in names]
    if isinstance(task, Regression):
        each = [jnp.square(mine - theirs).reshape(mine.shape[0], -1).mean(axis=-1) for mine, theirs in pairs]
    else:
        each = [temperature**2 * divergence(theirs, mine, temperature) for mine, theirs in pairs]
    return _over_valid(student, functools.reduce(jnp.add, each) / len(each), batch, labels_loss)


def _distance(student: ModelConfig, output: Output, taught: Output, batch: Batch, labelled: jax.Array) -> Loss:
    """Return the squared difference of labelled pairs' similarities, and the squared distance of others' vectors."""
    vectors, theirs = output.require_embeddings(), taught.require_embeddings()  # [batch, sentences, size]
    squares = jnp.square(output.require_logits() - taught.require_logits())
    if vectors.shape == theirs.shape:
        squares = jnp.where(labelled, squares, jnp.square(vectors - theirs).sum(axis=-1).mean(axis=-1))
    present = declared_model(student).valid_tokens(batch).any(axis=1).astype(jnp.float32)
    return Loss(squares * present, present)


def _over_valid(student: ModelConfig, values: jax.Array, batch: Batch, labels_loss: Loss) -> Loss:
    """Return values `[batch]` or `[batch, length]` as losses of the examples and tokens that are no padding."""
    present = (labels_loss.weight > 0).astype(jnp.float32)
    if values.ndim == 1:
        return Loss(values * present, present)
    by_token = counted_at(declared_model(student).valid_tokens(batch), values.shape) * present[:, None]
    return Loss((values * by_token).sum(axis=1), by_token.sum(axis=1))
