"""Two models, or a model and its ablations, on the same examples: metrics, agreement, and the paired test that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Progress, Update, silent
from headjax.evaluation.measures import Classes, Measure, Numbers, Outcomes
from headjax.evaluation.structured import Spans, normalize_answer
from headjax.evaluation.task import BATCH_SIZE, Evaluation, Task, measure_task, metrics_of
from headjax.heads.ablation import Ablation
from headjax.heads.agreement import divergence, in_parts
from headjax.heads.head_id import HeadId
from headjax.models.inputs import device_batch
from headjax.models.model import Model

RESAMPLES = 1000  # number of bootstrap resamples, that of the paper's compare-mt


class Compared(NamedTuple):
    """Result of a comparison."""

    first: Evaluation
    second: Evaluation
    agreement: float | None
    measure: str
    test: str = ""
    significance: Comparison | None = None


def compare(
    models: tuple[Model, Model],
    tasks: tuple[Task, Task],
    *,
    limit: int = 0,
    batch_size: int = BATCH_SIZE,
    buckets: Sequence[int] = (),
    progress: Progress = silent,
) -> Compared:
    """Compare two models on a task, which each reads with its own tokenizer."""
    if type(tasks[0].measure) is not type(tasks[1].measure):
        raise HeadjaxError(f"compare: {tasks[0].name} has different measures for the two models")
    measure, same = tasks[0].measure, _same_inputs(models)
    chosen: Any = {"limit": limit, "buckets": buckets if same else ()}

    def measured(model: Model, task: Task, name: str) -> Evaluation:
        with progress(f"evaluating {name}", task.count_batches(batch_size, **chosen), "batch") as bar:
            return measure_task(model, task, batch_size=batch_size, progress=bar, **chosen)

    first, second = map(measured, models, tasks, ("MODEL", "OTHER"))
    compared = Compared(first, second, *_agreement(models, tasks, first, second, limit, batch_size))
    if not (same or "label" in first.outcomes) or not 2 <= first.examples == second.examples:
        return compared
    name, test = paired_test(first.outcomes, measure, RESAMPLES)
    return compared._replace(test=name, significance=test(second.outcomes))


def _same_inputs(models: tuple[Model, Model]) -> bool:
    return len({model.tokenizer.fingerprint if model.tokenizer is not None else "" for model in models}) == 1


_divergence = jax.jit(divergence)


def _agreement(
    models: tuple[Model, Model], tasks: tuple[Task, Task], first: Evaluation, second: Evaluation, limit: int, size: int
) -> tuple[float | None, str]:
    measure, other = tasks[0].measure, tasks[1].measure
    if isinstance(measure, Spans) and isinstance(other, Spans):
        ours, theirs = measure.answers(first.outcomes), other.answers(second.outcomes)
        pairs = ((ours[number].text, theirs[number].text) for number in ours.keys() & theirs)
        equal = [normalize_answer(one) == normalize_answer(another) for one, another in pairs]
        return float(np.mean(equal)), "share of questions with equal answers"
    if isinstance(measure, Classes | Numbers) and first.examples == second.examples:
        a, b = first.outcomes["prediction"], second.outcomes["prediction"]
        if isinstance(measure, Classes):
            return float((a == b).mean()), "share of equal predictions"
        return float(np.abs(a - b).mean()), "mean absolute difference of predictions"
    if not _same_inputs(models):
        return None, "none: the models have different tokenizers"
    # A vocabulary may be filled up with tokens that the tokenizer does not have.
    fitted = [task.fit(model) for model, task in zip(models, tasks, strict=True)]
    total, count, sizes = 0.0, 0.0, [0]
    batches = tasks[0].batches(size, limit=limit)
    for batch in (part for each in batches for part in in_parts(fitted[0], [each])):
        logits = [model(device_batch(model.config, batch)).require_logits() for model in fitted]
        sizes = sorted({array.shape[-1] for array in logits})
        each = np.asarray(_divergence(*(array[..., : sizes[0]] for array in logits)))
        present = np.asarray(batch["labels"]) != IGNORED if "labels" in batch else np.ones(each.shape, bool)
        total, count = total + float(each[present].sum()), count + float(present.sum())
    among = f" among the {sizes[0]:,} tokens that both have" if len(sizes) > 1 else ""
    return total / max(count, 1.0), f"mean KL(A, B) of the predicted tokens{among}, nats"


class HeadEffects(NamedTuple):
    """The effect of every ablation on a task.

    Attributes:
        metric: the primary metric.
        baseline: metrics with all heads.
        effect: change of the primary metric by head.
        effects: change of every metric, by name and head.
        p_value: by head.
        test: the paired test.
    """

    metric: str
    baseline: dict[str, float]
    effect: dict[HeadId, float]
    effects: dict[str, dict[HeadId, float]]
    p_value: dict[HeadId, float]
    test: str


def head_effects(
    ablation: Ablation, measure: Measure, *, resamples: int = RESAMPLES, progress: Update | None = None
) -> HeadEffects:
    """Return the task's metrics under every ablation."""
    targets = {"targets": ablation.weights["loss"]}
    whole = ablation.baseline | targets
    baseline = metrics_of(measure, whole)
    p_value: dict[HeadId, float] = {}
    effects: dict[str, dict[HeadId, float]] = {name: {} for name in baseline}
    test, compare = paired_test(whole, measure, resamples)
    for i, head in enumerate(ablation.heads):
        outcomes = {name: rows[i] for name, rows in ablation.ablated.items()} | targets
        for name, value in metrics_of(measure, outcomes).items():
            effects[name][head] = value - baseline[name]
        p_value[head] = compare(outcomes).p_value
        if progress is not None:
            progress(i + 1, {})
    metric = measure.primary_metric
    return HeadEffects(metric, baseline, effects[metric], effects, p_value, test)


