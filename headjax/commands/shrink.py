"""`headjax shrink`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import BUILDING, PRICING, Examples, start, tell_time
from headjax.commands.models import ChangedResult, evaluate_each, finish, planned_exports, with_output_of
from headjax.commands.options import ChangingOptions, argument, option
from headjax.commands.outputs import ABSENT, key, record
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount, read_amount
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.models.config import ModelConfig
    from headjax.models.model import Model
    from headjax.shrinking.choice import Choice, ChoiceSummary, Point, Prices, ShrinkSummary

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


class Options(ChangingOptions):
    out: str = argument(
        "OUT", "folder of the smaller model; without it, and with --work, the choice alone is made", "", writes="new"
    )
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

    @property
    def alike(self) -> bool:
        """Whether all layers of a stack take the same form."""
        return self.uniform or self.native

    def loaded(self) -> Model:
        from headjax.shrinking.vocabulary import trim_vocabulary
        from headjax.storage.files import read_text
        from headjax.storage.paths import path_of

        model = super().loaded()
        return trim_vocabulary(model, read_text(path_of(self.vocabulary)).splitlines()) if self.vocabulary else model

    def budgets(self) -> dict[str, Amount]:
        given = [*self.budget, *([("parameters", self.parameters)] if self.parameters is not None else [])]
        names = [name for name, _ in given]
        if not names and not self.vocabulary:
            raise HeadjaxError("--budget: name one, such as --budget parameters=60%")
        if not names and self.report:
            raise HeadjaxError("--report: needs a --budget, the page shows what each layer keeps of it")
        for name in names:
            if names.count(name) > 1:
                raise HeadjaxError(f"--budget: {name} is given twice")
        if not self.out:
            self._check_choice_alone(names)
        return dict(given)

    def _check_choice_alone(self, budgets: Sequence[str]) -> None:
        """Refuse, where no model is built, what is asked of one."""
        if not self.work:
            raise HeadjaxError("OUT: name the folder of the smaller model, or --work D alone to choose and build none")
        asked = {
            "--report": self.report, "--to": self.format, "--quantize": self.quantize,
            "--budget: drop": "drop" in budgets, "--vocabulary": not budgets,
        }  # fmt: skip
        for name, value in asked.items():
            if value:
                raise HeadjaxError(f"{name}: needs OUT, without which no model is built")


class Result(ChangedResult):
    summary: ShrinkSummary = record("headjax.shrinking.choice.ShrinkSummary")
    report: str = key("the page, with `--report`", ABSENT)
    choice: ChoiceSummary | None = None

    def tables(self) -> Sequence[Table]:
        chosen = [] if self.choice is None else [self.choice.layer_table()]
        return [*chosen, *(self.comparison or [frontier_table(self.summary.frontier, self.about)])]

    def message(self) -> str:
        said = super().message()
        if self.choice is not None:
            measure, predicted = self.summary.predicted["measure"], self.summary.predicted["damage"]
            measured = f", {self.summary.measured['damage']:.3g} measured" if self.comparison else ""
            then = said if self.comparison else "no model is built; with OUT after MODEL the same command builds it"
            said = f"degradation ({measure}): {predicted:.3g} predicted{measured}; {then}"
        return f"{said}\nreport: {self.report}" if self.report else said


def frontier_table(points: Sequence[Point], notes: Sequence[str]) -> Table:
    """Return the least degradation within every share of a cost."""
    from headjax.shrinking.choice import FORMATS, NAMES

    quantity = points[0].quantity
    columns = (
        Column(NAMES[quantity][0].upper() + NAMES[quantity][1:], FORMATS[quantity]),
        Column("Share", numbers.percent), Column("Degradation", numbers.significant), Column("Layers removed"),
    )  # fmt: skip
    rows = [(point.costs[quantity], point.share, point.damage, point.removed_layers) for point in points]
    return Table(columns, rows, title="Best choice within every share", notes=notes)


def run(options: Options, progress: Progress) -> Result:
    """Chooses layers, and heads, sizes, sharing and units of each, for a budget, and builds the model."""
    from headjax.heads.agreement import agreement
    from headjax.hub.either import read_model
    from headjax.shrinking.choice import ChoiceSummary, ShrinkSummary, choose, choose_if_any, frontier

    budgets = options.budgets()
    drop = budgets.pop("drop", None)
    model, examples = start(options)
    if drop is not None:
        examples.require_labels("budgets of drop")
    task, metric = examples.evaluation, examples.evaluation.primary_metric
    original = read_model(options.model) if options.vocabulary else model
    if not budgets and drop is None:
        exports = planned_exports(options, model, model.config)
        evaluations = evaluate_each((model,), task, options, progress)
        ending = finish(original, model, options, progress, examples, selection=False, evaluations=evaluations)
        return Result(summary=ShrinkSummary(metric), exports=exports, **ending)
    exports = planned_exports(options, model, _smaller(model, options)) if options.out else ABSENT
    table, build = _measured(model, examples, options, "latency" in budgets, progress)
    limits = {
        name: amount.of(table.whole(name)) * (1e-3 if name == "latency" and not amount.relative else 1.0)
        for name, amount in budgets.items()
    }
    quantity = next(iter(limits), "parameters")
    points = frontier(table, quantity, uniform=options.alike)
    built: Model | None = None
    choice = choose(table, limits or {quantity: table.whole(quantity)}, uniform=options.alike)
    if drop is not None:
        less = [{**limits, quantity: p.costs[quantity]} for p in points if p.costs[quantity] < choice.costs[quantity]]
        smaller = [choose_if_any(table, limit, uniform=options.alike) for limit in less]
        choice, built = _within_drop(drop, [choice, *filter(None, smaller)], model, examples, build)
    story = ChoiceSummary(table, quantity, choice)
    summary = ShrinkSummary(
        metric,
        layers=story.layers(),
        budget={
            name: {"limit": limits.get(name), "whole": table.whole(name), "left": choice.costs[name]}
            for name in limits or (quantity,)
        },
        predicted={"damage": choice.damage, "bound": choice.bound, "gap": choice.gap, "measure": table.damage},
        frontier=points,
    )
    if not options.out:
        return Result(summary=summary, choice=story, exports=exports, **examples.described(evaluation=False))
    built = with_output_of(model, build(choice) if built is None else built)
    evaluations = evaluate_each((model, built), task, options, progress)
    count = task.count(min(options.limit or COMPARED, COMPARED))
    batches = task.batches(**options.reading | {"limit": count})
    damage = agreement(examples.selection.fit(model), task.fit(built), batches).distance
    summary = summary._replace(measured={"damage": damage, "examples": count})
    ending = finish(original, built, options, progress, examples, evaluations=evaluations)
    result = Result(summary=summary, choice=story, exports=exports, **ending)
    if options.report is None:
        return result
    from headjax.commands.shrink_page import write_story

    return dataclasses.replace(result, report=str(write_story(result, summary, story, options.report)))


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


def _measured(
    model: Model, examples: Examples, options: Options, timed: bool, progress: Progress
) -> tuple[Prices, Callable[[Choice], Model]]:
    """Return the prices of every form, measured, and a function that builds the model of a choice."""
    from headjax.shrinking.measure import MeasureConfig
    from headjax.shrinking.shrink import build, measured_prices, measurements

    fitted, batches = examples.selection.fit(model), examples.calibrating()
    work = options.work or f"{options.out.rstrip('/')}.measured"
    measuring = MeasureConfig(length=options.length or 0, work=work)
    kept = measurements(fitted, batches, measuring)

    def begin(measures: bool) -> None:
        """Tell how long it takes: damage and metrics are judged on both models."""
        chosen = [*[PRICING] * measures, *[BUILDING] * bool(options.out)]
        tell_time(model, examples, batches=batches, chosen=chosen, judged=3.0 * bool(options.out))

    def built(choice: Choice) -> Model:
        with progress("building", len(choice.options), "map") as bar:
            return build(fitted, batches, choice, kept=kept, progress=bar)

    chosen: Any = {"native": options.native, "timed": timed, "begin": begin}
    return measured_prices(fitted, batches, measuring, kept=kept, progress=progress, **chosen), built


def _within_drop(
    drop: Amount, choices: Sequence[Choice], model: Model, examples: Examples, build: Callable[[Choice], Model]
) -> tuple[Choice, Model]:
    """Return the last of ever smaller choices that loses no more of the metric, by bisection, and its model."""
    from headjax.evaluation.task import evaluate_task

    task, reading = examples.selection, examples.options.reading | {"limit": examples.number}

    def value(model: Model) -> float:
        metric = float(evaluate_task(model, task, **reading)[task.primary_metric])
        return metric if task.higher_is_better else -metric

    whole = value(task.fit(model))
    low, high = -1, len(choices) - 1
    best: Model | None = None
    while low < high:
        middle = (low + high + 1) // 2
        smaller = build(choices[middle])
        if value(smaller) >= whole - drop.of(abs(whole)):
            low, best = middle, smaller
        else:
            high = middle - 1
    if best is None:
        raise HeadjaxError("--budget: drop: the largest model within the other budgets loses more")
    return choices[low], best
