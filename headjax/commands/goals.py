"""Goals of a removal: `Heads | Count | MaxDrop | SpeedUp | Budget`, each of which chooses the heads that go.

Options say the goal; an `Ordering` says which heads go first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from headjax.commands.examples import Examples
from headjax.commands.options import option_name
from headjax.commands.orderings import GoalOptions, OptionsT, Ordering
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount
from headjax.core.progress import silent

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order
    from headjax.models.config import Batch, ModelConfig
    from headjax.models.model import Model


LENGTH = 128
"""Tokens of an example whose FLOPs `--flops` counts, where neither a task nor `--length` says."""


class Chosen(NamedTuple):
    """The heads that go.

    Attributes:
        number: how many go.
        heads: which; None where training between the rounds decides.
        facts: what was found on the way, by key of the JSON.
        read: number of selection examples that were read; 0 is all, None if none were.
    """

    number: int
    heads: Order | None
    facts: Mapping[str, float] = {}
    read: int | None = None


@dataclasses.dataclass(frozen=True)
class Heads:
    """Heads named one by one."""

    names: str

    def choose(self, ordering: Ordering) -> Chosen:
        """Return these heads."""
        from headjax.heads.ordering import explicit_heads

        heads = explicit_heads(ordering.model.config, self.names) or ()
        return Chosen(len(heads), heads)


@dataclasses.dataclass(frozen=True)
class Count:
    """A number of heads, or a share of all."""

    amount: str

    def choose(self, ordering: Ordering) -> Chosen:
        """Return the first heads of the order."""
        from headjax.heads.ordering import flat, requested_count

        ordering.check_rounds()
        # A number that cannot be met is found before anything is scored, unless removals differ in size.
        even = ordering.is_even
        count = (
            ordering.count(self.amount, ordering.removable)
            if even
            else requested_count(ordering.model.config, self.amount)
        )
        if is_gradual(ordering.options):
            return Chosen(count, None, read=ordering.read)
        steps = ordering.steps(count)
        count = ordering.count(self.amount, steps)
        return Chosen(count, flat(steps)[:count], read=ordering.read)


@dataclasses.dataclass(frozen=True)
class MaxDrop:
    """As many heads as cost at most this much of the headline on the selection examples."""

    drop: Amount

    def choose(self, ordering: Ordering) -> Chosen:
        """Return the longest beginning of the order that costs no more, by bisection."""
        from headjax.evaluation.task import evaluate_task
        from headjax.heads import gates as head_gates
        from headjax.heads.ordering import ends, flat, most_within

        model, options, examples = ordering.model, ordering.options, _needed(ordering)
        task, steps = examples.selection, ordering.steps()
        sign = 1.0 if task.higher_is_better else -1.0
        done = 0
        with ordering.progress("searching", len(steps).bit_length() + 1, "evaluation") as bar:

            @functools.cache  # the search begins with the unpruned model, and so does a relative drop
            def evaluate(removed: Order) -> float:
                nonlocal done
                done += 1
                gates = head_gates.without(model.config, removed)
                metrics = evaluate_task(
                    model, task, gates, examples.selected, batch_size=options.batch_size, buckets=options.buckets
                )
                bar(done, {task.headline: metrics[task.headline]})
                return sign * metrics[task.headline]

            within = most_within(flat(steps), evaluate, self.drop.of(abs(evaluate(()))), ends(steps))
        facts = {"gated_metric": sign * within.value, "baseline": sign * within.baseline}
        return Chosen(len(within.heads), within.heads, facts, examples.selected)


@dataclasses.dataclass(frozen=True)
class SpeedUp:
    """As few heads as make a forward pass this many times as fast, by measurement."""

    factor: float

    def choose(self, ordering: Ordering) -> Chosen:
        """Return the shortest beginning of the order that is predicted to be as fast, from timed layers."""
        from headjax.heads.latency import heads_for_speed_up, measure_latency
        from headjax.heads.ordering import ends, flat

        config, examples = ordering.model.config, _needed(ordering)
        steps = ordering.steps()
        table = measure_latency(ordering.model, first_inputs(examples.selection, ordering.options))
        heads = heads_for_speed_up(config, flat(steps), table, self.factor, ends(steps))
        predicted = table.seconds(config) / table.seconds(config, heads)
        read = examples.selected if ordering.read is None else ordering.read
        return Chosen(len(heads), heads, {"predicted_speed_up": predicted}, read)


@dataclasses.dataclass(frozen=True)
class Budget:
    """As few heads as leave at most this much of `parameters` or `flops`, feed-forward units that go counted in."""

    amount: Amount
    of: Literal["parameters", "flops"]

    def choose(self, ordering: Ordering) -> Chosen:
        """Return the shortest beginning of the order that leaves no more."""
        from headjax.heads.budgets import heads_for_budget
        from headjax.heads.ordering import ends, flat
        from headjax.heads.surgery import without_heads
        from headjax.heads.units import without_units

        config, steps = ordering.model.config, ordering.steps()
        measure = self._measure(ordering)
        smaller, whole = without_units(config, ordering.options.units), measure(config)
        heads = heads_for_budget(smaller, flat(steps), measure, self.amount.of(whole), f"--{self.of}", ends(steps))
        facts = (
            {} if self.of == "parameters" else {"flops": measure(without_heads(smaller, heads)), "flops_before": whole}
        )
        return Chosen(len(heads), heads, facts, ordering.read)

    def _measure(self, ordering: Ordering) -> Callable[[ModelConfig], float]:
        from headjax.heads.budgets import count_parameters

        if self.of == "parameters":
            return count_parameters
        options, examples = ordering.options, ordering.examples
        inputs = {} if examples is None else first_inputs(examples.evaluation, options)
        length = options.length or (inputs["input_ids"].shape[1] if "input_ids" in inputs else LENGTH)
        return lambda config: config.flops(length)


Goal = Heads | Count | MaxDrop | SpeedUp | Budget


def goal_of(options: GoalOptions) -> Goal:
    """Return the goal that was typed.

    Raises:
        HeadjaxError: the goal excludes the order, or the amount is no number.
    """
    from headjax.heads.named_orders import LEARNED
    from headjax.heads.ordering import amount_of

    if options.remove is not None and "/" in options.remove:
        for name in ("uniform", "whole_groups", "stacks", "minimum"):
            if getattr(options, name):
                raise HeadjaxError(f"{option_name(options, name)}: an order chooses the heads, but --remove names them")
        return Heads(options.remove)
    if options.remove is not None:
        amount_of(options.remove)
        return Count(options.remove)
    if options.by in LEARNED:
        raise HeadjaxError(f"--by: {options.by} chooses a given number of heads; ask for one with --remove")
    if options.max_drop is not None:
        return MaxDrop(options.max_drop)
    if options.speed_up is not None:
        return SpeedUp(options.speed_up)
    if options.parameters is not None:
        return Budget(options.parameters, "parameters")
    return Budget(options.flops or Amount(1.0, True), "flops")


def is_gradual(options: GoalOptions) -> bool:
    """Return whether the model is trained between the rounds, so that each round orders the heads again."""
    return options.steps > 1 and options.fine_tune > 0


def settled(model: Model, options: OptionsT) -> OptionsT:
    """Return the options with `--whole-groups` where the number of heads allows `--uniform` nothing else.

    Raises:
        HeadjaxError: layers differ already, or the number cannot be removed from all of them alike.
    """
    from headjax.heads.ordering import ends, requested_count

    if not options.uniform:
        return options
    ways = {"as many of each group": options, "whole groups": dataclasses.replace(options, whole_groups=True)}
    possible = {name: ends(Ordering(model, None, way, silent).removable)[1:] for name, way in ways.items()}
    if options.remove is None:
        return options
    count = requested_count(model.config, options.remove)
    for name, numbers in possible.items():
        if not count or count in numbers:
            return ways[name]
    alike = len(set(possible.values())) == 1
    listed = {name: ", ".join(map(str, numbers)) for name, numbers in possible.items() if numbers}
    shown = [text if alike else f"{text} ({name})" for name, text in listed.items()][: 1 if alike else 2]
    raise HeadjaxError(
        f"--remove: {options.remove} asks for {count} heads; --uniform can remove {' or '.join(shown) or 'none'}"
    )


def first_inputs(task: Task, options: GoalOptions) -> Batch:
    """Return the task's first batch."""
    return next(islice(task.batches(options.batch_size, limit=options.limit), 1))


def _needed(ordering: Ordering) -> Examples:
    if ordering.examples is None:
        raise HeadjaxError("--task: needed to measure on")
    return ordering.examples
