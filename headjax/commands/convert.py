"""`headjax convert`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.examples import TASK, open_model_and_examples_if_any
from headjax.commands.options import argument, option
from headjax.commands.results import NO_EXAMPLES, found, table_of
from headjax.commands.surgery import (
    Changed,
    ConversionOptions,
    compared,
    evaluate_each,
    export_of,
    fine_tune,
    fine_tuning_of,
    told_export,
)
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.conversion import Conversion
    from headjax.evaluation.task import Task
    from headjax.models.config import Batch
    from headjax.models.model import Model

COMPARED_BATCHES = 4
"""Batches of the task that outputs before and after are compared on."""

LENGTHS = (64, 128, 256, 512, 1024, 2048)
"""Tokens that costs are given for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConversionOptions):
    """Options of `headjax convert`."""

    out: str = argument("OUT", "folder of the converted model", writes="new")
    to: str = option(help="such as collaborative:shared_dim=384, grouped:kv_heads=4 or deep", metavar="TARGET")
    task: str = option("", TASK, "TASK", reads=True)
    stacks: tuple[str, ...] = option((), "convert these only: encoder,decoder,cross", "STACKS")
    layers: tuple[int, ...] = option((), "convert these layers only, such as 0,3,4", "LAYERS")
    reconstruct: bool = option(
        False, "refit the output projections afterwards so that layers compute as before; needs --calibrate"
    )
    parameters: Count = option(
        0,
        "with --to collaborative: most parameters of the model, where every layer gets the shared_dim that suits "
        "it; 0: no bound",
    )


class Cost(NamedTuple):
    """Cost of attention at a length.

    Attributes:
        length: number of tokens.
        flops_before, flops: of all layers.
        cache_before, cache: numbers that all layers keep for these tokens.
        step_seconds_before, step_seconds: least time of one more token here; None in models that do not generate.
    """

    length: int
    flops_before: float
    flops: float
    cache_before: float
    cache: float
    step_seconds_before: float | None
    step_seconds: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Changed):
    """A converted model."""

    error_per_layer: Sequence[Any] = found("`stack`, `layer`, `relative_error`, `value_error`, `logit_error`")
    divergence: Mapping[str, float] = found(
        "from the original on held-out calibration examples, by what was tried; the least was taken"
    )
    repaired: Sequence[str] = found("output projections that `--reconstruct` refitted")
    output_difference: float | None = found("of the outputs on the task, relative")
    costs: Sequence[Cost] = found(
        "`length`, `flops_before`, `flops`, `cache_before`, `cache`, `step_seconds_before`, `step_seconds` (null in "
        "models that do not generate)"
    )
    break_even_length: int | None = found("tokens up to which attention takes no more FLOPs; null: any number")
    export: Mapping[str, str | None] | None = found(
        "null unless the model was imported: `from`, `family`, `layout`, `reason`"
    )
    to: str = found()

    def tables(self) -> Sequence[Table]:
        return [self._errors(), self.comparison(), self._costs()]

    def message(self) -> str:
        return "\n".join((*told_export(self.export), super().message()))

    def _errors(self) -> Table:
        columns = {"place": Column("Layer")}
        for name in ("relative_error", "logit_error"):
            if any(getattr(error, name) is not None for error in self.error_per_layer):
                columns[name] = Column(name.replace("_", " ").capitalize(), numbers.significant)
        rows = [{**error._asdict(), "place": f"{error.stack}/{error.layer}"} for error in self.error_per_layer]
        shown = numbers.significant(self.output_difference)
        notes = [] if self.output_difference is None else [f"Outputs on the task differ by {shown} of their size."]
        if tried := sorted(self.divergence.items(), key=lambda pair: pair[1]):
            said = ", ".join(f"{name} {apart:.3g}" for name, apart in tried)
            notes.append(f"Divergence from the original on held-out calibration examples; the first was taken: {said}.")
        if self.repaired:
            notes.append(f"Output projections refitted: {', '.join(self.repaired)}.")
        return table_of(columns, rows, notes=notes)

    def _costs(self) -> Table:
        columns = {
            "length": Column("Tokens", numbers.fixed(0)),
            "flops_before": Column("Attention before", numbers.flops),
            "flops": Column("after", numbers.flops),
        }
        length = self.break_even_length
        where = {None: "no more FLOPs than before at any length", 0: "more FLOPs than before at every length"}
        notes = [f"Attention takes {where.get(length, f'more FLOPs than before above {length} tokens')}."]
        if any(cost.cache or cost.cache_before for cost in self.costs):  # encoders have no cache
            columns |= {"cache_before": Column("Cached before", numbers.count), "cache": Column("after", numbers.count)}
            columns["step_seconds_before"] = Column("A step before", numbers.duration)
            columns["step_seconds"] = Column("after", numbers.duration)
            notes.append("A step is the least time of one more token here: its FLOPs or its bytes at peak rates.")
        return table_of(columns, self.costs, notes=notes)


