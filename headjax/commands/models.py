"""Models that commands make of others: the plan of their exports before the work, and both models after it.

Every such command ends in `finish`: sizes, times, here and in onnxruntime, and metrics before and after.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.options import WritingOptions, name_of
from headjax.commands.outputs import ABSENT, CommandResult, ExamplesResult, key, printed_metrics, record
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.commands.inputs import Examples
    from headjax.evaluation.task import Evaluation, Task
    from headjax.hub.onnx import OnnxModel
    from headjax.models.config import Batch, ModelConfig, Output
    from headjax.models.model import Model

BATCHES = (1, 32)
"""Numbers of examples whose forward pass is timed."""

TOKENS = 32
"""Most tokens of a timed example."""

TURNS = range(3, 16)
"""Timed calls of each model, after one that compiles; those of a quick model are more. Medians count."""

PATIENCE = 20.0
"""Seconds that the calls of one batch size may take; what would take longer is not timed."""

Milliseconds = Mapping[str, float | None]


class ModelFigures(NamedTuple):
    """Sizes, times and metrics of a model.

    Attributes:
        bytes: of the files of the weights.
        cache_bytes_per_token: of a decoder.
        milliseconds: of a forward pass of 1 and 32 examples, medians; null where they would take too long.
        milliseconds_onnxruntime: the same in onnxruntime, of an encoder where it is installed.
        metrics: with a task.
    """

    parameters: int
    bytes: int
    cache_bytes_per_token: int
    milliseconds: Milliseconds
    milliseconds_onnxruntime: Milliseconds
    metrics: Mapping[str, float]


class ModelResult(CommandResult):
    """A model that a command has made of another one; without figures where an interrupted one has made none."""

    after: ModelFigures = record("headjax.commands.models.ModelFigures", default=None)
    before: ModelFigures = record("headjax.commands.models.ModelFigures", suffix="_before", default=None)
    quantized: Mapping[str, Any] = key(
        "with `--quantize`: `file`, its `bytes`, `milliseconds` in onnxruntime and, with a task, `metrics`", ABSENT
    )
    processor: str = key("that was timed", ABSENT)
    significance: Any = key(
        "of the change of a `metric`: `difference`, `p_value`, `low` and `high` (95 %) by the paired `test`; null "
        "without two models on a task",
        ABSENT,
    )
    model: str | None = key("its folder", ABSENT)
    load: str = key("Python expression that loads it", ABSENT)
    comparison: Sequence[Table] = ()
    written: str = ""

    def message(self) -> str:
        return "\n".join(filter(None, (self.written, super().message(), self.load and f"load it: {self.load}")))


class ChangedResult(ModelResult, ExamplesResult):
    """A changed model, and the one before."""

    exports: Sequence[str] = key("layouts of Hugging Face directories that the plan promised")


def planned_exports(options: WritingOptions, model: Model, config: ModelConfig) -> list[str]:
    """Tell before the work which layouts express an architecture made of a model; refuse a directory that none does."""
    from headjax.hub.exporting import layouts_after
    from headjax.hub.onnx import check_graph
    from headjax.hub.table import InexpressibleError

    option = next(name_of(field) for field in dataclasses.fields(options) if field.name == "format")
    if options.quantize is not None:
        if options.kind() == "headjax":
            raise HeadjaxError(f"--quantize: a directory of headjax has no place for it; use {option} huggingface")
        try:
            check_graph(model, config)
        except InexpressibleError as error:
            raise HeadjaxError(f"--quantize: {error}") from None
    refused = layouts_after(model, config)
    layouts = [name for name, why in refused.items() if not why]
    reasons = "; ".join(f"not {name}: {why}" for name, why in refused.items() if why)
    if not layouts and options.kind() == "huggingface":
        raise HeadjaxError(f"{option}: no Hugging Face directory holds the result; use {option} headjax; {reasons}")
    can = f"exports in layout {', '.join((*layouts, 'onnx'))}"
    print(f"plan: {'; '.join(filter(None, (can, reasons)))}", flush=True)
    return layouts


def finish(
    before: Model,
    after: Model,
    options: WritingOptions,
    progress: Progress,
    examples: Examples | None,
    *,
    selection: bool = True,
    evaluations: Sequence[Evaluation] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a model that was made of another one; return the fields of `ChangedResult`, but for `exports`.

    Both are evaluated on the task of the examples unless they were. `selection` says whether examples chose; `notes`
    are about what they chose.
    """
    task = None if examples is None else examples.evaluation
    described = {"about": ()} if examples is None else examples.described(selection=selection)
    described["about"] = (*described["about"], *notes)
    evaluations = evaluate_each((before, after), task, options, progress) if evaluations is None else evaluations
    written = options.write(after, progress)
    return compared(before, after, options, progress, task, evaluations, written, described["about"]) | described


