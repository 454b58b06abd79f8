"""Two models on the same examples: the metrics of both, their agreement, and the test of the difference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.evaluation.head_effects import RESAMPLES, paired_test
from headjax.evaluation.measures import Classes, Numbers
from headjax.evaluation.spans import Spans, normalize_answer
from headjax.evaluation.task import BATCH_SIZE, Evaluation, Task, measure_task
from headjax.heads.agreement import divergence
from headjax.heads.significance import Comparison
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.outputs import IGNORED


class Compared(NamedTuple):
    """Result of a comparison.

    Attributes:
        first, second: the evaluation of each model.
        agreement: share of equal predictions, mean absolute difference or divergence; None where nothing compares.
        measure: the agreement's definition.
        test: name of the paired test of the headline; empty where the examples are not the same.
        significance: its result, the second model's headline minus the first's; None without a test.
    """

    first: Evaluation
    second: Evaluation
    agreement: float | None
    measure: str
    test: str
    significance: Comparison | None


def compare(
    models: tuple[Model, Model], tasks: tuple[Task, Task], *, limit: int = 0, batch_size: int = BATCH_SIZE
) -> Compared:
    """Compare two models on a task, which each reads with its own tokenizer.

    Args:
        models: the models.
        tasks: the task as loaded for each.
        limit: number of examples, from the start; 0 is all.
        batch_size: number of examples of a batch.

    Raises:
        HeadjaxError: the task does not fit a model, or gives them different measures.
    """
    if type(tasks[0].measure) is not type(tasks[1].measure):
        raise HeadjaxError(f"compare: {tasks[0].name} has different measures for the two models")
    first, second = (
        measure_task(model, task, limit=limit, batch_size=batch_size) for model, task in zip(models, tasks, strict=True)
    )
    measure, same = tasks[0].measure, _same_inputs(models)
    agreement, words = _agreement(models, tasks, first, second, limit, batch_size)
    paired = same or "label" in first.outcomes
    if not paired or not 2 <= first.examples == second.examples:
        return Compared(first, second, agreement, words, "", None)
    name, test = paired_test(first.outcomes, measure, RESAMPLES)
    return Compared(first, second, agreement, words, name, test(second.outcomes))


def _same_inputs(models: tuple[Model, Model]) -> bool:
    prints = [model.tokenizer.fingerprint if model.tokenizer is not None else "" for model in models]
    return prints[0] == prints[1]


def _agreement(
    models: tuple[Model, Model], tasks: tuple[Task, Task], first: Evaluation, second: Evaluation, limit: int, size: int
) -> tuple[float | None, str]:
    measure, other = tasks[0].measure, tasks[1].measure
    if isinstance(measure, Spans) and isinstance(other, Spans):
        ours, theirs = measure.answers(first.outcomes), other.answers(second.outcomes)
        pairs = [(normalize_answer(ours[number]), normalize_answer(theirs[number])) for number in ours.keys() & theirs]
        return float(np.mean([one == two for one, two in pairs])), "share of questions with equal answers"
    if isinstance(measure, Classes | Numbers) and first.examples == second.examples:
        a, b = first.outcomes["prediction"], second.outcomes["prediction"]
        if isinstance(measure, Classes):
            return float((a == b).mean()), "share of equal predictions"
        return float(np.abs(a - b).mean()), "mean absolute difference of predictions"
    if not _same_inputs(models):
        return None, "none: the models have different tokenizers"
    divergence, tokens = _divergence(models, tasks, limit, size)
    among = f" among the {tokens:,} tokens that both have" if tokens else ""
    return divergence, f"mean KL(A, B) of the predicted tokens{among}, nats"


def _divergence(
    models: tuple[Model, Model], tasks: tuple[Task, Task], limit: int, batch_size: int
) -> tuple[float, int]:
    """Return the mean over positions of sum_v p_A(v) (log p_A(v) - log p_B(v)), in nats.

    A vocabulary may be filled up with tokens that the tokenizer does not have: v goes over the tokens that both models
    have, whose number is returned, too, where the models differ; else 0.
    """
    fitted = [task.fit(model) for model, task in zip(models, tasks, strict=True)]
    total, count, tokens = 0.0, 0.0, 0
    for batch in tasks[0].batches(batch_size, limit=limit):
        logits = [model(device_batch(model.config, batch)).require_logits() for model in fitted]
        sizes = [array.shape[-1] for array in logits]
        tokens = min(sizes) if sizes[0] != sizes[1] else 0
        each = np.asarray(divergence(*(array[..., : min(sizes)] for array in logits)))
        present = np.asarray(batch["labels"]) != IGNORED if "labels" in batch else np.ones(each.shape, bool)
        total, count = total + float(each[present].sum()), count + float(present.sum())
    return total / max(count, 1.0), tokens
