"""`headjax shrink`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headjax.commands.examples import Examples, open_model_and_examples
from headjax.commands.options import argument, option
from headjax.commands.orderings import budget_of, drop_of
from headjax.commands.repair import AGREED, LENGTHS
from headjax.commands.results import ABSENT, OnExamples, found
from headjax.commands.surgery import (
    Changed,
    FineTuningOptions,
    compared,
    evaluate_each,
    export_of,
    fine_tune,
    fine_tuning_of,
    told_export,
)
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount, Size, StepsOrNone
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.models.config import Batch
    from headjax.models.model import Model
    from headjax.shrinking.choice import Choice
    from headjax.shrinking.choice import Table as Choices
    from headjax.shrinking.story import Rival, Story

TECHNIQUES = {"heads alone": ("heads",), "units alone": ("units",), "sharing alone": ("sharing",)}
"""Kinds of options that a model of one technique takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(FineTuningOptions):
    """Options of `headjax shrink`."""

    out: str | None = argument("OUT", "folder of the smaller model; none with --frontier", None, writes="new")
    parameters: Amount | None = option(
        None, "leave this much of attention and feed-forwards: 60%, or 2e7", "N", read=budget_of
    )
    flops: Amount | None = option(None, "leave this many FLOPs of an example: 60%, or 1e9", "N", read=budget_of)
    cache: Amount | None = option(None, "leave this many cached bytes a token: 25%, or 4096", "N", read=budget_of)
    latency: Amount | None = option(
        None, "leave this much time of a forward, by measurement: 70%, or milliseconds", "N", read=budget_of
    )
    max_drop: Amount | None = option(
        None, "the smallest model that loses at most this much of the metric: 0.01, or 5% of it", "D", read=drop_of
    )
    frontier: bool = option(False, "no model: the least damage for every budget")
    page: str | None = option(
        None, "write a page; models of one technique and uniform ones are then measured, too", "FILE.html",
        name="--out", writes="page",
    )  # fmt: skip
    uniform: bool = option(False, "all layers of a stack take the same form")
    export: Literal["any", "native"] = option(
        "any", "native: take forms alone, uniform ones, that servers of its family load"
    )
    damage: Literal["output", "loss"] = option("output", "measure damage on the model's own output, or on the loss")
    calibrate: Size = option(512, "selection examples to repair on")
    measured: Size = option(128, "calibration examples to measure damages on")
    work: str | None = option(
        None, "folder that keeps measurements, and checkpoints of --recover: a stopped run continues, another budget "
        "takes seconds", "D",
        writes="folder",
    )  # fmt: skip
    fine_tune: StepsOrNone = option(
        0, "train the smaller model for N steps with the whole as teacher", name="--recover"
    )

    @property
    def alike(self) -> bool:
        """Whether all layers of a stack take the same form."""
        return self.uniform or self.export == "native"

    def budgets(self) -> dict[str, Amount]:
        """Return the budgets that were typed, by quantity."""
        from headjax.shrinking.choice import QUANTITIES

        return {name: getattr(self, name) for name in QUANTITIES if getattr(self, name) is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frontier(OnExamples):
    """The least damage for every budget.

    Attributes:
        story: the tables.
    """

    frontier: Sequence[Any] = found("`quantity`, `share`, `damage`, `costs`")
    grid: Mapping[str, Any] = found("levels that were measured")
    damage: str = found("what damages are: `kl`, `cosine`, `squared_difference`, `loss`")
    page: str = found(said="page", default=ABSENT)
    story: Story

    def tables(self) -> Sequence[Table]:
        return [dataclasses.replace(self.story.frontier_table(), notes=self.about)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Changed):
    """A smaller model.

    Attributes:
        story: the tables.
    """

    layers: Sequence[Any] = found(
        "`place`, `form`, `heads`, `to`, `units`, `kind`, `level`, `damage`, its costs, `smaller` and `larger`: the "
        "next forms"
    )
    budget: Mapping[str, Any] = found("`limit`, `whole` and `left` by quantity")
    predicted: Mapping[str, Any] = found("`damage`, its lower `bound`, `gap`, `measure`")
    measured: Mapping[str, Any] = found(
        "`damage` on `examples` evaluation examples, `damage_on_selection` on those that forms were measured on"
    )
    frontier: Sequence[Any] = found("`quantity`, `share`, `damage`, `costs`")
    rivals: Sequence[Any] = found(
        "other models of this budget: `name`, `predicted`, `measured`, `on_selection`, `costs`, `metrics`"
    )
    grid: Mapping[str, Any] = found("levels that were measured")
    seconds: Mapping[str, float] = found(
        "with `--latency`: `predicted`, `measured`, `before`, `parts` (of the original model, each timed alone)",
        default=ABSENT,
    )
    export: Mapping[str, str | None] | None = found(
        "null unless the model was imported: `from`, `family`, `layout`, `reason`"
    )
    page: str = found(said="page", default=ABSENT)
    story: Story

    def tables(self) -> Sequence[Table]:
        return [self.story.layer_table(), self.comparison(), *([self.story.rival_table()] if self.rivals else [])]

    def message(self) -> str:
        predicted = self.predicted
        said = [
            f"damage ({predicted['measure']}): {predicted['damage']:.3g} predicted; measured "
            f"{self.measured['damage_on_selection']:.3g} on the same examples, {self.measured['damage']:.3g} on others"
        ]
        if self.seconds is not ABSENT:
            times = {name: numbers.duration(seconds) for name, seconds in self.seconds.items()}
            told = "forward: {predicted} predicted, {measured} measured, {before} before, {parts} as a sum of its parts"
            said.append(told.format(**times))
        exported = told_export(self.export)
        if self.export is not None and self.export["layout"] is None:
            exported += ["--export native takes forms alone that a Hugging Face directory holds"]
        return "\n".join((*exported, "; ".join((*said, super().message()))))


def run(options: Options, progress: Progress) -> Found | Frontier:
    """Choose heads, sizes, sharing and units of every layer for a budget, and build the model."""
    from headjax.models.model import save
    from headjax.shrinking.choice import choose
    from headjax.shrinking.grid import Grid
    from headjax.shrinking.shrink import frontier
    from headjax.shrinking.story import Story, write_story

    _check(options)
    model, examples = open_model_and_examples(options)
    session = _open(model, examples, options, progress)
    budgets, table = options.budgets(), session.table
    quantity = next(iter(budgets), "parameters")
    points = frontier(table, quantity, uniform=options.alike)
    grid, described = Grid().told(), examples.described(selected=options.calibrate, training=options.fine_tune > 0)
    story = Story(table, quantity, points)
    if options.frontier:
        page = write_story(story, options.page, options.model, described["about"]) if options.page else None
        more: dict[str, Any] = {"page": str(page)} if page else {}
        return Frontier(frontier=points, grid=grid, damage=table.damage, story=story, **more, **described)
    limits = _limits(budgets, table)
    choice = choose(table, limits, uniform=options.alike) if options.max_drop is None else session.within_drop(points)
    built = session.build(choice)
    lessons, rivals = fine_tuning_of(options), [session.rival("this choice", choice, built)]
    if options.page:
        rivals += session.others(limits or {quantity: choice.costs[quantity]})
    smaller = built
    if lessons is not None:
        smaller = fine_tune(built, model, examples.evaluation, lessons, options, progress, options.work)
    metrics = evaluate_each((model, smaller), examples.evaluation, options, progress)
    headline = examples.evaluation.headline
    story = story._replace(choice=choice, rivals=rivals, headline=(headline, metrics[0][headline]))
    more = session.seconds(built, choice) if "latency" in budgets else {}
    save(smaller, options.out or "", progress)
    if options.page:
        more["page"] = str(write_story(story, options.page, options.model, described["about"]))
    whole = {name: table.whole(name) for name in choice.costs}
    return Found(
        layers=story.layers(),
        budget={
            name: {"limit": limits.get(name), "whole": whole[name], "left": choice.costs[name]}
            for name in limits or {quantity: 0.0}
        },
        predicted={"damage": choice.damage, "bound": choice.bound, "gap": choice.gap, "measure": table.damage},
        measured={
            "damage": rivals[0].measured,
            "damage_on_selection": rivals[0].on_selection,
            "examples": session.judged,
        },
        frontier=points,
        rivals=rivals[1:],
        grid=grid,
        export=export_of(smaller),
        story=story,
        model=str(options.out),
        **compared(model, smaller, metrics, examples.evaluation),
        **more,
        **described,
    )


def _limits(budgets: Mapping[str, Amount], table: Choices) -> dict[str, float]:
    """Return the greatest costs in numbers; a latency is typed in milliseconds."""
    return {
        name: amount.of(table.whole(name)) * (1e-3 if name == "latency" and not amount.relative else 1.0)
        for name, amount in budgets.items()
    }


def _check(options: Options) -> None:
    """Refuse options that say nothing, or too much."""
    goals = [*options.budgets(), *(["max_drop"] if options.max_drop is not None else [])]
    if options.frontier and (options.out or options.max_drop is not None or len(goals) > 1):
        raise HeadjaxError("--frontier: makes no model; leave out OUT and all budgets but the one to draw")
    if not options.frontier and not goals:
        raise HeadjaxError("--parameters: name a budget (--parameters, --flops, --cache, --latency), or --max-drop")
    if not options.frontier and not options.out:
        raise HeadjaxError("OUT: needed to write the smaller model to")
    if options.max_drop is not None and len(goals) > 1:
        raise HeadjaxError("--max-drop: finds a budget by itself; leave the others out")


class _Session(NamedTuple):
    """A model, its examples and its table of options.

    Attributes:
        model: the model as it was read.
        fitted: with the task's output.
        examples, options, progress: of the command.
        batches: calibration examples.
        table: the options.
    """

    model: Model
    fitted: Model
    examples: Examples
    options: Options
    progress: Progress
    batches: Sequence[Batch]
    table: Choices

    @property
    def judged(self) -> int:
        """Number of evaluation examples that damages of built models are measured on."""
        return self.examples.evaluation.count(min(self.options.limit or AGREED, AGREED))

    def build(self, choice: Choice) -> Model:
        """Return the model of a choice, with the output that the model came with."""
        from headjax.shrinking.build import build

        with self.progress("building", len(choice.options), "map") as bar:
            built = build(self.fitted, self.batches, choice, progress=bar)
        config = built.config
        if hasattr(self.model.config, "output"):
            config = dataclasses.replace(config, output=self.model.config.output)  # type: ignore[call-arg]
        return self.model.replace(config=config, params=built.params, history=built.history)

    def rival(self, name: str, choice: Choice, built: Model | None = None) -> Rival:
        """Return a choice with its damage and metrics, measured."""
        from headjax.heads.effect import LossRise, OutputChange, effect_between
        from headjax.shrinking.measure import held_back
        from headjax.shrinking.story import Rival

        made = self.build(choice) if built is None else built
        task, options = self.examples.evaluation, self.options
        effect = (LossRise if options.damage == "loss" else OutputChange)(self.fitted.config)
        judged = task.batches(options.batch_size, limit=self.judged, buckets=options.buckets or LENGTHS)
        selected, _ = held_back(self.batches, options.measured)
        apart, on_selection = (
            effect_between(effect, self.fitted, task.fit(made), batches) for batches in (judged, selected)
        )
        (metrics,) = evaluate_each((made,), task, options, self.progress)
        return Rival(name, choice.damage, apart, on_selection, choice.costs, metrics)

    def others(self, limits: Mapping[str, float]) -> list[Rival]:
        """Return the uniform model and those of one technique alone, where they can keep within the limits."""
        from headjax.shrinking.choice import choose_if_any

        choices = {"all layers alike": choose_if_any(self.table, limits, uniform=True)}
        for name, kinds in TECHNIQUES.items():
            choices[name] = choose_if_any(self.table.only(lambda one, kinds=kinds: one.kind in kinds), limits)  # type: ignore[misc]
        return [self.rival(name, choice) for name, choice in choices.items() if choice is not None]

    def within_drop(self, points: Sequence[Any]) -> Choice:
        """Return the smallest choice of the frontier that loses no more of the metric, by bisection."""
        from headjax.evaluation.task import evaluate_task
        from headjax.shrinking.choice import choose

        task, options = self.examples.selection, self.options
        sign = 1.0 if task.higher_is_better else -1.0
        chosen: Any = {"limit": self.examples.selected, "batch_size": options.batch_size, "buckets": options.buckets}

        def value(model: Model) -> float:
            return sign * float(evaluate_task(model, task, **chosen)[task.headline])

        whole = value(self.fitted)
        least = whole - (Amount(0.0, False) if options.max_drop is None else options.max_drop).of(abs(whole))
        low, high = 0, len(points) - 1
        while low < high:
            middle = (low + high + 1) // 2
            limit = {points[middle].quantity: points[middle].costs[points[middle].quantity]}
            fits = value(task.fit(self.build(choose(self.table, limit, uniform=options.alike)))) >= least
            low, high = (middle, high) if fits else (low, middle - 1)
        limit = {points[low].quantity: points[low].costs[points[low].quantity]}
        return choose(self.table, limit, uniform=options.alike)

    def seconds(self, built: Model, choice: Choice) -> dict[str, Any]:
        """Return the seconds of a forward of the built model, predicted and measured."""
        from headjax.shrinking.latency import time_forward

        batch = self.batches[len(self.batches) // 2]
        timings = time_forward({"before": self.model, "measured": built}, batch)
        times = {name: timing.median for name, timing in timings.items()}
        return {"seconds": {"predicted": choice.costs["latency"], **times, "parts": self.table.parts}}


def _open(model: Model, examples: Examples, options: Options, progress: Progress) -> _Session:
    """Return the session, the options measured."""
    from headjax.shrinking.shrink import options_of

    fitted = examples.selection.fit(model)
    buckets = options.buckets or LENGTHS
    batches = list(examples.selection.sample(options.calibrate, options.batch_size, seed=options.seed, buckets=buckets))
    table = options_of(
        fitted, batches, native=options.export == "native", labels=options.damage == "loss", measured=options.measured,
        length=options.length or 0, timed=options.latency is not None, work=options.work, progress=progress,
    )  # fmt: skip
    return _Session(model, fitted, examples, options, progress, batches, table)
