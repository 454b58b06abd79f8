"""Shrink a model to a budget: the layers, the heads of each, their sizes, their sharing, and the number of units."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked
from headjax.core.numbers import brief
from headjax.core.progress import Progress, silent
from headjax.evaluation.task import Task
from headjax.heads.agreement import agreement_kind
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.program import Loss
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import shows_sub_layers
from headjax.nn.state import Compute
from headjax.shrinking.build import build
from headjax.shrinking.by_loss import by_loss
from headjax.shrinking.choice import QUANTITIES, Choice, Table, choose, choose_if_any
from headjax.shrinking.grid import Grid
from headjax.shrinking.latency import Stopwatch
from headjax.shrinking.measure import count_forms, measure, missing
from headjax.shrinking.places import places_of
from headjax.shrinking.table import native_levels, table_of
from headjax.storage.kept import Kept, key_of_study
from headjax.storage.paths import path_of

EXAMPLES = 512
"""Calibration examples that are drawn from a task."""

MEASURED = 128
"""Calibration examples that damages are measured on."""

SHARES = tuple(share / 20 for share in range(19, 1, -1))
"""Budgets of a frontier, as shares of the original model."""

FILE = "measurements.json"
"""File of the measurements in the folder that keeps them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Checked):
    """Greatest costs of a model: a share of the original model's up to 1, or a number above 1; None is any.

        >>> budget = headjax.Budget(parameters=0.6, cache=0.5)
        >>> budget.flops is None
        True
        >>> headjax.Budget(parameters=-1.0)
        Traceback (most recent call last):
            ...
        headjax.core.errors.ConfigError: parameters: must be above 0, got -1.0

    Attributes:
        parameters: of attention and feed-forwards; embeddings and outputs stay and do not count.
        flops: floating-point operations of one example.
        cache: bytes that one more token takes in a decoding cache.
        latency: of a forward, as a share of the original model's or in milliseconds; it is measured.
    """

    parameters: float | None = None
    flops: float | None = None
    cache: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, amount in self.amounts().items():
            require(amount > 0.0, name, f"must be above 0, got {amount}")

    def amounts(self) -> dict[str, float]:
        """Return the budgets that are there, by quantity."""
        return {name: getattr(self, name) for name in QUANTITIES if getattr(self, name) is not None}

    def limits(self, table: Table) -> dict[str, float]:
        """Return the greatest costs in numbers."""
        units = {"latency": 1e-3}
        return {
            name: amount * (table.whole(name) if amount <= 1.0 else units.get(name, 1.0))
            for name, amount in self.amounts().items()
        }


class Point(NamedTuple):
    """A point of a frontier."""

    quantity: str
    share: float
    damage: float
    costs: Mapping[str, float]
    removed_layers: int = 0


class Shrunk(NamedTuple):
    """Result of `shrink`."""

    model: Any
    removed: tuple[HeadId, ...]
    choice: Choice
    frontier: tuple[Point, ...]
    table: Table

    def __repr__(self) -> str:
        return brief(self)


