"""`headjax predict`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from headjax.commands.options import MODEL, ReadingOptions, argument, by_field, option
from headjax.commands.outputs import CommandResult, key
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table
from headjax.storage.files import json_text, write_file
from headjax.storage.paths import path_of

SHOWN = 20
"""Number of predictions that are printed."""


class Options(ReadingOptions):
    model: str = argument("MODEL", MODEL, reads="model")
    task: str = option(
        "", "task name, a table (labels may be missing), squad:FILE, or a text with an example a line", "TASK",
        reads="task",
    )  # fmt: skip
    text: tuple[str, ...] = option((), "a text, instead of --task; can be repeated", "TEXT", words="repeated")
    out: str = option(
        "", "write the predictions, as TSV or JSON lines by the ending", "FILE.tsv|FILE.jsonl", writes="file"
    )
    beams: Size = option(4, "beam size of translations")
    prompt: str | None = option(None, "prompt before sentences; empty for none (default: the model's)", "NAME")


class Result(CommandResult):
    predictions: Sequence[Mapping[str, Any]] = key("by example; the keys are those of the model's output")
    examples: int = key()
    model: str = key()
    out: str

    def tables(self) -> Sequence[Table]:
        rows = self.predictions
        names = [name for name in rows[0] if name != "probabilities"]
        notes = [f"{len(rows):,} examples" + (f", the first {SHOWN} shown." if len(rows) > SHOWN else ".")]
        if "embedding" in names or "similarity" in names:
            notes.append("Embeddings are pooled as the model says, else the mean of the last layer over the tokens.")
        cells = [[_cell(row[name]) for name in names] for row in rows[:SHOWN]]
        return [Table([Column(name) for name in names], cells, notes=notes)]

    def message(self) -> str:
        return f"predictions: {self.out}" if self.out else ""


def run(options: Options, progress: Progress) -> Result:
    """Labels and probabilities, numbers, answers, translations or embeddings."""
    if bool(options.task) == bool(options.text):
        raise HeadjaxError("--task: give a task or file, or a text with --text, one of them")
    if options.out and path_of(options.out).suffix not in WRITERS:
        raise HeadjaxError(f"--out: expected a name that ends in {' or '.join(WRITERS)}, got {options.out!r}")

    from headjax.evaluation.predictions import Inputs, predict, predict_images, read_inputs
    from headjax.hub.either import read_model

    model = read_model(options.model)
    inputs = Inputs(options.text) if options.text else read_inputs(options.task, by_field(options.columns))
    length = options.length or 0
    if inputs is None:
        made = predict_images(model, options.task, length=length, limit=options.limit, batch_size=options.batch_size)
    else:
        some = inputs.first(options.limit)
        with progress("predicting", -(-len(some.texts) // options.batch_size), "batch") as bar:
            choices: dict[str, Any] = {"length": length, "batch_size": options.batch_size, "beams": options.beams}
            made = predict(model, some, **choices, prompt=options.prompt, progress=bar)
    for row in made:
        if "probability" in row:
            row["probability"] = round(row["probability"], 4)
        if "probabilities" in row:
            row["probabilities"] = {label: round(share, 4) for label, share in row["probabilities"].items()}
    if options.out:
        write_file(path_of(options.out), WRITERS[path_of(options.out).suffix](made).encode())
    return Result(predictions=made, examples=len(made), model=options.model, out=options.out)


def _cell(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], float):
        return " ".join(f"{one:.3g}" for one in value[:4]) + (f" ... ({len(value)} numbers)" if len(value) > 4 else "")
    if isinstance(value, list):
        return " ".join("/".join(map(str, one)) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_tsv(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a column for each class; tabs and line ends become spaces, quotation marks quoted."""
    rows = [
        {name: value for name, value in row.items() if name != "probabilities"}
        | {f"p({name})": value for name, value in row.get("probabilities", {}).items()}
        for row in found
    ]
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        cells = (one if isinstance(one, str) else json_text(one, ensure_ascii=False) for one in row.values())
        writer.writerow([" ".join(cell.split()) for cell in cells])
    return text.getvalue()


WRITERS = {
    ".tsv": _as_tsv,
    ".jsonl": lambda rows: "".join(json_text(row, ensure_ascii=False) + "\n" for row in rows),
}
"""Functions from predictions to the text of a file, by its suffix."""
