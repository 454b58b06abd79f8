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
import optax
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Ramp, Steps
from headjax.core.losses import Losses
from headjax.core.programs import make_room
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.heads.agreement import divergence
from headjax.heads.statistics import counted_queries
from headjax.mesh.distributed import on_this_process, put_batch
from headjax.mesh.mesh import MeshConfig, batch_sharding
from headjax.mesh.rules import shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.inputs import check_batch
from headjax.models.layer import Probe
from headjax.models.model import Model
from headjax.models.outputs import IGNORED
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.models.tasks.text import cosines
from headjax.training.checkpoints import Checkpoints
from headjax.training.loop import run_steps
from headjax.training.optimizer import AdamW, LinearDecay, Optimizer
from headjax.training.state import TrainState, abstract_state, initial_state
from headjax.training.step import Factor, Objective, StepMetrics, factor_at, train_step

Term = Callable[[Output, Batch, Loss, jax.Array], Loss]
"""From a model's output, its batch, its own loss and the number of steps done to one term of an objective."""

CHECKPOINT_EVERY = 100
"""Steps between the checkpoints from which a stopped distillation continues."""

TEACHER = "teacher"
"""Name of the teacher's `Answers` in a student's batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """Sources that a student learns from, and their weights.

        task * L + logits * T^2 KL(softmax(z' / T) || softmax(z / T)) + hidden * mean((h - h')^2)
            + attention * mean(1 - cos(a, a'))

    L is the task's own loss; z and h are the student's logits and last hidden states, a the outputs of its attention
    layers, z', h' and a' the teacher's (Hinton et al. 2015; hidden states as in TinyBERT, Jiao et al. 2020). The
    divergence is a mean over predictions: examples of a classifier, both ends of a span, tokens that are not padding
    elsewhere. Where a model predicts numbers (regression, similarity of sentences), their squared difference takes its
    place. The cosine is a mean over tokens and attention layers, cross-attention included.

    Every weight and the temperature may change along training. MaxText's guide to pruned models recommends
    `task=Ramp(0.1, 0.5)`, `logits=Ramp(0.9, 0.5)`, `temperature=Ramp(2.0, 1.0)` and `attention=Ramp(1.0, 0.1)`.

    Attributes:
        steps: optimizer steps.
        optimizer: optimizer and learning-rate schedule.
        task, logits, hidden, attention: weights of the four parts.
        temperature: T.
        seed: of dropout.
    """

    steps: Steps
    optimizer: Optimizer = AdamW(schedule=LinearDecay(peak=5e-5))
    task: NotNegative | Ramp = 1.0
    logits: NotNegative | Ramp = 1.0
    hidden: NotNegative | Ramp = 0.0
    attention: NotNegative | Ramp = 0.0
    temperature: Positive | Ramp = 2.0
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer.check(self.steps)
        weights = (self.task, self.logits, self.hidden, self.attention)
        require(any(map(_used, weights)), "task", "all weights are 0, there is nothing to learn")
        if isinstance(self.temperature, Ramp):
            coldest = min(self.temperature.start, self.temperature.end)
            require(coldest > 0.0, "temperature", f"must be positive, got {self.temperature}")


def _used(weight: float | Ramp) -> bool:
    """Return whether a weight is other than 0 at any step."""
    return max(weight.start, weight.end) > 0.0 if isinstance(weight, Ramp) else weight > 0.0


def _along(number: float | Ramp, steps: int) -> Factor:
    """Return a number, or the function from steps done to it."""
    if isinstance(number, Ramp):
        return optax.linear_schedule(number.start, number.end, max(steps - 1, 1))
    return number


class Answers(NamedTuple):
    """A teacher's outputs on a batch, as far as a student is compared with them.

    Attributes:
        predictions: logits whose last axis counts the choices, or predicted numbers: one array, of a span two.
        hidden: last hidden states `[batch, length, width]`; None where they are not compared.
        attention: `[batch, query, width]` outputs of every attention layer, by head stack; None likewise.
    """

    predictions: tuple[jax.Array, ...]
    hidden: jax.Array | None
    attention: dict[str, list[jax.Array]] | None = None


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
    checkpoints: Checkpoints | None = None,
    progress: Update | None = None,
) -> Distilled:
    """Train a student on a task with the teacher's answers beside the labels.

    The student draws its dropout as in training, the teacher computes without. Any two models of the same outputs go
    together: pruned, converted to other formulations, of fewer layers.

        >>> from headjax.training.distillation import Distillation
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
        settings = dataclasses.replace(settings, task=1.0, logits=0.0, hidden=0.0, attention=0.0)
    config, losses = student.config, Losses("distillation", settings.steps)
    state = _begin(student, settings, mesh, checkpoints, losses)
    feed = _fed(batches, int(state.step), student, teacher, settings, mesh, compute)

    def after(number: int, state: TrainState, measured: StepMetrics) -> bool:
        losses.add(measured.loss)
        if checkpoints is not None:
            checkpoints.record_complete()
            if number % CHECKPOINT_EVERY == 0 and number < settings.steps:
                checkpoints.save(number, state, {"losses": losses.fetch().tolist()})
        if progress is not None:
            progress(number, losses.latest())
        return False

    step = _step(config, settings, mesh, compute)
    remaining = range(int(state.step) + 1, settings.steps + 1)
    state = run_steps(lambda _, state, batch: step(state, batch), state, feed, remaining, after)
    numbers = {name: getattr(settings, name) for name in ("task", "logits", "hidden", "attention", "temperature")}
    plain = {name: str(number) if isinstance(number, Ramp) else number for name, number in numbers.items()}
    entry = history.entry("distill", steps=settings.steps, **plain)
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


def distillation_objective(student: ModelConfig, settings: Distillation) -> Objective:
    """Return the objective of `Distillation`, for batches that hold the teacher's `Answers` as `teacher`.

    A term of weight 0 is not computed; without a term of the teacher's, no answers are needed.

    Args:
        student: the student's architecture.
        settings: the weights and the temperature.
    """
    temperature = _along(settings.temperature, settings.steps)
    terms: tuple[tuple[float | Ramp, Term], ...] = (
        (settings.task, lambda given, batch, own, step: own),
        (
            settings.logits,
            lambda given, batch, own, step: _divergence(student, factor_at(temperature, step), given, batch, own),
        ),
        (settings.hidden, lambda given, batch, own, step: _hidden_difference(student, given, batch, own)),
        (settings.attention, lambda given, batch, own, step: _attention_difference(student, given, batch, own)),
    )
    kept = [(weight, term) for weight, term in terms if _used(weight)]

    def losses_of(given: Output, batch: Batch, step: jax.Array) -> tuple[Loss, ...]:
        own = student.loss(given, batch)
        return tuple(term(given, batch, own, step) for _, term in kept)

    weights = tuple(_along(weight, settings.steps) for weight, _ in kept)
    return Objective(losses_of, weights, attention_output if _used(settings.attention) else None)


def attention_output(probe: Probe) -> jax.Array:
    """Probe: the output of the attention layer, `[batch, query, width]`, 0 at padding."""
    output = jnp.broadcast_to(probe.module.combine(probe.attended.context), probe.inputs.shape)
    return output * counted_queries(probe)[..., None].astype(output.dtype)


def answers_of(task: Any, output: Output, batch: Batch, settings: Distillation) -> Answers:
    """Return the part of a teacher's output that the objective compares.

    Args:
        task: the student's task, `output` of its config; None where its config has none.
        output: the teacher's output.
        batch: the batch.
        settings: the weights.
    """
    return Answers(
        _predictions(task, output, batch) if _used(settings.logits) else (),
        output.hidden if _used(settings.hidden) else None,
        output.require_probes() if _used(settings.attention) else None,
    )


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
        probe = attention_output if _used(settings.attention) else None
        output = teacher.apply(params, batch, Options(probe=probe, compute=compute))
        answers = answers_of(task, output, batch, settings)
    return jax.lax.with_sharding_constraint(answers, batch_sharding(mesh))


def _divergence(student: ModelConfig, temperature: float | jax.Array, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return T^2 KL(teacher || student) of every prediction, or squared differences of predicted numbers."""
    task = getattr(student, "output", None)
    pairs = list(zip(_predictions(task, given, batch), batch[TEACHER].predictions, strict=True))
    if isinstance(task, Regression | SentenceSimilarity):
        each = [jnp.square(mine - theirs).reshape(mine.shape[0], -1).mean(axis=-1) for mine, theirs in pairs]
    else:
        each = [temperature**2 * divergence(theirs, mine, temperature) for mine, theirs in pairs]
    return _over_counted(student, functools.reduce(jnp.add, each) / len(each), batch, own)


def _hidden_difference(student: ModelConfig, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return the mean squared difference of every token's last hidden state from the teacher's."""
    squares = jnp.square(given.hidden - batch[TEACHER].hidden).astype(jnp.float32).mean(axis=-1)
    return _over_counted(student, squares, batch, own)


def _attention_difference(student: ModelConfig, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return 1 - cos of every token's attention output and the teacher's, as a mean over attention layers.

    A token whose output is 0 in the teacher, padding above all, has no direction to learn and adds nothing.
    """
    mine, theirs = given.require_probes(), batch[TEACHER].attention
    layers = [pair for stack in mine for pair in zip(mine[stack], theirs[stack], strict=True)]
    totals, weights = zip(*[_turned(*pair) for pair in layers], strict=True)
    counted = (own.weight > 0).astype(jnp.float32)
    return Loss(functools.reduce(jnp.add, totals) * counted, functools.reduce(jnp.add, weights) * counted)


def _turned(mine: jax.Array, theirs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of 1 - cos over an example's tokens, and the number of tokens that have an output, `[batch]`."""
    mine, theirs = mine.astype(jnp.float32), theirs.astype(jnp.float32)
    sizes = jnp.square(mine).sum(axis=-1) * jnp.square(theirs).sum(axis=-1)
    counted = jnp.square(theirs).sum(axis=-1) > 0.0
    cosine = (mine * theirs).sum(axis=-1) * jax.lax.rsqrt(jnp.maximum(sizes, 1e-20))
    return jnp.where(counted, 1.0 - cosine, 0.0).sum(axis=-1), counted.astype(jnp.float32).sum(axis=-1)


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
    probe = attention_output if _used(settings.attention) else None

    def shapes(model: Model) -> Output:
        options = Options(probe=probe)
        return jax.eval_shape(lambda params, batch: model.config.apply(params, batch, options), model.params, batch)

    own, other = shapes(student), shapes(teacher)
    compared: list[tuple[str, float | Ramp, Any, Any]] = [
        ("logits", settings.logits, own.logits, other.logits),
        ("hidden", settings.hidden, own.hidden, other.hidden),
    ]
    if probe is not None:
        pairs = (own.require_probes(), other.require_probes())
        described = [{stack: len(layers) for stack, layers in found.items()} for found in pairs]
        if described[0] != described[1]:
            raise HeadjaxError(
                f"teacher: it has {described[1]} attention layers, the student {described[0]}; "
                "attention outputs are compared layer by layer"
            )
        compared.append(("attention outputs", settings.attention, *(next(iter(found.values()))[0] for found in pairs)))
    for name, weight, mine, theirs in compared:
        if _used(weight) and (mine is None) != (theirs is None):
            raise HeadjaxError(f"teacher: {name}: one of teacher and student computes none")
        if _used(weight) and mine is not None and theirs is not None and mine.shape != theirs.shape:
            raise HeadjaxError(f"teacher: its {name} are {list(theirs.shape)}, the student's {list(mine.shape)}")