def shrink(
    model: nnx.Module,
    examples: Task | Sequence[Any],
    budget: Budget,
    *,
    loss: Loss | None = None,
    uniform: bool = False,
    native: bool = False,
    labels: bool = False,
    grid: Grid = Grid(),
    calibrate: int = EXAMPLES,
    measured: int = MEASURED,
    length: int = 0,
    work: str | None = None,
    seed: int = 0,
    compute: Compute = Compute(),
    strict: bool = False,
    progress: Progress = silent,
) -> Shrunk:
    """Return the model within a budget, with layers, heads, sizes, sharing and units chosen together.

    Where the model offers the walk and its blocks show their sub-layers, as headjax's models do, every smaller form of
    every sub-layer is made alone and repaired. The error of its output is measured, and what that changes of the
    model's own output is estimated to second order (`headjax.heads.sensitivity`). An integer program takes one form
    a sub-layer, so that the sum of these damages is least within the budget. The model is then built from front to
    back, every map refitted. Nothing is trained. Neither passes nor programs grow in number with depth.

    A layer may also go whole, whatever its sub-layers are: the stream passes by it, and those behind it are numbered
    anew. Its damage is that of the model's output without it, with the attention of the layer behind refitted.
    The choice, the history and `removed` name layers by their old numbers.

    With a loss, and for any other model, each attention layer keeps as many heads as cost the least loss together,
    within a budget of parameters of the attention layers. The least important heads of a layer go first, in whole
    groups where KV heads serve several; layers that lie along one axis (`nnx.scan`) keep equal numbers. Damages are
    rises of the loss, measured with gates.

        >>> from headjax.shrinking.grid import Grid
        >>> model = headjax.demo_model()
        >>> batches = list(headjax.load_task("LICENSE", model, length=64).batches(4))
        >>> grid = Grid(heads=(0.5,), units=(0.5,), cached=(), others=())
        >>> found = headjax.shrink(model, batches, headjax.Budget(parameters=0.7), grid=grid)
        >>> sorted(found.choice.options)[:2]
        ['decoder/0', 'decoder/0/feed_forward']
        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> def loss(model, x):
        ...     return ((model(x) - x) ** 2).mean((1, 2))
        >>> x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
        >>> found = headjax.shrink(layer, [x], headjax.Budget(parameters=0.5), loss=loss)
        >>> found.model.num_heads <= 2, len(found.removed) >= 2
        (True, True)

    Args:
        model: the model.
        examples: a task, of which training examples are drawn, or calibration batches. On the walk they need no labels.
        budget: greatest costs; several hold at once.
        loss: function of the model and a batch, as for `score_heads`. None takes the walk where the model offers it,
            else the model's own loss.
        uniform: whether all layers of a stack that stay take the same form.
        native: whether the model stays in its family's native layout, which servers load; it is then uniform.
        labels: whether damage is the rise of the loss on the examples' labels.
        grid: the smaller forms.
        calibrate: number of examples to draw from a task.
        measured: number of examples that damages are measured on.
        length: tokens of an example whose FLOPs are counted; 0 is the mean of the calibration examples.
        work: folder in which measurements are kept, so that a stopped run continues and another budget takes seconds.
        seed: seed of the draw.
        compute: how to compute.
        strict: whether attention layers that are not recognised are an error; else a warning names them.
        progress: shows how far it is.

        `native`, `labels`, `grid`, `measured`, `length`, `work` and `compute` are of the walk.

    Raises:
        HeadjaxError: no choice keeps within the budget, layers share their parameters, or an option needs the walk.
        DataError: there are no examples.
    """
    require(bool(budget.amounts()), "budget", "names no quantity")
    model, batches = _on_examples(model, examples, calibrate, seed)
    if loss is None and shows_sub_layers(model):
        walk = functools.partial(_by_walk, uniform=uniform, native=native, labels=labels, grid=grid, measured=measured)
        return on_automatic_axes(walk)(cast(Model, model), batches, budget, length, work, compute, progress)
    others = {name: name in budget.amounts() for name in QUANTITIES[1:]}
    others |= {"native": native, "labels": labels, "grid": grid != Grid(), "length": bool(length)}
    others |= {"work": work is not None, "compute": compute != Compute()}
    for name, there in others.items():
        if there:
            raise HeadjaxError(f"{name}: needs a model that offers the walk (headjax.models.walk), and no loss")
    options: dict[str, Any] = {"loss": loss, "uniform": uniform, "strict": strict, "progress": progress}
    found = by_loss(model, batches, budget.limits, **options)
    points = frontier(found.table, "parameters", uniform=uniform)
    return Shrunk(found.model, found.removed, found.choice, points, found.table)


