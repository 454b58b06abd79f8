"""The report's measurements of a model's heads: pruning curves of several orders, scores, ablations, and views."""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, Size
from headjax.core.progress import Progress, silent
from headjax.data.examples import subset
from headjax.evaluation.paired import Comparison, HeadEffects, head_effects, paired_test
from headjax.evaluation.selection import SEED, split_task
from headjax.evaluation.task import Evaluation, Task, measure_task
from headjax.head_report.views import View, views
from headjax.heads.ablation import ablate
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import Order, fitting, removals
from headjax.heads.orders import LEARNED, OrderConfig, order_heads
from headjax.heads.program import gated
from headjax.heads.pruning import percent_steps
from headjax.heads.reconstruct import reconstruct
from headjax.heads.scoring import Role, head_roles, score_heads
from headjax.models.config import Batch
from headjax.models.model import Model

WORDS = {"importance_layer": "importance within the layer", "random": "chance"}


@dataclasses.dataclass(frozen=True)
class CurveConfig(Checked):
    """An order of removal, and the repair that follows.

    Attributes:
        order: the order.
        reconstruct: whether the output projections of kept heads are refitted (`headjax.reconstruct`).
    """

    order: OrderConfig
    reconstruct: bool = False

    @property
    def words(self) -> str:
        """The order in words."""
        words = WORDS.get(self.order.by, self.order.by.replace("_", " "))
        return f"{words}, refitted" if self.reconstruct else words

    @classmethod
    def parse(cls, text: str) -> CurveConfig:
        """`importance`, `reconstruction+reconstruct`, ..."""
        order = text.removesuffix("+reconstruct")
        return cls(OrderConfig(by=order), order != text)


class Judged(NamedTuple):
    """A model's primary metric on a task, and its change from the original's, tested on the same examples."""

    value: float
    change: Comparison | None = None


Judge = Callable[[Model], Judged]


class CurvePoint(NamedTuple):
    """One point of one order: the share of heads removed, their number, the seed, the primary metric without them."""

    fraction: float
    removed: int
    seed: int
    value: float
    change: Comparison | None = None
    heads: Order = ()


def curve(
    model: Model,
    config: CurveConfig,
    batches: Sequence[Batch],
    percentages: Sequence[int],
    judge: Judge,
    *,
    seed: int = 0,
) -> Iterator[CurvePoint]:
    """Yield the primary metric with more and more heads gated off; heads that layers share go together."""
    total = len(all_heads(model.config))
    order = _orders(model, batches, dataclasses.replace(config.order, seed=seed))
    for percentage, count in zip(percentages, percent_steps(total, percentages), strict=True):
        heads = order(count)
        removed, _ = fitting(removals(find_sites(model), heads), count)
        repaired = model
        if config.reconstruct and count < total:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # fewer tokens than unknowns: the page tells the examples
                repaired = reconstruct(model, batches, removed).repaired
        result = judge(gated(repaired, dict.fromkeys(removed, 0.0)))
        yield CurvePoint(percentage / 100.0, len(removed), seed, *result, tuple(removed))


def _orders(model: Model, batches: Sequence[Batch], config: OrderConfig) -> Callable[[int], Order]:
    """Return a function from a number of heads to remove to their order, which learned gates choose together."""
    ordered = functools.partial(order_heads, model, batches, config)
    if config.by in LEARNED:
        return lambda count: ordered(count=count)
    order = ordered()
    return lambda count: order


def removable(points: Sequence[CurvePoint], baseline: float, drop: float, higher_is_better: bool) -> float:
    """Return the largest share of heads up to which every measured share loses at most `drop`, seeds averaged."""
    sign = 1.0 if higher_is_better else -1.0
    best = 0.0
    for fraction in sorted({point.fraction for point in points}):
        values = [point.value for point in points if point.fraction == fraction]
        if sign * (baseline - sum(values) / len(values)) > drop:
            break
        best = fraction
    return best


ORDERS = ("reconstruction+reconstruct", "importance_layer", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(Checked):
    """Settings of the measurements.

    Attributes:
        limit: number of examples to evaluate on, the first ones; 0 is all.
        judged: number of them to draw for the pruning curves; 0 is all.
        ablated: number of them to draw for the ablations of single heads and for what heads look at; 0 is all.
        batch_size: examples of one batch.
        buckets: see `Task.batches`.
        orders: see `CurveConfig.parse`.
        seeds: repeats of every order; each draws other examples to order heads by.
        scored: selection examples that heads are scored and ordered by; 0 is all.
        percentages: shares of heads removed along the curves.
        resamples: of bootstraps.
    """

    limit: Count = 0
    judged: Count = 512
    ablated: Count = 96
    batch_size: Size = 16
    buckets: tuple[int, ...] = ()
    orders: tuple[str, ...] = ORDERS
    seeds: Size = 2
    scored: Count = 256
    percentages: tuple[int, ...] = (25, 50, 75)
    resamples: Size = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(bound >= 1 for bound in self.buckets), "buckets", f"must be positive, got {list(self.buckets)}")
        shares = list(self.percentages)
        inside = bool(shares) and all(0 < share <= 100 for share in shares) and shares == sorted(shares)
        require(inside, "percentages", f"must rise within 1..100, got {shares}")
        for order in self.orders:
            CurveConfig.parse(order)


