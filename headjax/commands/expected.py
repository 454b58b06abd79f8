"""How long a command takes, told before the work by a timed forward pass."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, ClassVar

from headjax.commands.examples import SLOWEST, Examples, TaskOptions
from headjax.commands.options import CommandOptions, option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Positive
from headjax.report.numbers import duration

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.config import Batch, ModelConfig
    from headjax.models.model import Model

SAID = 60.0
"""Expected seconds from which on they are said."""

SLOW = 4.0
"""Most times that a forward pass takes of its matrix products alone."""

ROWS = 8
"""Most examples of the timed batch."""

SCORING, ABLATING, ORDERING, REFITTING = 2.0, 0.5, 6.0, 4.0
"""Forward passes that scores, the ablation of a head, the order by reconstruction and a repair take."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedOptions(CommandOptions):
    """Options of commands that take known numbers of passes over their examples."""

    title: ClassVar[str] = "examples"
    max_time: Positive | None = option(None, "refuse work whose passes, by a timed one, take longer", "MINUTES")


def passes_of_order(by: str, config: ModelConfig, examples: Examples) -> float:
    """Return about how many forward passes over the examples that choose an order takes."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.orders import LEARNED, OrderConfig

    if by in LEARNED:
        count = examples.number or examples.selection.count()
        return SCORING * OrderConfig(by=by).gate_steps * examples.options.batch_size / count
    known = {"random": 0.0, "ablation": ABLATING * len(all_heads(config)), "reconstruction": ORDERING}
    return known.get(by, SCORING)


def tell_time(
    model: Model,
    options: TaskOptions,
    *,
    examples: Examples | None = None,
    chosen: float = 0.0,
    task: Task | None = None,
    judged: float = 0.0,
    max_time: float | None = None,
) -> None:
    """Tell how long passes over the examples that choose, and over a task's, take if above a minute; refuse more."""
    from headjax.core.timing import matrix_rate, seconds_in_turns

    batches = [] if examples is None or not chosen else list(examples.calibrating())
    tokens = chosen * sum(map(_size, batches))
    if task is not None and judged and task.count(options.limit):
        batch = next(task.batches(options.batch_size, limit=options.limit, buckets=options.buckets))
        tokens += judged * _size(batch) / _rows(batch) * task.count(options.limit)
        batches = batches or [batch]
    if not tokens:
        return
    batch = {name: array[:ROWS] for name, array in batches[len(batches) // 2].items()}
    flops = tokens / _size(batch) * _rows(batch) * model.config.flops(next(iter(batch.values())).shape[1])
    if max_time is None and (flops < SAID * SLOWEST or SLOW * flops < SAID * matrix_rate()):
        return
    fitted = model if task is None else task.fit(model)
    call = functools.partial(fitted, fitted.device_batch(batch))
    (second,) = seconds_in_turns({"pass": call}, repeats=1, settle=0)["pass"]
    seconds = second * tokens / _size(batch)
    if max_time is not None and seconds > 60.0 * max_time:
        raise HeadjaxError(
            f"--max-time: passes take about {duration(seconds)}, by a timed one; {60.0 * max_time / seconds:.1%} of the "
            "examples would fit (--calibrate, --limit)"
        )
    if seconds > SAID:
        print(f"plan: passes take about {duration(seconds)}, by a timed one", flush=True)


def _rows(batch: Batch) -> int:
    """Return the number of examples of a batch."""
    return len(next(iter(batch.values())))


def _size(batch: Batch) -> int:
    """Return the number of tokens of a batch, padding included."""
    return int(next(iter(batch.values())).size)
