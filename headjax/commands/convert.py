"""`headjax convert`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import NOTHING_READ, TASK, open_model_and_examples_if_any
from headjax.commands.options import Result, argument, option
from headjax.commands.surgery import ConversionOptions, comparison_table, evaluate_pair, fine_tune, fine_tuning_of
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

    out: str = argument("OUT", "folder of the converted model", also=("--out",), writes="new")
    to: str = option(help="such as collaborative:shared_dim=384, grouped:kv_heads=4 or deep", metavar="TARGET")
    task: str = option("", TASK, "TASK", reads=True)
    stacks: tuple[str, ...] = option((), "convert these only: encoder,decoder,cross", "STACKS")
    layers: tuple[int, ...] = option((), "convert these layers only, such as 0,3,4", "LAYERS")
    reconstruct: bool = option(
        False, "solve the output projections anew afterwards so that layers compute as before; needs --calibrate"
    )
    parameters: Count = option(
        0,
        "with --to collaborative: most parameters of the whole model, where every layer gets the shared_dim that suits "
        "it; 0: no bound",
    )


def run(options: Options, progress: Progress) -> Result:
    """Writes the model in another formulation; with a task, also its metrics before and after."""
    from headjax.models.model import save

    if options.selected is not None and not options.task:
        raise HeadjaxError("--task: needed to calibrate on")
    if options.reconstruct and options.selected is None and not options.select:
        raise HeadjaxError("--reconstruct: needs --calibrate")
    lessons = fine_tuning_of(options)
    model, examples = open_model_and_examples_if_any(options, lazy=_is_by_layer(options.to))
    task, batches, described = None, None, NOTHING_READ
    if examples is not None:
        task = examples.evaluation
        found = options.calibration(examples, options.batch_size)
        batches = examples.selection.first_batches(found.batches, found.batch_size) or None
        described = examples.described(
            selection=batches is not None, selected=found.examples, training=lessons is not None, purpose="Calibration"
        )
    with progress(f"converting to {options.to}", 1, "model") as bar:
        conversion = _convert(model, options, batches)
        bar(1, {})
    converted = conversion.model
    if task is not None and lessons is not None:
        converted = fine_tune(converted, model, task, lessons, options, progress)
    metrics = evaluate_pair(model, converted, task, options, progress)
    difference = None if task is None else _difference(model, converted, task, options)
    save(converted, options.out, progress)
    export = _export(converted)
    errors = [error._asdict() for error in conversion.errors]
    costs = _costs(model, converted)
    data = {
        "error_per_layer": errors,
        "divergence": _entry(conversion.model, "convert").get("divergence", {}),
        "repaired": _entry(conversion.model, "reconstruct").get("repaired", []) if options.reconstruct else [],
        "parameters": converted.num_parameters,
        "parameters_before": model.num_parameters,
        "metrics": metrics.after,
        "metrics_before": metrics.before,
        "output_difference": difference,
        **costs,
        "export": export,
        **described.data,
        "to": options.to,
        "model": str(options.out),
    }
    tables = [
        _error_table(errors, difference, data["divergence"], data["repaired"]),
        comparison_table(model, converted, metrics, described.notes),
        _cost_table(costs),
    ]
    return Result(data, tables, "\n".join((*_told(export), f"model: {options.out}")))


def _export(model: Model) -> dict[str, str | None] | None:
    """Return how `headjax export` would write an imported model, or why it could not; None of any other model."""
    from headjax.hub.exporting import imported_from, layout_of_export
    from headjax.hub.table import InexpressibleError

    origin = imported_from(model)
    if origin is None:
        return None
    try:
        family, layout = layout_of_export(model)
    except InexpressibleError as error:
        return {"from": origin, "family": None, "layout": None, "reason": str(error)}
    return {"from": origin, "family": family, "layout": layout, "reason": None}


def _told(export: dict[str, str | None] | None) -> list[str]:
    """Return a line about an export in other shapes or another family than before, or about none."""
    if export is None or (export["family"] == export["from"] and export["layout"] == "native"):
        return []
    if export["layout"] is None:
        return [f"export to Hugging Face: {export['reason']}"]
    full = ", zeros in place of what is missing, so neither smaller nor faster" * (export["layout"] == "padded")
    return [f"export to Hugging Face: as {export['family']}, layout {export['layout']}{full}"]


def _is_by_layer(to: str) -> bool:
    """Return whether a conversion changes attention alone, so that all other arrays go from file to file."""
    from headjax.conversion import Restructuring, Target
    from headjax.conversion.model import TARGETS

    return issubclass(TARGETS.get(to.partition(":")[0], Restructuring), Target)


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


def _costs(before: Model, after: Model) -> dict[str, Any]:
    """Return the cost of attention and of a decoding step of both models by length, and where attention breaks even."""
    from headjax.conversion.analysis import model_break_even, model_costs

    steps = zip(_step_seconds(before), _step_seconds(after), strict=True)
    pairs = zip(model_costs(before.config, LENGTHS), model_costs(after.config, LENGTHS), steps, strict=True)
    costs = [
        {
            "length": old.length,
            "flops_before": old.flops,
            "flops": new.flops,
            "cache_before": old.cache,
            "cache": new.cache,
            "step_seconds_before": step_before,
            "step_seconds": step,
        }
        for old, new, (step_before, step) in pairs
    ]
    return {"costs": costs, "break_even_length": model_break_even(after.config, before.config)}


def _step_seconds(model: Model) -> list[float | None]:
    """Return the least seconds of a decoding step by length, at this device's peak rates; None without a decoder."""
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


