"""The report's measurements of a model's heads: settings, what is measured, and the measuring."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, Size
from headjax.core.progress import Progress, silent
from headjax.data.examples import subset
from headjax.evaluation.paired import HeadEffects, head_effects, paired_test
from headjax.evaluation.selection import SEED, split_task
from headjax.evaluation.task import Evaluation, Task, measure_task
from headjax.head_report.curves import CurveConfig, CurvePoint, Judged, curve
from headjax.head_report.views import View, views
from headjax.heads.ablation import ablate
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.scoring import score_heads
from headjax.heads.statistics import Role, head_roles
from headjax.models.config import Batch
from headjax.models.model import Model

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
    judged = _drawn(task, config.judged, config.limit)
    few, fitted = _drawn(judged, config.ablated), judged.fit(model)
    chosen_on = _sample(selection, config)
    whole = measure_task(fitted, judged, batch_size=config.batch_size, buckets=config.buckets)
    with progress(f"scoring on {selection.name}", len(chosen_on), "batch") as bar:
        scores = score_heads(fitted, chosen_on, progress=bar).values
    first = next(iter(few.batches(config.batch_size, limit=config.batch_size)))
    return HeadStudy(
        model=model,
        task=judged,
        few=few,
        selection=selection,
        config=config,
        baseline=whole.metrics,
        scores=scores,
        curves=_curves(fitted, whole, judged, selection, config, progress),
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
        found = measure_task(model, task, batch_size=config.batch_size, buckets=config.buckets)
        return Judged(found.metrics[task.headline], test(found.outcomes) if found.examples > 1 else None)

    curves: dict[str, list[CurvePoint]] = {order: [] for order in config.orders}
    total, done = len(config.orders) * config.seeds * len(config.percentages), 0
    with progress("pruning curves", total, "point") as bar:
        for order, points in curves.items():
            for seed in range(config.seeds):
                batches = _sample(selection, config, seed)
                for point in curve(model, CurveConfig.parse(order), batches, config.percentages, judge, seed=seed):
                    points.append(point)
                    done += 1
                    bar(done, {task.headline: point.value})
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
    """Return the batches that heads are ordered by."""
    return list(selection.sample(_scored(selection, config), config.batch_size, seed=seed, buckets=config.buckets))


def _batches(task: Task, config: StudyConfig) -> list[Batch]:
    return list(task.batches(config.batch_size, buckets=config.buckets))
