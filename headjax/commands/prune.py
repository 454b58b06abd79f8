"""`headjax prune`."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from headjax.commands.graphs import QuantizingOptions
from headjax.commands.inputs import REFITTING, Examples, cost_of_order, start, tell_time
from headjax.commands.options import (
    TASK,
    ExamplesOptions,
    PlannedOptions,
    TableOptions,
    argument,
    option,
)
from headjax.commands.outputs import ABSENT, ChangedResult, finish, key, planned_exports, table_of
from headjax.core import numbers
from headjax.core.errors import HeadjaxError, require
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.heads.ordering import Order, Steps
    from headjax.models.config import Batch
    from headjax.models.model import Model

OrderName = Literal[
    "importance_layer", "importance", "importance_token", "fisher", "hies", "ablation", "reconstruction", "subset",
    "hard_concrete", "random",
]  # fmt: skip
"""Orders by name, for which nothing has to be imported."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions, TableOptions, PlannedOptions, QuantizingOptions):
    """Options of `headjax prune`."""

    out: str = argument("OUT", "folder of the pruned model", writes="new")
    remove: str = option(help="40%, a number of heads, or heads: encoder/3/7,...", metavar="WHAT")
    by: OrderName = option(
        "importance_layer", "order of removal; reconstruction reads no labels, and is best with --reconstruct"
    )
    task: str = option("", TASK, "TASK", reads="task")
    reconstruct: bool = option(
        False, "refit the output projections of kept heads by least squares on the calibration examples; no labels"
    )
    uniform: bool = option(False, "leave every layer as many heads in as many groups")
    stacks: tuple[str, ...] = option((), "remove heads of these stacks only: encoder,decoder,cross", "STACKS")
    seed: int = option(0, "seed of the calibration examples and of random orders")

    @property
    def named(self) -> bool:
        """Whether the heads are named one by one."""
        return "/" in self.remove


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(ChangedResult):
    """A pruned model."""

    kept: Sequence[Any] = key("heads")
    removed: Sequence[Any] = key("heads")
    layers: Sequence[Any] = key(
        "with `--reconstruct`: `name`, `tokens`, `unknowns`, `ridge`, `held_out`, `kept`", default=ABSENT
    )
    notes: Sequence[str] = ()

    def tables(self) -> Sequence[Table]:
        if self.layers is ABSENT:
            return [self.comparison()]
        columns = {
            "name": Column("Refitted"),
            "unknowns": Column("Unknowns", numbers.significant),
            "ridge": Column("Ridge", numbers.significant),
            "held_out": Column("Held-out error", numbers.significant, better="lower"),
            "kept": Column("Kept", lambda kept: "yes" if kept else "no"),
        }
        title = "Squared error after refitting over that before, on held-out examples"
        return [table_of(columns, self.layers, title=title, notes=self.notes), self.comparison()]


def run(options: Options, progress: Progress) -> Result:
    """Deletes the weights of heads and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.pruning import prune
    from headjax.heads.surgery import config_after

    _check(options)
    model, examples = start(options) if options.task else (options.loaded(), None)
    likely = _likely(model, options)
    if options.reconstruct and examples is not None:
        left = len(all_heads(model.config)) - len(likely)
        require(left > 0, "--remove", "all heads go, and no output projection is left to reconstruct")
        require(examples.number != 1, "--calibrate", "one example is too few, the ridge is chosen on another one")
    batches = [] if examples is None else _batches(examples, options)
    exports = planned_exports(options, model, config_after(model.config, lambda model: prune(model, likely)))
    if examples is not None:
        chosen = [] if options.named else [cost_of_order(options.by, model.config, len(batches))]
        chosen += [REFITTING] * options.reconstruct
        given: Any = {"task": examples.evaluation, "judged": 2.0, "max_time": options.max_time}
        tell_time(model, options, batches=batches, chosen=chosen, **given)
    removed, notes = _chosen(model, examples, options, progress)
    task = None if examples is None else examples.evaluation
    more: dict[str, Any] = {}
    if examples is not None:
        more = examples.described(selection=options.reconstruct or not (options.named or options.by == "random"))
    more["about"] = (*more.get("about", ()), *notes)
    if options.reconstruct and examples is not None:
        pruned, repair = _reconstructed(model, examples, removed, options, progress)
        more |= repair
    else:
        pruned = prune(model, removed)
    more |= {"kept": all_heads(pruned.config), "removed": removed, "exports": exports}
    return Result(**finish(model, pruned, options, progress, task=task), **more)


def _check(options: Options) -> None:
    """Refuse options that exclude each other, and options that need a task without a task."""
    from headjax.heads.ordering import amount_of

    if not options.named:
        amount_of(options.remove)
    for name in ("uniform", "stacks") if options.named else ():
        if getattr(options, name):
            raise HeadjaxError(f"--{name}: an order chooses the heads, but --remove names them")
    needed = "reconstruct layers on" if options.reconstruct else f"order heads by {options.by}"
    if not options.task and (options.reconstruct or not (options.named or options.by == "random")):
        raise HeadjaxError(f"--task: needed to {needed}")


def _likely(model: Model, options: Options) -> Order:
    """Return as many heads as will be removed, drawn at random; a number that cannot be met is an error already."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.head_id import all_heads, require_stack
    from headjax.heads.ordering import requested_count

    if options.named:
        return _named(model, options)
    for stack in options.stacks:
        require_stack(model.config, stack, "--stacks")
    heads = all_heads(model.config, options.stacks or None)
    order = tuple(random.Random(0).sample(heads, len(heads)))
    return _fitting(_ways(model, order, options), requested_count(find_sites(model), options.remove), options)[0]


