"""Measurements of a model's heads for the report, the most telling ones first, and how long they will take."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.progress import Progress, Update, silent
from headjax.evaluation.paired import head_effects
from headjax.evaluation.selection import selection_of
from headjax.evaluation.task import Task, evaluate_task
from headjax.head_report.curves import CurveConfig, curve
from headjax.head_report.study import MODES, HeadStudy, Snapshot, StudyConfig, curve_name, scored
from headjax.head_report.views import MOST_EXAMPLES, View, views
from headjax.heads.ablation import ablate, best_heads
from headjax.heads.attended import head_roles
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.named_orders import LEARNED
from headjax.heads.scores import score_heads
from headjax.models.config import Batch, Gates
from headjax.models.model import Model
from headjax.training.checkpoints import snapshots


def measure(
    study: HeadStudy, second: Task | None = None, run: str | Path | None = None, progress: Progress = silent
) -> Iterator[None]:
    """Take the missing measurements, and yield whenever a section of the page has all its numbers.

    Args:
        study: a study that has begun.
        second: another task that fits the model, to compare importance on.
        run: workdir of a training run of the same architecture, whose checkpoints are pruned one by one.
        progress: shows the advance.

    Raises:
        HeadjaxError: the run is another model's.
    """
    yield from measure_curves(study, progress)
    config, keep, fitted = study.config, study.kept, study.task.fit(study.model)
    for mode in MODES:
        keep(mode, functools.partial(_ablate, fitted, study.few, mode, config, progress))
    keep("best", lambda: _best(fitted, sample(study.selection, config), config, progress))
    yield
    if second is not None:
        other = selection_of(second)
        keep(
            "second",
            lambda: _score(second.fit(study.model), second.name, sample(other, config), progress)["importance"],
        )
        yield
    if run is not None:
        _along(run, study, progress)
        yield
    keep("views", functools.partial(_views, study))
    keep(
        "roles",
        lambda: _named(
            {head: role._asdict() for head, role in head_roles(fitted, _batches(study.few, config)).items()}
        ),
    )
    yield


def measure_curves(study: HeadStudy, progress: Progress = silent) -> Iterator[None]:
    """Measure the metrics with all heads, the scores and the pruning curves, as `measure` does before all else."""
    config, keep, task = study.config, study.kept, study.task
    fitted = task.fit(study.model)
    keep("baseline", lambda: evaluate_task(fitted, task, batch_size=config.batch_size, buckets=config.buckets))
    keep("scores", lambda: _score(fitted, study.selection.name, sample(study.selection, config), progress))
    yield
    points, done = len(config.percentages), 0
    with progress("pruning curves", len(config.orders) * config.seeds * points, "point") as bar:
        for order in config.orders:
            for seed in range(config.seeds):
                keep(curve_name(order, seed), functools.partial(_curve, study, order, seed, bar, done))
                done += points
                bar(done, {})
            yield


def _curve(study: HeadStudy, order: str, seed: int, bar: Update, before: int) -> list[dict[str, Any]]:
    batches, config = sample(study.selection, study.config, seed), CurveConfig.parse(order)
    found = []
    judge, model = functools.partial(_headline, study), study.task.fit(study.model)
    for point in curve(model, config, batches, study.config.percentages, judge, seed=seed):
        found.append(point._asdict())
        bar(before + len(found), {study.task.headline: point.value})
    return found


def _headline(study: HeadStudy, model: Model, gates: Gates | None = None) -> float:
    """Return the headline of a model on the task's evaluation examples."""
    config = study.config
    found = evaluate_task(model, study.task, gates, batch_size=config.batch_size, buckets=config.buckets)
    return found[study.task.headline]


def _views(study: HeadStudy) -> list[View]:
    first = next(iter(study.few.batches(study.config.batch_size, limit=study.config.batch_size)))
    return views(study.few.fit(study.model), first)


def _batches(task: Task, config: StudyConfig) -> list[Batch]:
    return list(task.batches(config.batch_size, buckets=config.buckets))


def sample(selection: Task, config: StudyConfig, seed: int = 0) -> list[Batch]:
    """Return the batches that heads are ordered by."""
    return list(selection.sample(scored(selection, config), config.batch_size, seed=seed, buckets=config.buckets))


def _score(fitted: Model, name: str, batches: Sequence[Batch], progress: Progress) -> dict[str, dict[str, float]]:
    with progress(f"scoring on {name}", len(batches), "batch") as bar:
        return {score: _named(values) for score, values in score_heads(fitted, batches, progress=bar).values.items()}