def _entry(model: Model, action: str) -> Mapping[str, Any]:
    """Return the latest entry of the history with this action."""
    return next((entry for entry in reversed(model.history) if entry["action"] == action), {})


def _error_table(
    errors: Sequence[dict[str, Any]], difference: float | None, divergence: Mapping[str, float], repaired: Sequence[str]
) -> Table:
    names = [name for name in ("relative_error", "logit_error") if any(error.get(name) is not None for error in errors)]
    columns = (Column("Layer"), *(Column(name.replace("_", " "), numbers.significant) for name in names))
    rows = [(f"{error['stack']}/{error['layer']}", *(error.get(name) for name in names)) for error in errors]
    notes = [] if difference is None else [f"Outputs on the task differ by {difference:.2g} of their size."]
    if tried := sorted(divergence.items(), key=lambda pair: pair[1]):
        said = ", ".join(f"{name} {apart:.3g}" for name, apart in tried)
        notes.append(f"Divergence from the original on held-out calibration examples; the first was taken: {said}.")
    if repaired:
        notes.append(f"Output projections solved anew: {', '.join(repaired)}.")
    return Table(columns, rows, notes=tuple(notes))


def _cost_table(costs: dict[str, Any]) -> Table:
    cached = any(row["cache"] or row["cache_before"] for row in costs["costs"])  # encoders have no cache
    columns = (
        Column("Tokens", numbers.fixed(0)),
        *(Column(title, numbers.flops) for title in ("Attention before", "after")),
        *(Column(title, numbers.count) for title in (("Cached before", "after") if cached else ())),
        *(Column(title, numbers.duration) for title in (("A step before", "after") if cached else ())),
    )
    rows = [tuple(row.values())[: len(columns)] for row in costs["costs"]]
    length = costs["break_even_length"]
    note = {
        None: "Its attention takes no more operations than before at any length.",
        0: "Its attention takes more operations than before at every length.",
    }.get(length, f"Its attention takes more operations than before above {length} tokens.")
    steps = (
        ("A step is the least time of one more token here: its operations or its bytes at peak rates.",)
        if cached
        else ()
    )
    return Table(columns, rows, notes=(note, *steps))