def _named(model: Model, options: Options) -> Order:
    """Return the heads that are named one by one, separated by commas."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.site import require_heads

    return require_heads(find_sites(model), [text.strip() for text in options.remove.split(",")])


def _chosen(
    model: Model, examples: Examples | None, options: Options, progress: Progress
) -> tuple[Order, Sequence[str]]:
    """Return the heads to remove, and why they are fewer than a percentage asks for."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.ordering import amount_of, requested_count
    from headjax.heads.orders import OrderConfig, order_heads, units

    if options.named:
        return _named(model, options), ()
    count = requested_count(find_sites(model), options.remove)
    batches = [] if examples is None or options.by == "random" else _batches(examples, options)
    grouped = amount_of(options.remove).relative and not options.uniform
    config = OrderConfig(by=options.by, seed=options.seed, stacks=options.stacks, whole_groups=grouped)
    fitted = model if examples is None else examples.selection.fit(model)
    with progress(f"ordering by {options.by}", *units(config, len(batches))) as bar:
        order = order_heads(fitted, batches, config, count=count, progress=bar)
    return _fitting(_ways(model, order, options), count, options)


def _batches(examples: Examples, options: Options) -> list[Batch]:
    """Return the batches that order heads, or where nothing does those that reconstruct layers."""
    if options.by in ("random", "reconstruction") or options.named:
        return examples.calibrating(options.seed) if options.reconstruct or options.by == "reconstruction" else []
    return examples.scoring()


def _ways(model: Model, order: Order, options: Options) -> list[Steps]:
    """Return the removals that an order makes: heads, of a percentage whole groups; or one of these of every layer."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.ordering import amount_of, group_removals, removals, uniform_steps

    sites = find_sites(model)
    if options.uniform:
        return [uniform_steps(sites, model.config, order, whole_groups=whole) for whole in (False, True)]
    return [group_removals(sites, order) if amount_of(options.remove).relative else removals(sites, order)]


def _fitting(ways: Sequence[Steps], count: int, options: Options) -> tuple[Order, Sequence[str]]:
    """Return the heads of the removals that take `count` of them together, or of a percentage as many as fit."""
    from headjax.heads.ordering import amount_of, ends, fewer, fitting, flat

    if amount_of(options.remove).relative:
        heads, left = max((fitting(steps, count) for steps in ways), key=lambda found: len(found[0]))
        why = fewer(len(heads), count, left, "--stacks and --uniform allow no others")
        return heads, [f"--remove {options.remove}: {why}."] if len(heads) < count else []
    steps = next((steps for steps in ways if count in ends(steps)), None)
    if steps is None:
        possible = ", ".join(map(str, sorted({end for steps in ways for end in ends(steps)} - {0}))) or "none"
        raise HeadjaxError(f"--remove: {options.remove} asks for {count} heads; possible numbers are {possible}")
    return flat(steps[: ends(steps).index(count)]), []


def _reconstructed(
    model: Model, examples: Examples, removed: Order, options: Options, progress: Progress
) -> tuple[Model, dict[str, Any]]:
    """Return the model without these heads, its output projections refitted, and fields of the result about them."""
    from headjax.heads.reconstruct import reconstruct

    fitted = examples.selection.fit(model)
    layers = sum(map(len, model.config.attentions().values()))
    with progress("reconstructing", layers, "map") as bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        refit = reconstruct(fitted, examples.calibrating(options.seed), removed, progress=bar)
    notes = [f"{refit.examples:,} calibration examples, {refit.tokens:,} tokens."]
    notes += [f"{text[:1].upper()}{text[1:]}." for text in (str(warning.message) for warning in caught)]
    return examples.with_own_output(model, refit.model), {"layers": refit.layers, "notes": notes}