def _by_walk(
    model: Model,
    batches: Sequence[Batch],
    budget: Budget,
    length: int,
    work: str | None,
    compute: Compute,
    progress: Progress,
    *,
    uniform: bool,
    native: bool,
    labels: bool,
    grid: Grid,
    measured: int,
) -> Shrunk:
    """Choose among the forms of every sub-layer, see `shrink`."""
    table = options_of(
        model, batches, grid=grid, native=native, labels=labels, measured=measured, length=length,
        timed="latency" in budget.amounts(), work=work, compute=compute, progress=progress,
    )  # fmt: skip
    uniform = uniform or native
    choice = choose(table, budget.limits(table), uniform=uniform)
    with progress("building", len(places_of(model)), "map") as bar:
        built = build(model, batches, choice, compute=compute, progress=bar)
    points = frontier(table, next(iter(budget.amounts())), uniform=uniform)
    left = {f"{name}/{head}" for name, option in choice.options.items() for head in option.heads or ()}
    removed = tuple(head for head in all_heads(model.config) if str(head) not in left)
    return Shrunk(built, removed, choice, points, table)


def _on_examples(model: Any, examples: Task | Sequence[Any], calibrate: int, seed: int) -> tuple[Any, Sequence[Any]]:
    """Return the model, with a task's output where there is one, and the calibration batches."""
    batches: list[Any] = []
    if isinstance(examples, Task):
        model = examples.fit(model)
        batches += examples.sample(calibrate, seed=seed)
    else:
        batches += examples
    if not batches:
        raise DataError("examples: there is no example to calibrate on")
    return model, batches


def options_of(
    model: Model,
    batches: Sequence[Batch],
    *,
    grid: Grid = Grid(),
    native: bool = False,
    labels: bool = False,
    measured: int = MEASURED,
    length: int = 0,
    timed: bool = False,
    work: str | None = None,
    compute: Compute = Compute(),
    begin: Callable[[bool], None] | None = None,
    progress: Progress = silent,
) -> Table:
    """Return the table of options of a model, see `shrink`; `begin` is told whether forms have to be measured."""
    tokens = length or mean_length(batches)
    settings = (model.config, grid, labels, measured, tokens, compute)
    key = key_of_study(settings, (model.params, [dict(batch) for batch in batches]))
    kept = Kept(None if work is None else path_of(work) / FILE, key)
    if begin is not None:
        begin(missing(model, grid, kept))
    with progress("measuring forms", count_forms(model, grid), "form") as bar:
        found = measure(
            model, batches, grid, examples=measured, labels=labels, kept=kept, compute=compute, progress=bar
        )
    damage = "loss" if labels else agreement_kind(model.config)
    clock = Stopwatch(model, batches[len(batches) // 2]) if timed else None
    table = table_of(model, found, damage, tokens, kept, clock, progress)
    if native:
        levels = native_levels(model, found)
        table = table.only(lambda option: option.level in levels)
    return table


def mean_length(batches: Sequence[Batch]) -> int:
    """Return the mean number of tokens of an example; 1 where examples are no texts."""
    masks = [np.asarray(batch.get("attention_mask", np.ones(np.shape(batch["input_ids"])))) for batch in batches
             if "input_ids" in batch]  # fmt: skip
    return max(round(float(sum(mask.sum() for mask in masks)) / max(sum(map(len, masks)), 1)), 1)


def frontier(table: Table, quantity: str, *, uniform: bool = False) -> tuple[Point, ...]:
    """Return the least damage within every share of the original model's cost that can be kept."""
    whole = table.whole(quantity)
    points = [Point(quantity, 1.0, 0.0, {name: table.whole(name) for name in QUANTITIES})]
    for share in SHARES:
        choice = choose_if_any(table, {quantity: share * whole}, uniform=uniform)
        if choice is not None:
            points.append(Point(quantity, share, choice.damage, choice.costs, len(choice.removed)))
    return tuple(points)
