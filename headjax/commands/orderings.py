"""Options of commands that remove heads, and the order of removal that they ask for."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from headjax.commands.examples import TASK, Examples
from headjax.commands.options import option
from headjax.commands.repair import RepairOptions, calibration_batches
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount, Listed, read_amount
from headjax.core.fields import Count as Natural
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.heads.ordering import Order, Steps
    from headjax.models.config import Batch
    from headjax.models.model import Model


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
    by: str = option(
        "importance",
        "order: reconstruction (no labels; best with --reconstruct), importance, importance_raw, importance_token, "
        "fisher, hies, ablation, hard_concrete, subset, or random",
        "ORDER",
    )
    task: str = option("", TASK, "TASK", reads=True)
    stacks: tuple[str, ...] = option((), "only heads of these: encoder,decoder,cross", "STACKS")
    minimum: Natural = option(0, "heads every layer keeps")
    steps: Listed = option(1, "remove heads in N rounds, with new scores in each")
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
        if self.examples is None or self.options.by == "random":
            return None
        if self.options.by == "reconstruction":
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
            rounds: number of times that heads are scored again on the way there; 0 is `--steps`.

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
            seed=options.seed,
            stacks=options.stacks,
            whole_groups=options.whole_groups,
        )
        fitted = self.model if self.examples is None else self.examples.selection.fit(self.model)
        with self.progress(f"ordering by {options.by}", *units(config, len(batches))) as bar:
            return order_heads(fitted, batches, config, gates=gates, progress=bar)(count)

    @functools.cached_property
    def _batches(self) -> list[Batch]:
        if self.examples is None or self.options.by == "random":
            return []
        if self.options.by == "reconstruction":
            return calibration_batches(self.examples, self.options)
        return self.examples.selection_batches()

    def _allowed(self, order: Order) -> Steps:
        from headjax.heads.ordering import steps_within_minimum

        return steps_within_minimum(self.model.config, self._together(order), self.options.minimum)

    def _together(self, order: Order) -> Steps:
        """Return the removals of an order: heads, whole groups, or equal numbers of every layer."""
        from headjax.heads.groups import removals, uniform_steps

        divide = uniform_steps if self.options.uniform else removals
        return divide(self.model.config, order, whole_groups=self.options.whole_groups)
