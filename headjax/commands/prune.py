"""`headjax prune`."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from headjax.commands.inputs import REFITTING, Examples, cost_of_order, start_if_named, tell_time
from headjax.commands.models import ChangedResult, finish, planned_exports, with_output_of
from headjax.commands.options import TASK, ChangingOptions, argument, option
from headjax.commands.outputs import ABSENT, key, table_of
from headjax.core import numbers
from headjax.core.errors import HeadjaxError, require
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.heads.ordering import Order
    from headjax.models.config import Batch
    from headjax.models.model import Model

OrderName = Literal[
    "importance_layer", "importance", "importance_token", "fisher", "hies", "ablation", "reconstruction", "subset",
    "hard_concrete", "random",
]  # fmt: skip
"""Orders by name, for which nothing has to be imported."""


class Options(ChangingOptions):
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
        return "/" in self.remove


class Result(ChangedResult):
    kept: Sequence[Any] = key("heads")
    removed: Sequence[Any] = key("heads")
    layers: Sequence[Any] = key(
        "with `--reconstruct`: `name`, `tokens`, `unknowns`, `ridge`, `held_out`, `kept`", ABSENT
    )
    notes: Sequence[str] = ()

    def tables(self) -> Sequence[Table]:
        if self.layers is ABSENT:
            return self.comparison
        columns = {
            "name": Column("Refitted"),
            "unknowns": Column("Unknowns", numbers.significant),
            "ridge": Column("Ridge", numbers.significant),
            "held_out": Column("Held-out error", numbers.significant, better="lower"),
            "kept": Column("Kept", lambda kept: "yes" if kept else "no"),
        }
        title = "Squared error after refitting over that before, on held-out examples"
        return [table_of(columns, self.layers, title=title, notes=self.notes), *self.comparison]


def run(options: Options, progress: Progress) -> Result:
    """Deletes the weights of heads and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.pruning import prune
    from headjax.heads.reconstruct import reconstruct
    from headjax.heads.surgery import config_after

    _check(options)
    model, examples = start_if_named(options)
    fitted = model if examples is None else examples.selection.fit(model)
    likely = _likely(model, options)
    batches = [] if examples is None else _batches(examples, options)
    if options.reconstruct and len(likely) == len(all_heads(model.config)):
        raise HeadjaxError("--remove: all heads go, and no output projection is left to reconstruct")
    exports = planned_exports(options, model, config_after(model.config, lambda model: prune(model, likely)))
    chosen = [] if options.named else [cost_of_order(options.by, model.config, len(batches))]
    tell_time(model, examples, batches=batches, chosen=[*chosen, *[REFITTING] * options.reconstruct], judged=2.0)
    removed, fewer = likely, list[str]()
    if not options.named:
        removed, fewer = _removed(model, _ordered(fitted, batches, options, progress), options)
    refitted: dict[str, Any] = {}
    if examples is not None and options.reconstruct:
        batches, maps = examples.calibrating(options.seed), sum(map(len, model.config.attentions().values()))
        with progress("reconstructing", maps, "map") as bar, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            refit = reconstruct(fitted, batches, removed, progress=bar)
        notes = [f"{refit.examples:,} calibration examples, {refit.tokens:,} tokens."]
        notes += [f"{text[:1].upper()}{text[1:]}." for text in (str(warning.message) for warning in caught)]
        pruned, refitted = with_output_of(model, refit.model), {"layers": refit.layers, "notes": notes}
    else:
        pruned = prune(model, removed)
    ending = finish(model, pruned, options, progress, examples, selection=bool(batches), notes=fewer)
    return Result(kept=all_heads(pruned.config), removed=removed, exports=exports, **refitted, **ending)


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


def _batches(examples: Examples, options: Options) -> list[Batch]:
    """Return the batches that order heads, or where nothing does those that reconstruct layers."""
    single = options.reconstruct and examples.number == 1
    require(not single, "--calibrate", "one example is too few, the ridge is chosen on another one")
    if options.named or options.by == "random":
        return examples.calibrating(options.seed) if options.reconstruct else []
    return examples.calibrating(options.seed) if options.by == "reconstruction" else examples.scoring()


def _likely(model: Model, options: Options) -> Order:
    """Return the heads that are named, or as many as an order will remove; an impossible number is an error already."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.head_id import all_heads, require_stack
    from headjax.heads.site import require_heads

    if options.named:
        return require_heads(find_sites(model), [text.strip() for text in options.remove.split(",")])
    for stack in options.stacks:
        require_stack(model.config, stack, "--stacks")
    heads = all_heads(model.config, options.stacks or None)
    return _removed(model, tuple(random.Random(0).sample(heads, len(heads))), options)[0]


def _ordered(model: Model, batches: Sequence[Batch], options: Options, progress: Progress) -> Order:
    """Return the heads in the order of their removal."""
    from headjax.heads.discovery import find_sites
    from headjax.heads.ordering import amount_of, requested_count
    from headjax.heads.orders import OrderConfig, order_heads, units

    count = requested_count(find_sites(model), options.remove)
    grouped = amount_of(options.remove).relative and not options.uniform
    config = OrderConfig(by=options.by, seed=options.seed, stacks=options.stacks, whole_groups=grouped)
    with progress(f"ordering by {options.by}", *units(config, len(batches))) as bar:
        return order_heads(model, batches, config, count=count, progress=bar)


def _removed(model: Model, order: Order, options: Options) -> tuple[Order, list[str]]:
    """Return the heads that go by an order, and why they are fewer than a percentage asks for.

    A percentage takes as many as fit in whole groups; a number of heads that cannot go is an error.
    """
    from headjax.heads import ordering
    from headjax.heads.discovery import find_sites

    sites, relative = find_sites(model), ordering.amount_of(options.remove).relative
    count = ordering.requested_count(sites, options.remove)
    if options.uniform:  # heads of every layer, or whole groups
        ways = [ordering.uniform_steps(sites, model.config, order, whole_groups=whole) for whole in (False, True)]
    else:
        ways = [ordering.group_removals(sites, order) if relative else ordering.removals(sites, order)]
    if relative:
        heads, left = max((ordering.fitting(steps, count) for steps in ways), key=lambda fit: len(fit[0]))
        why = ordering.fewer(len(heads), count, left, "--stacks and --uniform allow no others")
        return heads, [f"--remove {options.remove}: {why}."] if len(heads) < count else []
    for steps in ways:
        if count in ordering.ends(steps):
            return ordering.flat(steps[: ordering.ends(steps).index(count)]), []
    ends = sorted({end for steps in ways for end in ordering.ends(steps)} - {0})
    possible = ", ".join(map(str, ends)) or "none"
    raise HeadjaxError(f"--remove: {options.remove} asks for {count} heads; possible numbers are {possible}")
