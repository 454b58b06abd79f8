"""Results of commands, of which the JSON, the table for people and the reference are made; and models they wrote.

A field is a key of the JSON. One with a label is a row of the table, one that is said stands in the last line. Every
command that makes a model ends in `finish`, a table of the model before and after.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headjax.commands.graphs import check_quantize, graphs_of, written_graph
from headjax.commands.inputs import printed_metrics
from headjax.commands.options import LENGTHS, WritingOptions
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress
from headjax.core.serialize import parse_docstring
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Evaluation, Task
    from headjax.models.config import Batch, ModelConfig, Output
    from headjax.models.model import Model

ABSENT: Any = type("Absent", (), {"__bool__": lambda self: False})()
"""A value that was not asked for; its key is absent."""


class Field(NamedTuple):
    """Facts about a field of a result, see `key`."""

    help: str
    label: str
    form: numbers.Format
    said: str


def key(
    help: str = "",
    label: str = "",
    form: numbers.Format = numbers.text,
    *,
    said: str = "",
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field of a result."""
    return dataclasses.field(default=default, metadata={"key": Field(help, label, form, said)})


def record(name: str) -> Any:
    """Declare a field that holds a record of the library, `module.Class`; the record's fields are keys of the result.

    A name, so that a refused command does not import the module.
    """
    return dataclasses.field(metadata={"record": name})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    title: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Return the data that `--json` writes."""
        data: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if "record" in field.metadata:
                data |= plain(value)
            elif "key" in field.metadata and value is not ABSENT:
                data[field.name] = plain(value)
        return data

    def tables(self) -> Sequence[Table]:
        """Return the tables that are printed."""
        return [self.summary()]

    def summary(self, *more: tuple[str, str]) -> Table:
        """Return the labelled fields and more rows under the title, but for those without a value or text."""
        values = [(field, getattr(self, name)) for name, field in fields_of(type(self)).items() if field.label]
        rows = [(field.label, field.form(value)) for field, value in values if value not in (ABSENT, None)]
        rows = [row for row in (*rows, *more) if row[1]]
        return Table((Column(self.title), Column("")), rows)

    def message(self) -> str:
        """Return the last line, such as where the output went."""
        values = [(field, getattr(self, name)) for name, field in fields_of(type(self)).items() if field.said]
        return "; ".join(f"{field.said}: {field.form(value)}" for field, value in values if value)

    @property
    def exit_code(self) -> int:
        """Exit code of the command line; not 0 where the command did its work and the outcome is bad."""
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplesResult(CommandResult):
    """A result on the examples of a task."""

    selection: Mapping[str, Any] | None = key(default=None)
    evaluation: Mapping[str, Any] | None = key(default=None)
    about: Sequence[str] = ()


def fields_of(cls: type) -> dict[str, Field]:
    """Return the declared fields of a result by name."""
    return {each.name: each.metadata["key"] for each in dataclasses.fields(cls) if "key" in each.metadata}


def keys_of(cls: type) -> dict[str, str]:
    """Return the keys of a result's JSON and what they mean, those of its records by the records' docstrings."""
    meanings: dict[str, str] = {}
    for field in dataclasses.fields(cls):
        if "record" in field.metadata:
            module, _, name = field.metadata["record"].rpartition(".")
            of = getattr(importlib.import_module(module), name)
            meanings |= {**dict.fromkeys(of._fields, ""), **parse_docstring(of.__doc__).meanings}
        elif "key" in field.metadata:
            meanings[field.name] = field.metadata["key"].help
    return meanings


def plain(value: Any) -> Any:
    """Return a value as JSON data: named tuples and dataclasses by their fields, heads, layers and paths as text."""
    if hasattr(value, "parse") or isinstance(value, os.PathLike):
        return str(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _key(key: Any) -> str:
    return "/".join(map(str, key)) if isinstance(key, tuple) and not hasattr(key, "parse") else str(key)


def table_of(columns: Mapping[str, Column], rows: Sequence[Any], title: str = "", notes: Sequence[str] = ()) -> Table:
    """Return a table of values by name: attributes of the rows, or their entries; missing ones are a dash."""
    cells = [
        [row.get(name) if isinstance(row, Mapping) else getattr(row, name, None) for name in columns] for row in rows
    ]
    return Table(tuple(columns.values()), cells, title=title, notes=tuple(notes))


# Models.

BATCHES = (1, 32)
"""Numbers of examples whose forward pass is timed."""

TOKENS = 32
"""Most tokens of a timed example."""

TURNS = range(3, 16)
"""Timed calls of each model, after one that compiles; those of a quick model are more. Medians count."""

PATIENCE = 20.0
"""Seconds that the calls of one batch size may take; what would take longer is not timed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelResult(CommandResult):
    """A model that a command has made of another one."""

    parameters: int = key(default=ABSENT)
    parameters_before: int = key(default=ABSENT)
    bytes: int = key("of the files of the weights", default=ABSENT)
    bytes_before: int = key(default=ABSENT)
    cache_bytes_per_token: int = key("of a decoder", default=ABSENT)
    cache_bytes_per_token_before: int = key(default=ABSENT)
    milliseconds: Mapping[str, float | None] = key(
        "of a forward pass of 1 and 32 examples, medians; null where they would take too long", default=ABSENT
    )
    milliseconds_before: Mapping[str, float | None] = key(default=ABSENT)
    milliseconds_onnxruntime: Mapping[str, float | None] = key(
        "the same in onnxruntime, of an encoder where it is installed", default=ABSENT
    )
    milliseconds_onnxruntime_before: Mapping[str, float | None] = key(default=ABSENT)
    quantized: Mapping[str, Any] = key(
        "with `--quantize`: `file`, its `bytes`, `milliseconds` in onnxruntime and, with a task, `metrics`",
        default=ABSENT,
    )
    processor: str = key("that was timed", default=ABSENT)
    metrics: Mapping[str, float] = key("with a task", default=ABSENT)
    metrics_before: Mapping[str, float] = key(default=ABSENT)
    significance: Any = key(
        "of the change of a `metric`: `difference`, `p_value`, `low` and `high` (95 %) by the paired `test`; null "
        "without two models on a task",
        default=ABSENT,
    )
    model: str | None = key("its folder", default=ABSENT)
    load: str = key("Python expression that loads it", default=ABSENT)
    ending: Table | None = None
    written: str = ""

    def message(self) -> str:
        return "\n".join(filter(None, (self.written, super().message(), self.load and f"load it: {self.load}")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangedResult(ModelResult, ExamplesResult):
    """A changed model, and the one before."""

    exports: Sequence[str] = key("layouts of Hugging Face directories that the plan promised")
    ending: Table

    def comparison(self) -> Table:
        """Return the table of both models, with notes on the examples that were read."""
        return dataclasses.replace(self.ending, notes=(*self.ending.notes, *self.about))


def planned_exports(options: WritingOptions, model: Model, config: ModelConfig) -> list[str]:
    """Tell before the work which layouts express an architecture made of a model; refuse a directory that none does."""
    from headjax.hub.exporting import layouts_after

    check_quantize(options, model, config)
    refused = layouts_after(model, config)
    layouts = [name for name, why in refused.items() if not why]
    reasons = "; ".join(f"not {name}: {why}" for name, why in refused.items() if why)
    option = options.kind_option()
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
    *,
    task: Task | None = None,
    evaluations: Sequence[Evaluation] | None = None,
    written: str | None = None,
) -> dict[str, Any]:
    """Evaluate both models unless it was done, write the new one, time both, and return the fields of `ModelResult`."""
    from headjax.core.tensors import count
    from headjax.core.timing import processor
    from headjax.hub.either import bytes_of_weights, loading
    from headjax.models.summary import summarize

    models = (before, after)
    evaluations = evaluate_each(models, task, options, progress) if evaluations is None else evaluations
    written = options.write(after, progress) if written is None else written
    own = {
        "parameters": [count(model.config.tensors()) for model in models],
        "bytes": [bytes_of_weights(path) for path in (options.model, options.out)],
        "cache_bytes_per_token": [summarize(model.config, 1).cache_bytes_per_token for model in models],
    }
    times = milliseconds(models, progress)
    graphs = graphs_of((before, after if task is None else task.fit(after)), options)
    graph_times = milliseconds((*models, after)[: len(graphs)], progress, [graph.run for graph in graphs])
    quantized = written_graph(options.out, options.quantize)
    if quantized and graphs:
        judged = evaluate_each((after,), task, options, progress, forward=graphs[2])
        quantized |= {"milliseconds": graph_times[2], "metrics": judged[0].metrics if judged else {}}
    metrics = [evaluation.metrics for evaluation in evaluations]
    metrics = [*({} for _ in models[len(metrics) :]), *metrics]
    significance = _significance(evaluations, task)
    if not any(own["cache_bytes_per_token"]):
        del own["cache_bytes_per_token"]
    fields: dict[str, Any] = own | {"milliseconds": times, "metrics": metrics}
    if graphs:
        fields["milliseconds_onnxruntime"] = graph_times[:2]
    timed = f"Times are medians of forward passes in turns, of texts of at most {TOKENS} tokens, on {processor()}."
    equal = before.config.stacks() == after.config.stacks()  # so that their times differ by noise alone
    rows = [*_sizes(models, own), *_times(times, equal), *_times(graph_times, equal, " in onnxruntime")]
    rows += _metrics(metrics, significance, task)
    columns = [Column(""), Column("Before"), Column("After"), Column("Change")]
    if quantized:
        cells = _in_int8(quantized, task)
        columns, rows = [*columns, Column(options.quantize or "")], [[*row, cells.get(row[0], "")] for row in rows]
    table = Table(tuple(columns), rows, notes=(timed, *(evaluations[-1].notes if evaluations else ())))
    return {
        **{name: after for name, (_, after) in fields.items()},
        **{f"{name}_before": before for name, (before, _) in fields.items()},
        **({"quantized": quantized} if quantized else {}),
        "processor": processor(),
        "significance": significance,
        "model": str(options.out),
        "load": loading(options.out),
        "ending": table,
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
    names = {"limit": "limit", "batch_size": "batch_size", "buckets": "lengths"}
    chosen: Any = {"buckets": LENGTHS} | {
        name: getattr(options, own) for name, own in names.items() if hasattr(options, own)
    }
    batches = task.count_batches(**chosen)

    def evaluated(number: int, model: Model) -> Evaluation:
        title = f"evaluating model {number} of {len(models)}" if len(models) > 1 else "evaluating"
        with progress(title, batches, "batch") as bar:
            return measure_task(model, task, forward=forward, progress=bar, **chosen)

    return [evaluated(number, model) for number, model in enumerate(models, start=1)]


def milliseconds(
    models: Sequence[Model], progress: Progress, forwards: Sequence[Callable[[Batch], Any]] = ()
) -> tuple[dict[str, float | None], ...]:
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
                    medians = [1e3 * statistics.median(own) for own in turns.values()]
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


def _significance(evaluations: Sequence[Evaluation], task: Task | None) -> dict[str, Any] | None:
    """Return the paired test of the primary metric, or of its loss; None without two examples."""
    from headjax.evaluation.paired import RESAMPLES, paired_test

    if task is None or len(evaluations) < 2 or evaluations[0].examples < 2:
        return None
    name, test = paired_test(evaluations[0].outcomes, task.measure, RESAMPLES)
    metric = "loss" if task.measure.kind == "sum" else task.primary_metric
    return {"metric": metric, "test": name, **test(evaluations[1].outcomes)._asdict()}


def _sizes(models: Sequence[Model], own: Mapping[str, Sequence[int]]) -> list[Sequence[str]]:
    """Return the rows of heads, units, parameters and bytes."""
    from headjax.heads.head_id import all_heads

    units = [
        sum(layer.hidden for stack in model.config.stacks().values() for layer in stack.layers) for model in models
    ]
    rows: dict[str, tuple[Sequence[int], numbers.Format]] = {
        "heads": ([len(all_heads(model.config)) for model in models], numbers.number),
        **({"feed-forward units": (units, numbers.number)} if units[0] != units[1] else {}),
        "parameters": (own["parameters"], numbers.number),
        "file of weights": (own["bytes"], numbers.size),
    }
    if "cache_bytes_per_token" in own:
        rows["KV cache a token"] = own["cache_bytes_per_token"], numbers.size
    return [(name, *map(form, values), _share(*values)) for name, (values, form) in rows.items()]


def _times(times: Sequence[Mapping[str, float | None]], equal: bool, where: str = "") -> list[Sequence[str]]:
    """Return the rows of milliseconds, if any; the change of equal layers is not shown."""
    rows: list[Sequence[str]] = []
    for size, before in times[0].items() if times else ():
        name, after = f"ms{where}, batch of {size}", times[1][size]
        if before is None or after is None:
            rows.append((name, "not timed", "not timed", f"over {PATIENCE:.0f} s"))
        else:
            rows.append((name, *map(numbers.significant, (before, after)), "" if equal else _share(before, after)))
    return rows


def _in_int8(quantized: Mapping[str, Any], task: Task | None) -> dict[str, str]:
    """Return the cells of a quantised graph by row."""
    times = {f"ms in onnxruntime, batch of {size}": time for size, time in quantized.get("milliseconds", {}).items()}
    metrics = {} if task is None else printed_metrics(quantized.get("metrics", {}), task)
    cells = {name: numbers.significant(value) for name, value in (times | metrics).items() if value is not None}
    return {"file of weights": numbers.size(quantized["bytes"]), **cells}


def _metrics(
    metrics: Sequence[Mapping[str, float]], significance: Mapping[str, Any] | None, task: Task | None
) -> list[Sequence[str]]:
    """Return the rows of the task's metrics, one with the interval of its change."""
    if task is None:
        return []
    rows: list[Sequence[str]] = []
    for name, after in printed_metrics(metrics[1], task).items():
        before = metrics[0].get(name)
        change = "" if before is None else f"{after - before:+.3g}"
        if significance is not None and name == significance["metric"]:
            change = f"{change} (95 %: {significance['low']:+.3g} to {significance['high']:+.3g})"
        rows.append((name, numbers.significant(before), numbers.significant(after), change))
    return rows


def _share(before: float, after: float) -> str:
    return f"{after / before - 1.0:+.0%}" if before and after != before else ""
