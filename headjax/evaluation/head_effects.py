"""Effects of ablations on a task's metrics, each with the paired test that suits the measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.progress import Update
from headjax.evaluation.measures import Measure, Outcomes
from headjax.heads.ablation import Ablation
from headjax.heads.head_id import HeadId
from headjax.heads.significance import Comparison, mcnemar, paired_bootstrap, t_test

RESAMPLES = 1000
"""Number of bootstrap resamples, that of the paper's compare-mt."""


class HeadEffects(NamedTuple):
    """The effect of every ablation on a task.

    Attributes:
        metric: the task's headline.
        baseline: metrics of the model itself, by name.
        metrics: by head, the metrics under its ablation.
        comparisons: by head, the test of the headline by the measure's kind: McNemar's for `binary`, a t-test on the
            examples' losses for `sum`, a paired bootstrap for `graded` and `corpus`.
        test: name of that test.
    """

    metric: str
    baseline: dict[str, float]
    metrics: dict[HeadId, dict[str, float]]
    comparisons: dict[HeadId, Comparison]
    test: str

    def effects(self, metric: str | None = None) -> dict[HeadId, float]:
        """Return the change of a metric by head; the headline by default."""
        name = self.metric if metric is None else metric
        return {head: metrics[name] - self.baseline[name] for head, metrics in self.metrics.items()}


def head_effects(
    ablation: Ablation, measure: Measure, *, resamples: int = RESAMPLES, progress: Update | None = None
) -> HeadEffects:
    """Return the task's metrics under every ablation.

    Args:
        ablation: an ablation computed with `metrics=measure.outcomes()`.
        measure: the task's measure.
        resamples: number of bootstrap resamples.
        progress: called after every head with the number of heads done.

    Raises:
        DataError: fewer than two examples.
    """
    own = _outcomes(ablation, ablation.baseline)
    baseline = _metrics(own, measure)
    by_head: dict[HeadId, dict[str, float]] = {}
    comparisons: dict[HeadId, Comparison] = {}
    test, compare = paired_test(own, measure, resamples)
    for i, head in enumerate(ablation.heads):
        outcomes = _outcomes(ablation, {name: rows[i] for name, rows in ablation.ablated.items()})
        by_head[head] = _metrics(outcomes, measure)
        comparisons[head] = compare(outcomes)
        if progress is not None:
            progress(i + 1, {})
    return HeadEffects(measure.headline, baseline, by_head, comparisons, test)


def _metrics(outcomes: Outcomes, measure: Measure) -> dict[str, float]:
    loss = float(outcomes["loss"].sum() / outcomes["targets"].sum())
    return {"loss": loss, **measure.metrics(outcomes)}


def _outcomes(ablation: Ablation, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**values, "targets": ablation.weights["loss"]}


def paired_test(own: Outcomes, measure: Measure, resamples: int) -> tuple[str, Callable[[Outcomes], Comparison]]:
    """Return the name of the paired test that suits the measure's kind, and the test of other outcomes."""
    if measure.kind == "binary":
        right = _values(measure, own)
        return "McNemar's exact test", lambda changed: mcnemar(right, _values(measure, changed))
    if measure.kind == "sum":
        targets = own["targets"]
        return "paired t-test on losses", lambda changed: t_test(own["loss"] / targets, changed["loss"] / targets)
    bootstrap = f"paired bootstrap, {resamples} resamples"
    if measure.kind == "graded":
        graded = _values(measure, own)
        return bootstrap, lambda changed: paired_bootstrap(graded, _values(measure, changed), resamples=resamples)
    names = sorted(own)

    def stacked(outcomes: Outcomes) -> np.ndarray:
        return np.stack([np.asarray(outcomes[name], np.float64) for name in names], axis=-1)

    def metric(rows: np.ndarray) -> float:
        return measure.metrics({name: rows[:, i] for i, name in enumerate(names)})[measure.headline]

    base = stacked(own)
    return bootstrap, lambda changed: paired_bootstrap(base, stacked(changed), metric, resamples=resamples)


def _values(measure: Measure, outcomes: Outcomes) -> np.ndarray:
    values = measure.values(outcomes)
    if values is None:
        raise DataError(f"{measure.headline}: a measure of kind {measure.kind} must give a value of every example")
    return np.asarray(values)