def paired_test(baseline: Outcomes, measure: Measure, resamples: int) -> tuple[str, Callable[[Outcomes], Comparison]]:
    """Return the name of the paired test that suits the measure's kind, and the test of other outcomes."""
    if measure.kind == "binary":
        right = measure.values(baseline)
        return "McNemar's exact test", lambda changed: mcnemar(right, measure.values(changed))
    if measure.kind == "sum":
        targets = baseline["targets"]
        return "paired t-test on losses", lambda changed: t_test(baseline["loss"] / targets, changed["loss"] / targets)
    bootstrap = f"paired bootstrap, {resamples} resamples"
    if measure.kind == "graded":
        graded = measure.values(baseline)
        return bootstrap, lambda changed: paired_bootstrap(graded, measure.values(changed), resamples=resamples)
    names = sorted(baseline)

    def stacked(outcomes: Outcomes) -> np.ndarray:
        return np.stack([np.asarray(outcomes[name], np.float64) for name in names], axis=-1)

    def metric(rows: np.ndarray) -> float:
        return measure.metrics({name: rows[:, i] for i, name in enumerate(names)})[measure.primary_metric]

    base = stacked(baseline)
    return bootstrap, lambda changed: paired_bootstrap(base, stacked(changed), metric, resamples=resamples)


class Comparison(NamedTuple):
    """Result of a paired test: the changed model's metric minus the baseline's, with its 95 % confidence interval."""

    difference: float
    p_value: float  # probability of a difference at least as large if both were equally good
    low: float
    high: float


def t_test(baseline: np.ndarray, changed: np.ndarray) -> Comparison:
    """Run Student's paired t-test on per-example values `[examples]` (losses, squared errors)."""
    from scipy import stats

    change = _paired(baseline, changed)
    if not np.ptp(change):  # no variance: the statistic is 0/0 or infinite
        level = float(change[0])
        return Comparison(level, float(level == 0.0), level, level)
    result = stats.ttest_rel(np.asarray(changed, np.float64), np.asarray(baseline, np.float64))
    interval = result.confidence_interval(0.95)
    return Comparison(float(change.mean()), float(result.pvalue), float(interval.low), float(interval.high))


def mcnemar(baseline: np.ndarray, changed: np.ndarray) -> Comparison:
    """Run McNemar's exact test on right and wrong answers, `[examples]` of 1 and 0.

    Only examples that one model alone gets right count. If both were equally good, each model would be that one with
    probability 1/2. The interval is Bonett and Price's (2012) for a difference of paired proportions: with one example
    added to those that either model alone gets right, g of n + 2 and l of n + 2,

        (g - l) / (n + 2) +- 1.96 sqrt((g + l) / (n + 2) - ((g - l) / (n + 2))^2) / sqrt(n + 2).

    The interval is not the test turned around, so the two may disagree where a p-value is close to 0.05.
    """
    from scipy import stats

    change = _paired(baseline, changed)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    p_value = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    examples = len(change) + 2
    middle, changed_share = (gained - lost) / examples, (gained + lost + 2) / examples
    half = stats.norm.ppf(0.975) * np.sqrt((changed_share - middle**2) / examples)
    return Comparison(float(change.mean()), float(p_value), float(middle - half), float(middle + half))


def paired_bootstrap(
    baseline: np.ndarray,
    changed: np.ndarray,
    metric: Callable[[np.ndarray], float] = np.mean,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Run the paired bootstrap (Koehn 2004) for metrics of a whole corpus (BLEU, F1, correlations).

    Examples are drawn with replacement, the same ones for both models. The p-value is twice the share of resamples
    whose difference does not have the sign of the full data's; the full data count as one resample.

        >>> right = np.arange(100) % 2 == 0
        >>> round(headjax.paired_bootstrap(right, right | (np.arange(100) < 20)).difference, 2)
        0.1
    """

    def change(drawn: np.ndarray) -> float:
        return float(metric(changed[drawn]) - metric(baseline[drawn]))

    count, generator = len(_paired(baseline, changed)), np.random.default_rng(seed)
    difference = change(np.arange(count))
    changes = np.array([change(generator.integers(count, size=count)) for _ in range(resamples)])
    against = (changes * np.sign(difference) <= 0.0).sum() if difference else resamples
    p_value = min(1.0, 2.0 * (against + 1) / (resamples + 1))
    low, high = np.percentile(changes, (2.5, 97.5))
    return Comparison(difference, float(p_value), float(low), float(high))


def _paired(baseline: np.ndarray, changed: np.ndarray) -> np.ndarray:
    if len(baseline) < 2:
        raise DataError(f"significance: {len(baseline)} examples are too few for a test")
    return np.asarray(changed, np.float64) - np.asarray(baseline, np.float64)