def _ablate(fitted: Model, task: Task, mode: Any, config: StudyConfig, progress: Progress) -> dict[str, Any]:
    batches = _batches(task, config)
    with progress(f"ablating {len(all_heads(fitted.config))} heads, {mode}", len(batches), "batch") as bar:
        ablation = ablate(fitted, batches, mode, metrics=task.measure.outcomes(), progress=bar)
    found = head_effects(ablation, task.measure, resamples=config.resamples)
    return {
        "metric": found.metric,
        "effect": _named(found.effects()),
        "p_value": {str(head): comparison.p_value for head, comparison in found.comparisons.items()},
        "test": found.test,
    }


def _best(fitted: Model, batches: Sequence[Batch], config: StudyConfig, progress: Progress) -> list[str]:
    """Return the head of every layer with the least loss when it is the only one left, on half as many examples."""
    step = -(-2 * len(batches) * config.batch_size // config.ablated) if config.ablated else 1
    few = batches[:: max(step, 1)]
    with progress(f"best of {len(all_heads(fitted.config))} heads", len(few), "batch") as bar:
        return [str(best.head) for best in best_heads(ablate(fitted, few, "all-but-one", progress=bar))]


def _along(run: str | Path, study: HeadStudy, progress: Progress) -> None:
    """Prune every checkpoint of a run by its own importance, and compare that with the model's."""
    batches = sample(study.selection, study.config)
    with progress("checkpoints", 0, "checkpoint") as bar:  # how many, only the run's folder knows, while it trains
        for number, (step, snapshot) in enumerate(snapshots(run), start=1):
            if all_heads(snapshot.config) != all_heads(study.model.config):
                raise DataError(f"{run}: its model has other heads than the one that is reported on")
            study.kept(f"snapshot/{step}", functools.partial(_snapshot, step, snapshot, study, batches))
            bar(number, {})


def _snapshot(step: int, model: Model, study: HeadStudy, batches: Sequence[Batch]) -> dict[str, Any]:
    model, judge = study.task.fit(model), functools.partial(_headline, study)
    shares = study.config.profile_percentages
    points = list(curve(model, CurveConfig.parse("importance"), batches, shares, judge))
    own = score_heads(model, batches, statistics=()).score("importance")
    found = Snapshot(step, judge(model), agreement(own, study.scores["importance"]), points)
    return found._asdict() | {"points": [point._asdict() for point in points]}


def agreement(first: Mapping[HeadId, float], second: Mapping[HeadId, float]) -> float | None:
    """Return Spearman's correlation of scores; None where they rank nothing."""
    from scipy import stats

    x, y = ([values[head] for head in first] for values in (first, second))
    return float(stats.spearmanr(x, y).statistic) if len(set(x)) > 1 and len(set(y)) > 1 else None


def _named(values: Mapping[HeadId, Any]) -> dict[str, Any]:
    return {str(head): value for head, value in values.items()}


BACKWARD, SUFFIX, SOLVED = 3.0, 0.55, 6.0
"""Forwards that a forward with its gradient costs, an ablation of one head (the layers behind it), and an example of a
reconstruction (both models, and sums of products)."""


def estimate(study: HeadStudy, *, second: bool = False) -> float:
    """Return about how many seconds the measurements take that are missing, by the time of one batch.

    Compilation, and the checkpoints of a run, come on top.
    """
    config, task = study.config, study.task
    examples = min(config.batch_size, task.count())
    times = []
    for _ in range(2):  # the first one compiles
        started = time.perf_counter()
        evaluate_task(study.model, task, None, examples, batch_size=config.batch_size, buckets=config.buckets)
        times.append(time.perf_counter() - started)
    costs = _forwards(study, second=second)
    return times[-1] / examples * sum(cost for name, cost in costs.items() if name not in study.kept.found)


def _forwards(study: HeadStudy, *, second: bool) -> dict[str, float]:
    """Return how many forwards of an example every measurement costs."""
    config, judged, few = study.config, study.task.count(), study.few.count()
    chosen, heads = scored(study.selection, config), len(all_heads(study.model.config))
    costs: dict[str, float] = {"baseline": judged, "scores": BACKWARD * chosen, "roles": few}
    costs["views"] = MOST_EXAMPLES * (heads + 1)
    costs |= dict.fromkeys(MODES, SUFFIX * heads * few)
    costs["best"] = SUFFIX * heads * min(chosen, few / 2)
    costs |= {"second": BACKWARD * chosen} if second else {}
    for text in config.orders:
        order = CurveConfig.parse(text)
        if order.order.by in LEARNED:
            ordering = BACKWARD * order.order.gate_steps * config.batch_size
        else:
            ordering = {"random": 0.0, "ablation": SUFFIX * heads * chosen}.get(order.order.by, BACKWARD * chosen)
        point = judged + SOLVED * chosen * order.reconstruct
        costs |= {curve_name(text, seed): ordering + point * len(config.percentages) for seed in range(config.seeds)}
    return costs