def run(options: Options, progress: Progress) -> Found:
    """Writes the model in another formulation; with a task, also its metrics before and after."""
    from headjax.conversion.analysis import model_break_even
    from headjax.models.model import save

    if options.selected is not None and not options.task:
        raise HeadjaxError("--task: needed to calibrate on")
    if options.reconstruct and options.selected is None and not options.select:
        raise HeadjaxError("--reconstruct: needs --calibrate")
    lessons = fine_tuning_of(options)
    model, examples = open_model_and_examples_if_any(options)
    task, batches, described = None, None, NO_EXAMPLES
    if examples is not None:
        task = examples.evaluation
        wanted = options.calibration(examples, options.batch_size)
        batches = examples.selection.first_batches(wanted.batches, wanted.batch_size) or None
        described = examples.described(
            selection=batches is not None, selected=wanted.examples, training=lessons is not None, purpose="Calibration"
        )
    with progress(f"converting to {options.to}", 1, "model") as bar:
        conversion = _convert(model, options, batches)
        bar(1, {})
    converted = conversion.model
    if task is not None and lessons is not None:
        converted = fine_tune(converted, model, task, lessons, options, progress)
    metrics = evaluate_each((model, converted), task, options, progress)
    difference = None if task is None else _difference(model, converted, task, options)
    save(converted, options.out, progress)
    return Found(
        error_per_layer=conversion.errors,
        divergence=_entry(conversion.model, "convert").get("divergence", {}),
        repaired=_entry(conversion.model, "reconstruct").get("repaired", []) if options.reconstruct else [],
        output_difference=difference,
        costs=_costs(model, converted),
        break_even_length=model_break_even(converted.config, model.config),
        export=export_of(converted),
        to=options.to,
        model=str(options.out),
        **compared(model, converted, metrics, task),
        **described,
    )


def _is_by_layer(to: str) -> bool:
    """Return whether a conversion changes attention alone, so that all other arrays go from file to file."""
    from headjax.conversion import Restructuring, Target
    from headjax.conversion.named import TARGETS

    return issubclass(TARGETS.get(to.partition(":")[0], Restructuring), Target)


def _entry(model: Model, action: str) -> Mapping[str, Any]:
    """Return the latest entry of the history with this action."""
    return next((entry for entry in reversed(model.history) if entry["action"] == action), {})


def _convert(model: Model, options: Options, batches: Sequence[Batch] | None) -> Conversion:
    from headjax.conversion import Target, ToCollaborative, convert
    from headjax.conversion.analysis import ranks_for_size
    from headjax.conversion.target import HeadLayer

    chosen: dict[str, Any] = {
        "stacks": options.stacks or None,
        "layers": options.layers or None,
        "batches": batches,
    }
    to: str | dict[HeadLayer, Target | str] = options.to
    if options.parameters:
        if options.to != ToCollaborative.name:
            raise HeadjaxError(f"--parameters: --to must be {ToCollaborative.name} alone, got {options.to!r}")
        ranks = ranks_for_size(model, options.parameters, **chosen)
        to = {place: ToCollaborative(shared_dim=rank) for place, rank in ranks.items()}
    return convert(model, to, **chosen, reconstruct=options.reconstruct, seed=options.seed)


def _costs(before: Model, after: Model) -> list[Cost]:
    from headjax.conversion.analysis import model_costs

    steps = zip(_step_seconds(before), _step_seconds(after), strict=True)
    pairs = zip(model_costs(before.config, LENGTHS), model_costs(after.config, LENGTHS), steps, strict=True)
    return [Cost(old.length, old.flops, new.flops, old.cache, new.cache, *seconds) for old, new, seconds in pairs]


def _step_seconds(model: Model) -> list[float | None]:
    """Return the least seconds of a decoding step by length, at this device's peak speeds; None without a decoder."""
    from headjax.models.config import GenerativeModel
    from headjax.models.speed import decoding_cost, peak_rates

    if not isinstance(model.config, GenerativeModel):
        return [None] * len(LENGTHS)
    return [decoding_cost(model.config, length).seconds(peak_rates()) for length in LENGTHS]


def _difference(before: Model, after: Model, task: Task, options: Options) -> float:
    """The relative difference of the models' outputs on some batches of the task."""
    from headjax.conversion.analysis import output_difference

    batches = islice(task.batches(options.batch_size, limit=options.limit), COMPARED_BATCHES)
    return output_difference(before, after, batches)
