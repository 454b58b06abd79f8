"""Goals of a removal: `Heads | Count | MaxDrop`, each of which chooses the heads that go.

Options say the goal; an `Ordering` says which heads go first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from headjax.commands.examples import Examples
from headjax.commands.options import option_name
from headjax.commands.orderings import GoalOptions, OptionsT, Ordering
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount
from headjax.core.progress import silent

if TYPE_CHECKING:
    from headjax.heads.ordering import Order
    from headjax.models.model import Model


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


Goal = Heads | Count | MaxDrop


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
    return MaxDrop(options.max_drop or Amount(0.0, False))


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


def _needed(ordering: Ordering) -> Examples:
    if ordering.examples is None:
        raise HeadjaxError("--task: needed to measure on")
    return ordering.examples
