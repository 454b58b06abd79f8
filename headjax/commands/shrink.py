"""`headjax shrink`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.graphs import QuantizingOptions
from headjax.commands.inputs import BUILDING, PRICING, Examples, start, tell_time
from headjax.commands.options import ExamplesOptions, PlannedOptions, TableOptions, argument, option
from headjax.commands.outputs import evaluate_each, finish, planned_exports
from headjax.commands.shrink_result import Result
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount, read_amount
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.models.config import Batch, ModelConfig
    from headjax.models.model import Model
    from headjax.shrinking.choice import Choice, Point, Prices
    from headjax.storage.files import Kept

COMPARED = 512
"""Most evaluation examples that the damage of the built model is measured on."""

BUDGETS = ("parameters", "flops", "cache", "latency", "drop")
"""Quantities that can have a budget: costs of the smaller model, and the loss of the task's main metric."""

Budget = tuple[str, Amount]


def budget_of(text: str) -> Budget:
    """Return the name and the amount of `parameters=60%`, `cache=4096` or `drop=0.01`."""
    name, equals, amount = text.partition("=")
    if not equals or name not in BUDGETS:
        raise ValueError(f"expected one of {', '.join(f'{known}=...' for known in BUDGETS)}, got {text!r}")
    if name == "drop":
        return name, read_amount(amount, "0.01, or 5%")
    return name, size_of(amount)


def size_of(text: str) -> Amount:
    """Return the largest cost that `60%`, `20000000` or `1.5e9` means."""
    return read_amount(
        text, "2e7, or 60%", lambda amount: amount.number > 0.0 and not (amount.relative and amount.number > 1.0)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions, TableOptions, PlannedOptions, QuantizingOptions):
    """Options of `headjax shrink`."""

    out: str = argument("OUT", "folder of the smaller model", writes="new")
    budget: tuple[Budget, ...] = option(
        (),
        "share or number: parameters=60% (of attention and feed-forwards), flops=1e9 (of an example), cache=25% (bytes "
        "a token), latency=70% (of a forward pass, measured; or ms), drop=0.01 (loss of the task's main metric, or 5% "
        "of it); can be repeated, all hold together",
        "NAME=AMOUNT",
        read=budget_of,
        words="repeated",
    )
    parameters: Amount | None = option(None, "short for --budget parameters=N: 60%, or 2e7", "N", read=size_of)
    uniform: bool = option(False, "all layers of a stack that stay take the same form")
    native: bool = option(False, "only forms, uniform ones, that servers of the model's family load")
    vocabulary: str = option(
        "", "first keep only the tokens of a text file (and special ones, and characters); with no budget that is all",
        "CORPUS", reads="path",
    )  # fmt: skip
    work: str | None = option(
        None, "folder that keeps measurements: a stopped run continues, another budget measures nothing again "
        "(default: OUT.measured)", "D",
        writes="folder",
    )  # fmt: skip
    report: str | None = option(
        None, "also write a page: what came out, what each layer keeps, other choices", "FILE.html", writes="file"
    )

    def loaded(self) -> Model:
        """Return the model of the directory, its vocabulary trimmed."""
        from headjax.shrinking.vocabulary import trim_vocabulary
        from headjax.storage.files import read_text
        from headjax.storage.paths import path_of

        model = super().loaded()
        return trim_vocabulary(model, read_text(path_of(self.vocabulary)).splitlines()) if self.vocabulary else model

    def budgets(self) -> dict[str, Amount]:
        """Return the budgets by name."""
        given = [*self.budget, *([("parameters", self.parameters)] if self.parameters is not None else [])]
        names = [name for name, _ in given]
        if not names and not self.vocabulary:
            raise HeadjaxError("--budget: name one, such as --budget parameters=60%")
        if not names and self.report:
            raise HeadjaxError("--report: needs a --budget, the page shows what each layer keeps of it")
        for name in names:
            if names.count(name) > 1:
                raise HeadjaxError(f"--budget: {name} is given twice")
        return dict(given)


def run(options: Options, progress: Progress) -> Result:
    """Chooses layers, and heads, sizes, sharing and units of each, for a budget, and builds the model."""
    from headjax.hub.either import read_model
    from headjax.shrinking.choice import ChoiceSummary, choose, frontier

    budgets = options.budgets()
    drop = budgets.pop("drop", None)
    model, examples = start(options)
    if drop is not None:
        examples.require_labels("budgets of drop")
    original = read_model(options.model) if options.vocabulary else model
    if not budgets and drop is None:
        evaluations = evaluate_each((model,), examples.evaluation, options, progress)
        exports = planned_exports(options, model, model.config)
        own = finish(original, model, options, progress, task=examples.evaluation, evaluations=evaluations)
        nothing: dict[str, Any] = {"layers": (), "budget": {}, "predicted": {}, "measured": {}, "frontier": ()}
        nothing["metric"] = examples.evaluation.primary_metric
        return Result(**own, **nothing, exports=exports, story=None, **examples.described(selection=False))
    exports = planned_exports(options, model, _smaller(model, options))
    session = _open(model, examples, options, "latency" in budgets, progress)
    table, uniform = session.table, session.uniform
    limits = {
        name: amount.of(table.whole(name)) * (1e-3 if name == "latency" and not amount.relative else 1.0)
        for name, amount in budgets.items()
    }
    quantity = next(iter(limits), "parameters")
    points = frontier(table, quantity, uniform=uniform)
    choice = choose(table, limits, uniform=uniform) if drop is None else session.within_drop(drop, limits, points)
    built = session.build(choice)
    evaluations = evaluate_each((model, built), examples.evaluation, options, progress)
    damage, count = session.damage_of(built)
    story = ChoiceSummary(table, quantity, choice)
    result = Result(
        layers=story.layers(),
        budget={
            name: {"limit": limits.get(name), "whole": table.whole(name), "left": choice.costs[name]}
            for name in limits or (quantity,)
        },
        predicted={"damage": choice.damage, "bound": choice.bound, "gap": choice.gap, "measure": table.damage},
        measured={"damage": damage, "examples": count},
        frontier=points,
        metric=examples.evaluation.primary_metric,
        exports=exports,
        story=story,
        **finish(original, built, options, progress, task=examples.evaluation, evaluations=evaluations),
        **examples.described(),
    )
    if options.report is None:
        return result
    from headjax.commands.shrink_page import write_story

    return dataclasses.replace(result, report=str(write_story(result, story, options.report)))


