"""How long a command takes, told before the work by a timed forward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from headjax.commands.examples import SLOWEST, Examples, TaskOptions
from headjax.commands.options import CommandOptions, option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Positive
from headjax.core.numbers import duration

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

ABLATING = 0.5
"""Forward passes that the ablation of a head takes."""


class Cost(NamedTuple):
    """Work on the examples that choose.

    Attributes:
        passes: forward passes over them.
        solving: operations that solving maps of n features takes, in n^3: attention's of every layer.
        units: the same of feed-forwards.
    """

    passes: float = 0.0
    solving: float = 0.0
    units: float = 0.0


SCORING, ORDERING, REFITTING = Cost(2.0), Cost(2.8, 250.0), Cost(2.6, 80.0)
"""Costs of scores, of the order by reconstruction, and of a repair; as measured on MiniLM, MPNet and SmolLM2."""

PRICING, BUILDING = Cost(25.0, 80.0, 80.0), Cost(6.0, 80.0, 55.0)
"""Costs of measuring the forms of every sub-layer, and of building a choice; as measured on MiniLM and MPNet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedOptions(CommandOptions):
    """Options of commands that take known numbers of passes over their examples."""

    title: ClassVar[str] = "examples"
    max_time: Positive | None = option(None, "refuse work that takes longer, by a timed pass", "MINUTES")


def cost_of_order(by: str, config: ModelConfig, examples: Examples) -> Cost:
    """Return about what an order costs."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.orders import LEARNED, OrderConfig

    if by in LEARNED:
        count = examples.number or examples.selection.count()
        return Cost(SCORING.passes * OrderConfig(by=by).gate_steps * examples.options.batch_size / count)
    known = {"random": Cost(), "ablation": Cost(ABLATING * len(all_heads(config))), "reconstruction": ORDERING}
    return known.get(by, SCORING)


def tell_time(
    model: Model,
    options: TaskOptions,
    *,
    examples: Examples | None = None,
    chosen: Sequence[Cost] = (),
    task: Task | None = None,
    judged: float = 0.0,
    max_time: float | None = None,
) -> None:
    """Tell how long the work on the examples that choose, and passes over a task's, take; refuse more minutes."""
    from headjax.core.timing import matrix_rate, seconds_in_turns

    passes = sum(cost.passes for cost in chosen)
    batches = list(examples.calibrating()) if examples is not None and passes else []
    tokens = passes * sum(map(_size, batches))
    if task is not None and judged and task.count(options.limit):
        batch = next(task.batches(options.batch_size, limit=options.limit, buckets=options.lengths))
        tokens += judged * _size(batch) / _rows(batch) * task.count(options.limit)
        batches = batches or [batch]
    if not tokens:
        return
    batch = {name: array[:ROWS] for name, array in batches[len(batches) // 2].items()}
    work = model.config.flops(next(iter(batch.values())).shape[1]) * _rows(batch) / _size(batch)  # of a token
    solved = sum(_solving(model.config, cost) for cost in chosen) / work
    flops = (tokens + solved) * work
    if max_time is None and (flops < SAID * SLOWEST or SLOW * flops < SAID * matrix_rate()):
        return
    fitted = model if task is None else task.fit(model)
    call = functools.partial(fitted, fitted.device_batch(batch))
    (second,) = seconds_in_turns({"pass": call}, repeats=1, settle=0)["pass"]
    of_token = second / _size(batch)
    seconds = of_token * (tokens + solved)
    if max_time is not None and seconds > 60.0 * max_time:
        share = max((60.0 * max_time / of_token - solved) / tokens, 0.0)
        raise HeadjaxError(
            f"--max-time: it takes about {duration(seconds)}, by a timed pass; {share:.0%} of the examples would fit "
            "(--calibrate, --limit)"
        )
    if seconds > SAID:
        print(f"plan: about {duration(seconds)}, by a timed pass", flush=True)


def _solving(config: ModelConfig, cost: Cost) -> float:
    """Return the operations that solving takes in all layers."""
    kinds = (kind for stack in config.attentions().values() for kind in stack)
    features = (kind.num_heads * getattr(kind, "values", getattr(kind, "head_dim", 0)) for kind in kinds)
    units = (layer.hidden for stack in config.stacks().values() for layer in stack.layers)
    return cost.solving * sum(n**3.0 for n in features) + cost.units * sum(n**3.0 for n in units)


def _rows(batch: Batch) -> int:
    """Return the number of examples of a batch."""
    return len(next(iter(batch.values())))


def _size(batch: Batch) -> int:
    """Return the number of tokens of a batch, padding included."""
    return int(next(iter(batch.values())).size)
