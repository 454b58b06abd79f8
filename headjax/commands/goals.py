"""Goals of a removal: `Heads | Count | MaxDrop | SpeedUp | Budget`, each of which chooses the heads that go.

Options say the goal; an `Ordering` says which heads go first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from headjax.commands.examples import TASK, Examples
from headjax.commands.options import option
from headjax.commands.surgery import RepairOptions, calibration_batches
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount, Bound, Listed, read_amount
from headjax.core.fields import Count as Natural
from headjax.core.progress import Progress, silent

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order, Steps
    from headjax.models.config import Batch, ModelConfig
    from headjax.models.model import Model

LENGTH = 128
"""Tokens of an example whose FLOPs `--flops` counts, where neither a task nor `--length` says."""


drop_of = functools.partial(read_amount, such_as="0.01, or 5%")
"""Read the largest loss of a metric: in its own unit, or as a share of its value with all heads."""


def budget_of(text: str) -> Amount:
    """Return the largest size of a model that `60%`, `20000000` or `1.5e9` means.

    Raises:
        ValueError: the text is neither a positive number nor a percentage above 0 and up to 100.
    """
    return read_amount(
        text, "2e7, or 60%", lambda amount: amount.number > 0.0 and not (amount.relative and amount.number > 1.0)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalOptions(RepairOptions):
    """Options of commands that remove heads: how many, and which first."""

    remove: str | None = option(None, "40%, a number of heads, or heads: encoder/3/7,...", "WHAT", one_of="goal")
    max_drop: Amount | None = option(
        None,
        "as many heads as cost at most this much of the metric: 0.01, or 5% of it",
        "D",
        read=drop_of,
        one_of="goal",
    )
    speed_up: Annotated[float, Bound("must be at least 1", lambda value: value >= 1.0)] | None = option(
        None, "as few heads as make a forward X times as fast, by measurement", "X", one_of="goal"
    )
    parameters: Amount | None = option(
        None, "as few heads as leave this many parameters: 60%, or 2e7", "N", read=budget_of, one_of="goal"
    )
    flops: Amount | None = option(
        None,
        "as few heads as leave this many FLOPs of an example: 60%, or 1e9",
        "N",
        read=budget_of,
        one_of="goal",
    )
    by: str = option(
        "importance",
        "order: reconstruction (no labels; best with --reconstruct), reconstruction_labels, a score, importance_raw, "
        "ablation, fisher_blocks, hard_concrete, subset, or random",
        "ORDER",
    )
    task: str = option("", TASK, "TASK", reads=True)
    stacks: tuple[str, ...] = option((), "only heads of these: encoder,decoder,cross", "STACKS")
    minimum: Natural = option(0, "heads every layer keeps")
    steps: Listed = option(1, "remove heads in N rounds, with new scores in each")
    normalize: bool = option(False, "divide scores by the l2 norm of their layer's")
    whole_groups: bool = option(False, "remove all query heads of a KV head together")
    uniform: bool = option(
        False,
        "leave every layer as many query heads in as many groups: one of each group in turn, or with --whole-groups "
        "(or where the number allows nothing else) whole groups",
    )


OptionsT = TypeVar("OptionsT", bound=GoalOptions)


@dataclasses.dataclass(frozen=True)
class Ordering:
    """The order in which heads go, by the options.

    Attributes:
        model: the model.
        examples: parts of the task; None without one.
        options: of the command.
        progress: shows how far it is.
    """

    model: Model
    examples: Examples | None
    options: GoalOptions
    progress: Progress

    @property
    def read(self) -> int | None:
        """Number of selection examples that the order reads; 0 is all, None if it reads none."""
        from headjax.heads.named_orders import RECONSTRUCTION

        if self.examples is None or self.options.by == "random":
            return None
        if self.options.by in RECONSTRUCTION:
            return min(self.options.calibrate, len(self.examples.selection.data.train))
        return self.examples.selected

    @functools.cached_property
    def removable(self) -> Steps:
        """Removals as many and as large as those of the order, before there is one."""
        from headjax.heads.head_id import all_heads, require_stack

        for stack in self.options.stacks:
            require_stack(self.model.config, stack, "--stacks")
        return self._allowed(all_heads(self.model.config, self.options.stacks or None))

    @property
    def is_even(self) -> bool:
        """Whether every removal takes as many heads."""
        return len(set(map(len, self.removable))) <= 1

    def steps(self, count: int = 0, rounds: int = 0) -> Steps:
        """Return the removals that may be made, in their order.

        Args:
            count: number of heads to order; 0 is all that may go.
            rounds: number of times that heads are scored anew on the way there; 0 is `--steps`.

        Raises:
            HeadjaxError: several rounds of removals of different sizes.
        """
        from headjax.heads.ordering import ends, iterative_steps
        from headjax.heads.pruning import fraction_steps

        options, count, rounds = self.options, count or ends(self.removable)[-1], rounds or self.options.steps
        if rounds == 1 or options.by == "random":
            return self._allowed(self._once(count))
        self.check_rounds()
        counts = fraction_steps(count, [step / rounds for step in range(1, rounds + 1)])

        def rescore(gates: Any) -> dict[Any, float]:
            return {head: float(place) for place, head in enumerate(self._once(count, gates))}

        return iterative_steps(
            self.model.config, counts, rescore, self._together, options.minimum, options.stacks or None
        )

    def check_rounds(self) -> None:
        """Check that removals in several rounds are of one size."""
        if self.options.steps > 1 and not self.is_even:
            raise HeadjaxError("--steps: groups of different sizes go in one round")

    def count(self, asked: str, steps: Steps) -> int:
        """Return the number of heads that `12` or `40%` means, percentages rounded down to whole removals.

        Raises:
            HeadjaxError: more heads than may go, or a number between two removals.
        """
        from headjax.heads.ordering import amount_of, ends, most_of, requested_count

        count, total = requested_count(self.model.config, asked), ends(steps)[-1]
        if count > total:
            raise HeadjaxError(f"remove: {asked} asks for {count} heads, only {total} may be removed")
        whole = most_of(steps, count)
        if whole < count and not amount_of(asked).relative:
            more = min(end for end in ends(steps) if end > count)
            raise HeadjaxError(f"--remove: {count} heads would divide a group; whole groups take {whole} or {more}")
        return whole

    def rounds(self, count: int) -> list[int]:
        """Return the numbers of heads that are gone after each of `--steps` rounds, as whole removals take them."""
        from headjax.heads.ordering import most_of
        from headjax.heads.pruning import fraction_steps

        counts = fraction_steps(count, [step / self.options.steps for step in range(1, self.options.steps + 1)])
        return [most_of(self.removable, min(each, count)) for each in counts]

    def _once(self, count: int, gates: Any = None) -> Order:
        from headjax.heads.named_orders import OrderConfig, order_heads, units

        options, batches = self.options, self._batches
        config = OrderConfig(
            by=options.by,
            normalize=options.normalize,
            seed=options.seed,
            stacks=options.stacks,
            whole_groups=options.whole_groups,
        )
        fitted = self.model if self.examples is None else self.examples.selection.fit(self.model)
        with self.progress(f"ordering by {options.by}", *units(config, len(batches))) as bar:
            return order_heads(fitted, batches, config, gates=gates, progress=bar)(count)

    @functools.cached_property
    def _batches(self) -> list[Batch]:
        from headjax.heads.named_orders import RECONSTRUCTION

        if self.examples is None or self.options.by == "random":
            return []
        if self.options.by in RECONSTRUCTION:
            return calibration_batches(self.examples, self.options)
        return self.examples.selection_batches()

    def _allowed(self, order: Order) -> Steps:
        from headjax.heads.ordering import steps_within_minimum

        return steps_within_minimum(self.model.config, self._together(order), self.options.minimum)

    def _together(self, order: Order) -> Steps:
        """Return the removals of an order: heads, whole groups, or equal numbers of every layer."""
        from headjax.heads.groups import group_steps, uniform_steps
        from headjax.heads.ordering import single_steps

        config, whole_groups = self.model.config, self.options.whole_groups
        if self.options.uniform:
            return uniform_steps(config, order, whole_groups=whole_groups)
        return group_steps(config, order) if whole_groups else single_steps(order)


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
        HeadjaxError: an order that the goal does not go with, or a number that is none.
    """
    from headjax.heads.named_orders import AT_ONCE
    from headjax.heads.ordering import amount_of

    if options.remove is not None and "/" in options.remove:
        for name, chosen in (("--uniform", options.uniform), ("--whole-groups", options.whole_groups)):
            if chosen:
                raise HeadjaxError(f"{name}: an order chooses the heads, but --remove names them")
        return Heads(options.remove)
    if options.remove is not None:
        amount_of(options.remove)
        return Count(options.remove)
    if options.by in AT_ONCE:
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
