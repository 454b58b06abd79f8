"""Cost curves: how time and memory grow with one factor at a time; raw results of `headjax bench scaling`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.scaling import plot
from benchmarks.scaling import table as curves_table
from docs.measures import RAW, Found, duration, raw, rounded


def keep(name: str, found: Mapping[str, Any]) -> Path:
    """Write the curves of `headjax bench scaling`, and draw them."""
    file, kept = RAW / f"scaling_{name}.json", rounded({"machine": found["machine"], "ours": found["ours"]})
    curves = kept["ours"].pop("curves")
    head = json.dumps(kept, indent=1).removesuffix("\n }\n}")
    lines = ",\n".join(f"{json.dumps(operation)}: {json.dumps(each)}" for operation, each in curves.items())
    file.write_text(f'{head},\n  "curves": {{\n{lines}\n  }}\n }}\n}}\n')
    kept["ours"]["curves"] = curves
    (RAW.parent / f"scaling_{name}.png").write_bytes(plot(kept["ours"]).png(dpi=100))
    return file


def table(found: Mapping[str, Any]) -> str:
    """Return the table of slopes, and the machine that they were measured on."""
    made = curves_table(found["ours"])
    heading = f"| {' | '.join(column.title for column in made.columns)} |"
    rows = [f"| {' | '.join(cell.text for cell in row)} |" for row in made.cells()]
    machine = found["machine"]
    loads = f"load {machine['load_before']:.1f} before and {machine['load_after']:.1f} after"
    where = f"{machine['processor_model']} ({' '.join(machine['instruction_sets'])}), {machine['usable_cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    notes = [f"* {note}" for note in (f"{where}, {loads}; {versions}.", *made.notes)]
    return "\n".join([heading, "|---" * len(made.columns) + "|", *rows, "", *notes])


def grows_as_counted(name: str) -> Found:
    """Return how many curves grow with the exponent that the operations have, to `TOLERANCE` or their own spread."""
    curves = [curve for factors in raw(name)["ours"]["curves"].values() for curve in factors.values()]
    gaps = sorted(abs(curve["slope"]["median"] - curve["predicted_slope"]) for curve in curves)
    counted = sum(not curve["departs"] for curve in curves)
    number = (
        f"{counted} of {len(curves)} curves; exponents {gaps[len(gaps) // 2]:.2f} apart (median), {gaps[-1]:.2f} (most)"
    )
    return Found(number, "held" if counted == len(curves) else "did not hold")


def time(name: str) -> str:
    """Return the time of the calls that were measured."""
    factors = [curve for curves in raw(name)["ours"]["curves"].values() for curve in curves.values()]
    return f"{duration(sum(sum(map(sum, curve['seconds'])) for curve in factors))} of calls"