class HeadStudy(NamedTuple):
    """Facts about a model's heads."""

    model: Model
    task: Task
    few: Task
    selection: Task
    config: StudyConfig
    baseline: Mapping[str, float]
    scores: Mapping[str, Mapping[HeadId, float]]
    curves: Mapping[str, Sequence[CurvePoint]]
    effects: HeadEffects
    roles: Mapping[HeadId, Role]
    views: Sequence[View]
    seconds: float

    @property
    def ordered_by(self) -> str:
        """The examples that heads are ordered by, in words."""
        count = _scored(self.selection, self.config)
        return f"{count:,} examples of {self.selection.name}, {self.selection.split}, others for each seed"


def study_heads(
    model: Model, task: Task, config: StudyConfig, *, selection: Task | None = None, progress: Progress = silent
) -> HeadStudy:
    """Score, prune by gates, ablate and view the heads of a model."""
    started = time.perf_counter()
    if selection is None:
        selection, task = split_task(task)
    drawn = _drawn(task, config.judged, config.limit)
    few, fitted = _drawn(drawn, config.ablated), drawn.fit(model)
    chosen_on = _sample(selection, config)
    evaluation = measure_task(fitted, drawn, batch_size=config.batch_size, buckets=config.buckets)
    with progress(f"scoring on {selection.name}", len(chosen_on), "batch") as bar:
        scores = score_heads(fitted, chosen_on, progress=bar).values
    first = next(iter(few.batches(config.batch_size, limit=config.batch_size)))
    return HeadStudy(
        model=model,
        task=drawn,
        few=few,
        selection=selection,
        config=config,
        baseline=evaluation.metrics,
        scores=scores,
        curves=_curves(fitted, evaluation, drawn, selection, config, progress),
        effects=_effects(fitted, few, config, progress),
        roles=head_roles(fitted, _batches(few, config)),
        views=views(few.fit(model), first),
        seconds=time.perf_counter() - started,
    )


def _curves(
    model: Model, whole: Evaluation, task: Task, selection: Task, config: StudyConfig, progress: Progress
) -> dict[str, list[CurvePoint]]:
    _, test = paired_test(whole.outcomes, task.measure, config.resamples)

    def judge(model: Model) -> Judged:
        evaluation = measure_task(model, task, batch_size=config.batch_size, buckets=config.buckets)
        compared = test(evaluation.outcomes) if evaluation.examples > 1 else None
        return Judged(evaluation.metrics[task.primary_metric], compared)

    curves: dict[str, list[CurvePoint]] = {order: [] for order in config.orders}
    total, done = len(config.orders) * config.seeds * len(config.percentages), 0
    with progress("pruning curves", total, "point") as bar:
        for order, points in curves.items():
            for seed in range(config.seeds):
                batches = _sample(selection, config, seed)
                for point in curve(model, CurveConfig.parse(order), batches, config.percentages, judge, seed=seed):
                    points.append(point)
                    done += 1
                    bar(done, {task.primary_metric: point.value})
    return curves


def _effects(fitted: Model, task: Task, config: StudyConfig, progress: Progress) -> HeadEffects:
    batches = _batches(task, config)
    with progress(f"ablating {len(all_heads(fitted.config))} heads", len(batches), "batch") as bar:
        ablation = ablate(fitted, batches, metrics=task.measure.of_model(), progress=bar)
    return head_effects(ablation, task.measure, resamples=config.resamples)


def _drawn(task: Task, count: int, limit: int = 0) -> Task:
    """Return the task with `count` of its first `limit` evaluation examples, drawn at random and in their order."""
    total = task.count(limit)
    if total == task.count() and (not count or count >= total):
        return task
    chosen = np.sort(np.random.default_rng(SEED).permutation(total)[: count or total])
    data = task.data._replace(validation=subset(task.data.validation, chosen))
    return dataclasses.replace(task, data=data, part=task.split)


def _scored(selection: Task, config: StudyConfig) -> int:
    """Return the number of examples that heads are ordered by."""
    return min(config.scored or selection.count(), selection.count())


def _sample(selection: Task, config: StudyConfig, seed: int = 0) -> list[Batch]:
    return list(selection.sample(_scored(selection, config), config.batch_size, seed=seed, buckets=config.buckets))


def _batches(task: Task, config: StudyConfig) -> list[Batch]:
    return list(task.batches(config.batch_size, buckets=config.buckets))