def compared(
    before: Model,
    after: Model,
    options: WritingOptions,
    progress: Progress,
    task: Task | None,
    evaluations: Sequence[Evaluation],
    written: str,
    about: Sequence[str] = (),
) -> dict[str, Any]:
    """Time both models, the new one's directory `written`, and return the fields of `ModelResult`."""
    from headjax.core.timing import processor
    from headjax.hub.either import bytes_of_weights, loading
    from headjax.models.summary import summarize

    models = (before, after)
    times = milliseconds(models, progress)
    graphs = _graphs((before, after if task is None else task.fit(after)), options)
    graph_times = milliseconds((*models, after)[: len(graphs)], progress, [graph.run for graph in graphs])
    quantized = _quantized(options, graphs, graph_times, after, task, progress)
    summaries = [summarize(model.config, 1) for model in models]
    cached = any(each.cache_bytes_per_token for each in summaries)
    metrics = [*({} for _ in models[len(evaluations) :]), *(evaluation.metrics for evaluation in evaluations)]
    figures = [
        ModelFigures(
            parameters=each.parameters,
            bytes=bytes_of_weights((options.model, options.out)[at]),
            cache_bytes_per_token=each.cache_bytes_per_token if cached else ABSENT,
            milliseconds=times[at],
            milliseconds_onnxruntime=graph_times[at] if graphs else ABSENT,
            metrics=metrics[at],
        )
        for at, each in enumerate(summaries)
    ]
    significance = _significance(evaluations, task)
    timed = f"Times are medians of forward passes in turns, of texts of at most {TOKENS} tokens, on {processor()}."
    notes = (timed, *(evaluations[-1].notes if evaluations else ()), *about)
    rows = [*_size_rows(models, figures), *_time_rows(models, figures), *_metric_rows(figures, significance, task)]
    sizes = (Column(name, right=True) for name in ("Before", "After"))
    table = Table([Column(""), *sizes, Column("Change")], rows, notes=notes)
    if options.quantize and quantized:
        table = _with_quantized(table, options.quantize, quantized, task)
    return {
        "before": figures[0],
        "after": figures[1],
        "quantized": quantized or ABSENT,
        "processor": processor(),
        "significance": significance,
        "model": str(options.out),
        "load": loading(options.out),
        "comparison": [table],
        "written": written,
    }


def evaluate_each(
    models: Sequence[Model],
    task: Task | None,
    options: WritingOptions,
    progress: Progress,
    forward: Callable[[Batch], Output] | None = None,
) -> list[Evaluation]:
    """Return each model on the task, on as much of it as the options say; nothing without a task.

    `forward` computes the outputs in the place of the only model.
    """
    from headjax.evaluation.task import measure_task

    if task is None:
        return []
    batches = task.count_batches(**options.reading)
    evaluations: list[Evaluation] = []
    for number, model in enumerate(models, start=1):
        title = f"evaluating model {number} of {len(models)}" if len(models) > 1 else "evaluating"
        with progress(title, batches, "batch") as bar:
            evaluations.append(measure_task(model, task, forward=forward, progress=bar, **options.reading))
    return evaluations