def _smaller(model: Model, options: Options) -> ModelConfig:
    """Return a form that a shrunk architecture may have: fewer heads in one layer, or in all of them."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.head_id import all_heads
    from headjax.heads.ordering import group_removals, uniform_steps
    from headjax.heads.pruning import prune
    from headjax.heads.surgery import config_after

    config, sites, order = model.config, find_sites(model), all_heads(model.config)
    steps = group_removals(sites, order)
    if options.uniform:
        steps = uniform_steps(sites, config, order, whole_groups=True)
    if options.native or not steps:
        return config
    return config_after(config, lambda model: prune(model, steps[0]))


@dataclasses.dataclass(frozen=True)
class _Session:
    """A model as it was read and with the task's output, its examples, and its table of forms."""

    model: Model
    fitted: Model
    examples: Examples
    options: Options
    progress: Progress
    batches: Sequence[Batch]
    kept: Kept
    table: Prices

    @property
    def uniform(self) -> bool:
        """Whether all layers of a stack take the same form."""
        return self.options.uniform or self.options.native

    def build(self, choice: Choice) -> Model:
        """Return the model of a choice, with the output that the model came with."""
        from headjax.shrinking.shrink import build

        with self.progress("building", len(choice.options), "map") as bar:
            built = build(self.fitted, self.batches, choice, kept=self.kept, progress=bar)
        return self.examples.with_own_output(self.model, built)

    def damage_of(self, built: Model) -> tuple[float, int]:
        """Return the change of the output on evaluation examples, and their number."""
        from headjax.heads.agreement import agreement

        task, options = self.examples.evaluation, self.options
        count = task.count(min(options.limit or COMPARED, COMPARED))
        batches = task.batches(options.batch_size, limit=count, buckets=options.lengths)
        return agreement(self.fitted, task.fit(built), batches).distance, count

    def within_drop(self, drop: Amount, limits: Mapping[str, float], points: Sequence[Point]) -> Choice:
        """Return the smallest choice within the limits that loses no more of the metric, by bisection."""
        from headjax.evaluation.task import evaluate_task
        from headjax.shrinking.choice import choose, choose_if_any

        task, options = self.examples.selection, self.options
        sign = 1.0 if task.higher_is_better else -1.0
        chosen: Any = {"limit": self.examples.number, "batch_size": options.batch_size, "buckets": options.lengths}
        quantity = points[0].quantity

        def value(model: Model) -> float:
            return sign * float(evaluate_task(model, task, **chosen)[task.primary_metric])

        whole = value(self.fitted)
        first = choose(self.table, limits or {quantity: self.table.whole(quantity)}, uniform=self.uniform)
        smaller = [{**limits, quantity: p.costs[quantity]} for p in points if p.costs[quantity] < first.costs[quantity]]
        found = [choose_if_any(self.table, limit, uniform=self.uniform) for limit in smaller]
        choices = [first, *(choice for choice in found if choice is not None)]
        low, high = -1, len(choices) - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = value(task.fit(self.build(choices[middle]))) >= whole - drop.of(abs(whole))
            low, high = (middle, high) if fits else (low, middle - 1)
        if low < 0:
            raise HeadjaxError("--budget: drop: the largest model within the other budgets loses more")
        return choices[low]


def _open(model: Model, examples: Examples, options: Options, timed: bool, progress: Progress) -> _Session:
    """Return the session, every form measured."""
    from headjax.shrinking.measure import MeasureConfig
    from headjax.shrinking.shrink import measured_prices, measurements

    fitted = examples.selection.fit(model)
    batches = examples.calibrating()

    def begin(measuring: bool) -> None:
        """Tell how long it takes: damage and metrics are judged on both models."""
        chosen = [*[PRICING] * measuring, BUILDING]
        judged: Any = {"task": examples.evaluation, "judged": 3.0, "max_time": options.max_time}
        tell_time(model, options, batches=batches, chosen=chosen, **judged)

    work = options.work or f"{options.out.rstrip('/')}.measured"
    measuring = MeasureConfig(length=options.length or 0, work=work)
    kept, native = measurements(fitted, batches, measuring), options.native
    table = measured_prices(
        fitted, batches, measuring, kept=kept, native=native, timed=timed, begin=begin, progress=progress
    )
    return _Session(model, fitted, examples, options, progress, batches, kept, table)
