"""Measurements of a model's heads for the report, as one value."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count, Size
from headjax.core.progress import Progress, silent
from headjax.evaluation.head_effects import HeadEffects, head_effects
from headjax.evaluation.selection import selection_of, split_task
from headjax.evaluation.task import Task, evaluate_task
from headjax.head_report.curves import CurveConfig, CurvePoint, Judge, curve
from headjax.head_report.patterns import Pattern, patterns
from headjax.heads.ablation import ablate, best_heads
from headjax.heads.attended import Role, head_roles
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.named_orders import OrderConfig
from headjax.heads.ordering import by_scores
from headjax.heads.scores import Scores, score_heads
from headjax.heads.significance import Transfer, transfer
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.training.checkpoints import snapshots

MODES: tuple[Any, ...] = ("each", "all-but-one")
ORDERS = ("importance", "importance+normalize", "fisher_blocks+rescale", "hies", "ablation", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(Checked):
    """Settings of the measurements.

    Attributes:
        limit: number of examples to evaluate on, the first ones; 0 is all.
        batch_size: examples of one batch.
        buckets: see `Task.batches`.
        orders: see `CurveConfig.parse`.
        seeds: repeats of every order; each draws other examples to order heads by.
        scored: selection examples that heads are scored and ordered by; 0 is all.
        percentages: shares of heads removed along the curves.
        profile_percentages: the same for the checkpoints of a run.
        resamples: of bootstraps.
        shown: heads whose attention is drawn, the most important ones of each head stack.
    """

    limit: Count = 0
    batch_size: Size = 16
    buckets: tuple[int, ...] = ()
    orders: tuple[str, ...] = ORDERS
    seeds: Size = 3
    scored: Count = 256
    percentages: tuple[int, ...] = tuple(range(10, 101, 10))
    profile_percentages: tuple[int, ...] = (20, 40, 60, 80)
    resamples: Size = 1000
    shown: Size = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(bound >= 1 for bound in self.buckets), "buckets", f"must be positive, got {list(self.buckets)}")
        for name in ("percentages", "profile_percentages"):
            values = getattr(self, name)
            inside = bool(values) and all(0 < value <= 100 for value in values) and list(values) == sorted(values)
            require(inside, name, f"must rise within 1..100, got {list(values)}")
        for order in self.orders:
            CurveConfig.parse(order)


class SecondTask(NamedTuple):
    """Importance on another data set.

    Attributes:
        name: of the data.
        transfer: how it goes with the importance on the first.
    """

    name: str
    transfer: Transfer


class Snapshot(NamedTuple):
    """A checkpoint of a training run.

    Attributes:
        step: optimizer steps done.
        baseline: the headline with all heads.
        agreement: Spearman's correlation, over heads, of the importance at this checkpoint with that in the model; None
            with one head, or where all are as important.
        points: with the least important heads removed, ordered by this checkpoint's own importance.
    """

    step: int
    baseline: float
    agreement: float | None
    points: list[CurvePoint]


class HeadStudy(NamedTuple):
    """All measurements that the report shows.

    Attributes:
        model: the model.
        task: the task, on whose evaluation examples metrics and effects are measured.
        selection: the task whose examples heads are scored, ordered and chosen on.
        config: how much was measured.
        baseline: the task's metrics.
        examples: number of examples they were measured on.
        ordered_by: the examples that heads were ordered by, in words.
        scores: every head score, on the selection examples.
        effects: by mode of `ablate`, on the evaluation examples.
        best: the head of every layer with the least loss on the selection examples when it is the only one left.
        curves: by order.
        second: importance on another data set, if there is one.
        snapshots: of a training run, if there is one.
        roles: by head.
        patterns: by head stack, attention of its most important heads on one example.
        seconds: wall-clock time in all.
    """

    model: Model
    task: Task
    selection: Task
    config: StudyConfig
    baseline: Mapping[str, float]
    examples: int
    ordered_by: str
    scores: Scores
    effects: Mapping[str, HeadEffects]
    best: Sequence[HeadId]
    curves: Mapping[str, Sequence[CurvePoint]]
    second: SecondTask | None
    snapshots: Sequence[Snapshot]
    roles: Mapping[HeadId, Role]
    patterns: Mapping[str, Pattern]
    seconds: float


def study_heads(
    model: Model,
    task: Task,
    config: StudyConfig = StudyConfig(),
    *,
    selection: Task | None = None,
    second: Task | None = None,
    run: str | Path | None = None,
    progress: Progress = silent,
) -> HeadStudy:
    """Scores, ablates and prunes by gates, on a task.

    Args:
        model: the model.
        task: a task that fits it.
        config: how much to measure.
        selection: the task whose `batches` give the examples to choose heads on; None divides `task`
            (`headjax.evaluation.selection.split_task`).
        second: another task that fits it, to compare importance on.
        run: workdir of a training run of the same architecture, whose checkpoints are pruned one by one.
        progress: shows the advance.

    Raises:
        HeadjaxError: the task does not fit the model, or the run is another model's.
        DataError: data that cannot be used.
    """
    started = time.perf_counter()
    if selection is None:
        selection, task = split_task(task)
    judge = Judge(task, config.limit, config.batch_size, config.buckets)
    fitted = task.fit(model)
    samples, ordered_by = _samples(selection, config)
    scores = _score(fitted, selection.name, samples[0], progress)
    importance = scores.score("importance")
    along = [] if run is None else _along(run, model, importance, samples[0], config, judge, progress)
    baseline = evaluate_task(model, task, limit=config.limit, batch_size=config.batch_size, buckets=config.buckets)
    effects = {mode: _ablate(fitted, task, mode, config, progress) for mode in MODES}
    best = _best(fitted, samples[0], progress)
    curves = _curves(model, samples, config, judge, progress)
    compared = None
    if second is not None:
        other_samples, _ = _samples(selection_of(second), config)
        other = _score(second.fit(model), second.name, other_samples[0], progress)
        both = transfer(importance, other.score("importance"), resamples=config.resamples)
        compared = SecondTask(second.name, both)
    shown = by_scores(scores, "importance")[::-1]
    return HeadStudy(
        model=model,
        task=task,
        selection=selection,
        config=config,
        baseline=baseline,
        examples=task.count(config.limit),
        ordered_by=ordered_by,
        scores=scores,
        effects=effects,
        best=best,
        curves=curves,
        second=compared,
        snapshots=along,
        roles=head_roles(fitted, _batches(task, config)),
        patterns=patterns(fitted, next(iter(_batches(task, config))), shown, config.shown),
        seconds=time.perf_counter() - started,
    )


def _batches(task: Task, config: StudyConfig) -> list[Batch]:
    return list(task.batches(config.batch_size, limit=config.limit, buckets=config.buckets))


def _samples(selection: Task, config: StudyConfig) -> tuple[Mapping[int, Sequence[Batch]], str]:
    """Return the batches that heads are ordered by, by seed, and a description of them."""
    count = min(config.scored or selection.count(), selection.count())
    drawn = {
        seed: list(selection.sample(count, config.batch_size, seed=seed, buckets=config.buckets))
        for seed in range(config.seeds)
    }
    return drawn, f"{count:,} examples of {selection.name}, {selection.split}, others for each seed"


def _score(fitted: Model, name: str, batches: Sequence[Batch], progress: Progress) -> Scores:
    with progress(f"scoring on {name}", len(batches), "batch") as bar:
        return score_heads(fitted, batches, progress=bar)


def _ablate(fitted: Model, task: Task, mode: Any, config: StudyConfig, progress: Progress) -> HeadEffects:
    batches = _batches(task, config)
    with progress(f"ablating, {mode}", len(batches) * len(all_heads(fitted.config)), "ablation") as bar:
        ablation = ablate(fitted, batches, mode, metrics=task.measure.outcomes(), progress=bar)
    return head_effects(ablation, task.measure, resamples=config.resamples)


def _best(fitted: Model, batches: Sequence[Batch], progress: Progress) -> list[HeadId]:
    """Return the head of every layer with the least loss when it is the only one left."""
    with progress("best heads", len(batches) * len(all_heads(fitted.config)), "ablation") as bar:
        return [best.head for best in best_heads(ablate(fitted, batches, "all-but-one", progress=bar))]


def _curves(
    model: Model,
    samples: Mapping[int, Sequence[Batch]],
    config: StudyConfig,
    judge: Judge,
    progress: Progress,
) -> dict[str, list[CurvePoint]]:
    total, done = len(config.orders) * len(samples) * len(config.percentages), 0
    found = {}
    with progress("pruning curves", total, "point") as bar:

        def advance() -> None:
            nonlocal done
            done += 1
            bar(done, {})

        for text in config.orders:
            found[text] = curve(model, CurveConfig.parse(text), samples, config.percentages, judge, advance)
    return found


def _along(
    run: str | Path,
    model: Model,
    importance: Mapping[HeadId, float],
    batches: Sequence[Batch],
    config: StudyConfig,
    judge: Judge,
    progress: Progress,
) -> list[Snapshot]:
    """Prune every checkpoint of a run by its own importance, and compare that with the model's."""
    found = []
    by_importance = CurveConfig(OrderConfig(by="importance"))
    with progress("checkpoints", 0, "checkpoint") as bar:  # how many, only the run's folder knows, while it trains
        for step, snapshot in snapshots(run):
            if all_heads(snapshot.config) != all_heads(model.config):
                raise DataError(f"{run}: its model has other heads than the one that is reported on")
            points = curve(snapshot, by_importance, {0: batches}, config.profile_percentages, judge, lambda: None)
            own = score_heads(judge.task.fit(snapshot), batches, statistics=()).score("importance")
            found.append(Snapshot(step, judge(snapshot), agreement(own, importance), points))
            bar(len(found), {})
    return found


def agreement(first: Mapping[HeadId, float], second: Mapping[HeadId, float]) -> float | None:
    """Return Spearman's correlation of scores; None where they rank nothing."""
    from scipy import stats

    x, y = ([values[head] for head in first] for values in (first, second))
    return float(stats.spearmanr(x, y).statistic) if len(set(x)) > 1 and len(set(y)) > 1 else None