def milliseconds(
    models: Sequence[Model], progress: Progress, forwards: Sequence[Callable[[Batch], Any]] = ()
) -> tuple[Milliseconds, ...]:
    """Return the median time of each model's forward pass by batch size; the models take turns.

    `forwards` compute in the models' places.
    """
    from headjax.core.timing import seconds_in_turns

    times: tuple[dict[str, float | None], ...] = tuple({} for _ in models)
    turn = 0.0  # seconds of one example in all models
    with progress("timing", len(BATCHES) if models else 0, "batch size") as bar:
        for done, size in enumerate(BATCHES if models else (), start=1):
            medians: list[float | None] = [None for _ in models]
            if TURNS[0] * size * turn <= PATIENCE:
                calls = {str(at): _call(model, size, *forwards[at : at + 1]) for at, model in enumerate(models)}
                first = seconds_in_turns(calls, repeats=1, settle=0)
                turn = sum(map(sum, first.values())) / size
                if TURNS[0] * size * turn <= PATIENCE:
                    repeats = min(TURNS[-1], max(TURNS[0], int(1.0 / (size * turn))))
                    turns = seconds_in_turns(calls, repeats=repeats, warmup=0, settle=0)
                    medians = [1e3 * statistics.median(seconds) for seconds in turns.values()]
            for of_model, median in zip(times, medians, strict=True):
                of_model[str(size)] = median
            bar(done, {})
    return times


def _call(model: Model, size: int, forward: Callable[[Batch], Any] | None = None) -> Callable[[], Any]:
    """Return the forward pass of a batch of equal random examples."""
    import numpy as np

    from headjax.hub.onnx import example_batch, longest

    example = example_batch(model, min(TOKENS, longest(model) or TOKENS))
    batch = model.device_batch({name: np.repeat(array[:1], size, axis=0) for name, array in example.items()})
    return functools.partial(forward or model, batch)


def _graphs(models: Sequence[Model], options: WritingOptions) -> list[OnnxModel]:
    """Return models as onnxruntime computes them, the last one also in int8 if asked for.

    None are returned of decoders unless their graph is asked for, and of models that no single file holds.
    """
    from headjax.hub.onnx import MOST_PARAMETERS, OnnxModel
    from headjax.hub.table import InexpressibleError
    from headjax.models.encoder import EncoderConfig

    usual = all(map(find_spec, ("onnx", "onnxruntime"))) and isinstance(models[0].config, EncoderConfig)
    if not (usual or options.quantize) or any(model.num_parameters > MOST_PARAMETERS for model in models):
        return []
    try:
        graphs = [OnnxModel(model) for model in models]
    except InexpressibleError:
        return []
    return graphs if options.quantize is None else [*graphs, OnnxModel(models[-1], options.quantize)]


def _quantized(
    options: WritingOptions,
    graphs: Sequence[OnnxModel],
    times: Sequence[Milliseconds],
    model: Model,
    task: Task | None,
    progress: Progress,
) -> dict[str, Any]:
    """Return name, size, times and metrics of the quantised graph in OUT; an empty dict without one."""
    from headjax.hub.onnx import QUANTIZED
    from headjax.storage.paths import path_of, size_of

    file = QUANTIZED.get(options.quantize or "", "")
    if not file or not (path_of(options.out) / file).is_file():
        return {}
    quantized = {"file": file, "bytes": size_of(path_of(options.out) / file)}
    if graphs:
        evaluations = evaluate_each((model,), task, options, progress, forward=graphs[2])
        quantized |= {"milliseconds": times[2], "metrics": evaluations[0].metrics if evaluations else {}}
    return quantized


def _significance(evaluations: Sequence[Evaluation], task: Task | None) -> dict[str, Any] | None:
    """Return the paired test of the primary metric, or of its loss; None without two examples."""
    from headjax.evaluation.paired import RESAMPLES, paired_test

    if task is None or len(evaluations) < 2 or evaluations[0].examples < 2:
        return None
    name, test = paired_test(evaluations[0].outcomes, task.measure, RESAMPLES)
    metric = "loss" if task.measure.kind == "sum" else task.primary_metric
    return {"metric": metric, "test": name, **test(evaluations[1].outcomes)._asdict()}


