"""Keep the JSON of commands as raw results.

    python -m results.collect NAME MODEL [MODEL ...]     # writes results/measurements/NAME.csv

A MODEL is the files of one trained model, joined by commas: what `results.removals`, `results.conversions`,
`results.grid`, `headjax ablate` or `python -m benchmarks scaling` wrote. Models are seeds 0, 1,
...; a grid's runs have seeds of their own.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results.table import Row, write

Json = Mapping[str, Any]


def collect(name: str, models: Sequence[str]) -> Path:
    """Write the raw results of an experiment; a later number takes the place of an earlier one."""
    rows: dict[tuple[object, ...], Row] = {}
    for seed, files in enumerate(models):
        for file in files.split(","):
            found = json.loads(Path(file).read_text(encoding="utf-8"))
            for row in rows_of(found, str(seed) if len(models) > 1 else ""):
                rows[tuple(row[:8])] = row
    return write(name, rows.values())


def rows_of(found: Json, seed: str) -> Iterator[Row]:
    """Yield the numbers of a command's JSON."""
    if "removals" in found:
        return _removals(found, seed)
    if "trials" in found:
        return _conversions(found, seed)
    if "modes" in found:
        return _ablations(found, seed)
    if "curves" in found.get("ours", ()):
        return _curves(found["ours"]["curves"])
    if "results" in found:
        return _runs(found)
    raise ValueError(f"no command wrote this: {', '.join(found)}")


def _paired(row: Row, metric: str, test: Json | None) -> Iterator[Row]:
    """Yield a paired test's difference with its interval."""
    if test is not None:
        numbers = {"value": test["difference"], "low": test["low"], "high": test["high"], "p": test["p_value"]}
        yield row._replace(metric=metric, seconds=math.nan, **numbers)


def _tested(headline: str) -> str:
    """Return the metric whose per-example values are compared: of perplexities their logarithm, the loss."""
    return "loss" if headline == "perplexity" else headline


def _removals(found: Json, seed: str) -> Iterator[Row]:
    headline = found["headline"]
    for metric, value in found["baseline"].items():
        yield Row(seed=seed, share="0%", metric=metric, value=value)
    ordered = set()
    for trial in found["removals"]:
        row = Row("", seed, str(trial["draw"]), trial["order"], trial["remove"], trial["repair"])
        order = (trial["order"], trial["draw"])
        seconds = trial["repair_seconds"] + (0.0 if order in ordered else trial["order_seconds"])
        ordered.add(order)
        for metric, value in trial["metrics"].items():
            yield row._replace(metric=metric, value=value, seconds=seconds if metric == headline else math.nan)
        yield row._replace(metric=found["agreement"], value=trial["agreement"])
        yield from _paired(row, f"{_tested(headline)} change", trial["against_whole"])
        yield from _paired(row, f"{_tested(headline)} gain", trial["against_none"])


def _conversions(found: Json, seed: str) -> Iterator[Row]:
    for trial in found["trials"]:
        row = Row(trial["to"], seed, repair=trial["variant"])
        for metric in ("parameters", "cache", "logit_error"):
            yield row._replace(metric=metric, value=float(trial[metric]))
        for metric, value in trial["metrics"].items():
            yield row._replace(metric=metric, value=value)
        yield from _paired(row, f"{_tested(found['headline'])} change", trial["against_original"])


def _ablations(found: Json, seed: str) -> Iterator[Row]:
    for mode, effects in found["modes"].items():
        for head, effect in effects["effect"].items():
            low, high = (effects.get(end, {}).get(head, math.nan) for end in ("low", "high"))
            numbers = {"value": effect, "low": low, "high": high, "p": effects["p_value"][head]}
            yield Row(mode, seed, head=head, metric=f"{found['metric']} change", **numbers)
            loss = effects.get("effects", {}).get("loss", {}).get(head)
            if loss is not None:
                yield Row(mode, seed, head=head, metric="ratio of exp(loss)", value=float(np.exp(loss)))


def _runs(found: Json) -> Iterator[Row]:
    for run in found["results"]:
        row = Row(settings(run["settings"]), str(run["seed"]))
        if run["diverged"] is not None:
            yield row._replace(metric="diverged", value=1.0, seconds=run["seconds"])
            continue
        for metric, value in run["metrics"].items():
            yield row._replace(metric=metric, value=value, seconds=run["seconds"] if metric == "loss" else math.nan)


def settings(values: Mapping[str, str]) -> str:
    """Return settings of a grid as the table names them."""
    return ",".join(f"{name}={value}" for name, value in values.items())


def _curves(curves: Mapping[str, Mapping[str, Json]]) -> Iterator[Row]:
    """Yield the exponents by which costs grow, each turn's less that of the FLOPs."""
    for operation, factors in curves.items():
        for factor, curve in factors.items():
            x = np.log(curve["values"])
            counted = float(np.polyfit(x, np.log(curve["flops"]), 1)[0])
            row = Row(f"{operation},{factor}", metric="exponent over that of FLOPs")
            for draw, turn in enumerate(zip(*curve["seconds"], strict=True)):
                exponent = float(np.polyfit(x, np.log(turn), 1)[0])
                yield row._replace(draw=str(draw), value=exponent - counted, seconds=sum(turn))
            yield row._replace(metric="exponent of FLOPs", value=counted)


if __name__ == "__main__":
    print(collect(sys.argv[1], sys.argv[2:]))
