"""The first line of the page: how many heads can go, what that saves, what it costs, and the command that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headjax.core import numbers
from headjax.evaluation.paired import Comparison
from headjax.head_report.study import CurveConfig, CurvePoint, HeadStudy, removable
from headjax.heads.head_id import all_heads
from headjax.heads.pruning import prune
from headjax.models.model import Model

POINT = 0.01
"""Loss that does not count: one point of a metric between 0 and 1."""

RELATIVE = 0.05
"""Loss that counts as none for other metrics, as a share of the baseline."""

Milliseconds = Mapping[str, float | None]  # of a forward pass, by the number of examples
Timer = Callable[[Sequence[Model]], tuple[Milliseconds, ...]]


class Answer(NamedTuple):
    """The recommended order, by name and as settings; its largest removal within the tolerance; all of it in words."""

    name: str
    order: CurveConfig
    point: CurvePoint | None
    text: str


def answer(
    study: HeadStudy, model_name: str = "MODEL", task_name: str = "TASK", timer: Timer = lambda models: ({}, {})
) -> Answer:
    """Return the largest removal that any order makes at a loss within the tolerance, with the model's times."""
    points = {name: largest(study, name) for name in study.curves}
    name = max(points, key=lambda name: 0.0 if (point := points[name]) is None else point.fraction)
    order, point, task = CurveConfig.parse(name), points[name], study.task
    few = too_few(study)
    if point is None:
        cost = few or f"no order removes the first {study.config.percentages[0]}% at a loss of at most {allowed(study)}"
        return Answer(name, order, None, f"No removal is recommended: {cost}.")
    headline, before = task.headline.replace("_", " "), study.baseline[task.headline]
    smaller = prune(study.model, point.heads)
    parameters = " to ".join(map(numbers.count, (study.model.num_parameters, smaller.num_parameters)))
    text = (
        f"Remove {point.removed} of {len(all_heads(study.model.config))} heads: {parameters} parameters, "
        f"{times(*timer((study.model, smaller)))}{headline} "
        f"{numbers.significant(before)} to {numbers.significant(point.value)} on {task.count():,} examples"
    )
    refit = " --reconstruct" if order.reconstruct else ""
    command = f"headjax prune {model_name} OUT --remove {point.removed} --by {order.order.by}{refit} --task {task_name}"
    doubt = few or _doubt(study, point.change)
    return Answer(name, order, point, f"{text}{interval(study, point.change)}.{_sentence(doubt)}\n\n`{command}`")


def largest(study: HeadStudy, name: str) -> CurvePoint | None:
    """Return the first seed's point of the largest share of heads that an order removes within the tolerance."""
    points = study.curves[name]
    share = removable(points, study.baseline[study.task.headline], tolerance(study), study.task.higher_is_better)
    return next((point for point in points if point.fraction == share), None)


def tolerance(study: HeadStudy) -> float:
    """Return the loss of the headline that does not count: one point, or 5 % of a headline that is not a share."""
    return POINT if is_share(study) else RELATIVE * abs(study.baseline[study.task.headline])


def allowed(study: HeadStudy) -> str:
    """Return the tolerance in words."""
    return "one point" if is_share(study) else f"{RELATIVE:.0%} of the {study.task.headline}"


def is_share(study: HeadStudy) -> bool:
    """Whether the headline is a share such as an accuracy, which changes by points."""
    return study.task.higher_is_better and study.baseline[study.task.headline] <= 1.0


def too_few(study: HeadStudy) -> str:
    """Return why the examples cannot show the tolerance at all, where a single one weighs more."""
    needed, count = round(1 / POINT), study.task.count()
    if study.task.measure.kind != "binary" or count >= needed:
        return ""
    return f"one of {count} examples is more than one point, so judge at least {needed} (`--judged`)"


def times(before: Milliseconds, after: Milliseconds) -> str:
    """Return the times of the largest batch that was timed, in words."""
    pairs = {size: (time, after[size]) for size, time in before.items()}
    known = {size: pair for size, pair in pairs.items() if all(pair)}
    if not known:
        return ""
    size, (old, new) = list(known.items())[-1]
    return f"{numbers.significant(old)} to {numbers.significant(new)} ms for {size} examples, "


def _doubt(study: HeadStudy, change: Comparison | None) -> str:
    """Return a warning where the interval reaches losses above the tolerance."""
    if change is None:
        return ""
    worst = -change.low if study.task.higher_is_better else change.high
    if study.task.measure.kind == "sum" and study.task.headline != "loss":
        worst = np.expm1(change.high) * study.baseline[study.task.headline]  # the interval is in nats
    return "" if worst <= tolerance(study) else f"too few examples to exclude a loss of {allowed(study)}"


def interval(study: HeadStudy, change: Comparison | None) -> str:
    """Return the interval of a change in brackets."""
    if change is None:
        return ""
    scale, unit = (100.0, " points") if is_share(study) else (1.0, "")
    unit = " nats of the loss" if study.task.measure.kind == "sum" else unit
    low, high = (numbers.significant(scale * end) for end in (change.low, change.high))
    return f" (95% interval of the change: {low} to {high}{unit})"


def _sentence(text: str) -> str:
    return f" {text[0].upper()}{text[1:]}." if text else ""