def _size_rows(models: Sequence[Model], figures: Sequence[ModelFigures]) -> list[Sequence[str]]:
    """Return the rows of heads, units, parameters and bytes."""
    from headjax.heads.head_id import all_heads

    units = [
        sum(layer.hidden for stack in model.config.stacks().values() for layer in stack.layers) for model in models
    ]
    rows: dict[str, tuple[Sequence[int], numbers.Format]] = {
        "heads": ([len(all_heads(model.config)) for model in models], numbers.number),
        **({"feed-forward units": (units, numbers.number)} if units[0] != units[1] else {}),
        "parameters": ([each.parameters for each in figures], numbers.number),
        "file of weights": ([each.bytes for each in figures], numbers.size),
    }
    if figures[0].cache_bytes_per_token is not ABSENT:
        rows["KV cache a token"] = [each.cache_bytes_per_token for each in figures], numbers.size
    return [(name, *map(form, values), _share(*values)) for name, (values, form) in rows.items()]


def _time_rows(models: Sequence[Model], figures: Sequence[ModelFigures]) -> list[Sequence[str]]:
    """Return the rows of milliseconds; of equal layers, whose times differ by noise alone, no change is shown."""
    equal = models[0].config.stacks() == models[1].config.stacks()
    rows: list[Sequence[str]] = []
    for attribute, where in {"milliseconds": "", "milliseconds_onnxruntime": " in onnxruntime"}.items():
        times = [getattr(each, attribute) for each in figures]
        for size, before in times[0].items() if times[0] else ():
            name, after = f"ms{where}, batch of {size}", times[1][size]
            if before is None or after is None:
                rows.append((name, "not timed", "not timed", f"over {PATIENCE:.0f} s"))
            else:
                rows.append((name, *map(numbers.significant, (before, after)), "" if equal else _share(before, after)))
    return rows


def _metric_rows(
    figures: Sequence[ModelFigures], significance: Mapping[str, Any] | None, task: Task | None
) -> list[Sequence[str]]:
    """Return the rows of the task's metrics, one with the interval of its change."""
    rows: list[Sequence[str]] = []
    for name, after in ({} if task is None else printed_metrics(figures[1].metrics, task)).items():
        before = figures[0].metrics.get(name)
        change = "" if before is None else f"{after - before:+.3g}"
        if significance is not None and name == significance["metric"]:
            change = f"{change} (95 %: {significance['low']:+.3g} to {significance['high']:+.3g})"
        rows.append((name, numbers.significant(before), numbers.significant(after), change))
    return rows


def _with_quantized(table: Table, kind: str, quantized: Mapping[str, Any], task: Task | None) -> Table:
    """Return the table with a column of the quantised graph."""
    times = {f"ms in onnxruntime, batch of {size}": time for size, time in quantized.get("milliseconds", {}).items()}
    metrics = {} if task is None else printed_metrics(quantized.get("metrics", {}), task)
    cells = {name: numbers.significant(value) for name, value in (times | metrics).items() if value is not None}
    cells["file of weights"] = numbers.size(quantized["bytes"])
    rows = [[*row, cells.get(row[0], "")] for row in table.rows]
    return dataclasses.replace(table, columns=[*table.columns, Column(kind)], rows=rows)


def _share(before: float, after: float) -> str:
    return f"{after / before - 1.0:+.0%}" if before and after != before else ""


def with_output_of(model: Model, changed: Model) -> Model:
    """Return a model that was changed with a task's output with the output that it came with."""
    config: Any = changed.config
    if hasattr(model.config, "task"):
        config = dataclasses.replace(config, task=model.config.task)
    return model.replace(config=config, params=changed.params, history=changed.history)
