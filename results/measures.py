"""From a row of a claim to its number, interval and verdict; results/claims.toml has the rows."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from results.table import Row, read, select
from results.verdicts import NORMAL, Bound, Estimate, Sample, Verdict, over_seeds_and_examples, share, verdict

FILE = Path(__file__).parent / "claims.toml"

Where = Mapping[str, str]


class Form(NamedTuple):
    """How a number is written.

    Attributes:
        unit: What stands behind it.
        digits: Decimals.
        transform: From the raw number.
        sign: "+" where plus is written, too.
    """

    unit: str
    digits: int
    transform: Callable[[float], float] = float
    sign: str = ""


FORMS = {
    "points lost": Form("points lost", 2, lambda value: -100.0 * value),
    "lost": Form("lost", 4, lambda value: -value),
    "times": Form("times", 3, lambda value: float(np.exp(value))),
    "BLEU": Form("BLEU", 2, sign="+"),
    "nats": Form("nats", 3, sign="+"),
    "number": Form("", 2),
}
"""Forms by name; bounds of claims are in their units."""


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One measurement of a claim.

    Attributes:
        setting: What was measured, and what is claimed of it.
        data: Experiment.
        metric, where: Which of its rows; the mean over draws, then over seeds.
        against: Rows that are taken away, paired by seed.
        form: How the number is written.
        log: Whether the logarithms of the values are compared.
        measure: `mean`; `share` of items within `at_least` and `within`; `correlation` over heads.
        exact: Whether the items of a share have no error of measurement.
        what: What the items are.
        least, most: Bound of the claim.
    """

    setting: str
    data: str
    metric: str
    where: Where
    form: str
    against: Where = field(default_factory=dict)
    log: bool = False
    measure: str = "mean"
    within: float = np.inf
    at_least: float = -np.inf
    exact: bool = False
    what: str = ""
    least: float = -np.inf
    most: float = np.inf


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and its measurements.

    Attributes:
        name: Its name.
        heading: Heading of its section.
        source: Who says it.
        says: The claim.
        reading: What the measurements say beside their verdicts.
        rows: Measurements.
    """

    name: str
    heading: str
    source: str
    says: str
    reading: str = ""
    rows: tuple[ClaimRow, ...] = field(default=())


class Found(NamedTuple):
    """A measurement and its verdict.

    Attributes:
        estimate: The number and its interval, in the units of the row's form.
        verdict: What follows for the claim.
        text: The number as it is printed.
        needed: Half width of an interval that would decide, where none did: the distance to the bound.
    """

    estimate: Estimate
    verdict: Verdict
    text: str
    needed: str = ""


@cache
def document() -> Mapping[str, Any]:
    """Return claims.toml."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims, in the order of the page."""
    return tuple(
        Claim(**{**claim, "rows": tuple(ClaimRow(**row) for row in claim["rows"])}) for claim in document()["claims"]
    )


def samples(data: str, metric: str, where: Where, *, log: bool = False) -> dict[str, Sample]:
    """Return a metric by seed, the mean over draws."""
    groups: dict[str, list[Row]] = {}
    for row in select(read(data), {"metric": metric, **where}):
        groups.setdefault(row.seed, []).append(row)
    if not groups:
        raise ValueError(f"{data}: no {metric} of {dict(where)}")
    return {seed: _mean(rows, log=log) for seed, rows in groups.items()}


def _mean(rows: Sequence[Row], *, log: bool = False) -> Sample:
    values = np.array([row[8:11] for row in rows])
    return Sample(*(np.log(values) if log else values).mean(axis=0).tolist())


def difference(first: Sample, second: Sample) -> Sample:
    """Return a difference; its interval takes both examples' errors for independent, which paired ones are not."""
    half = NORMAL * np.sqrt(first.variance + second.variance)
    gap = first.value - second.value
    return Sample(gap, gap - half, gap + half)


def measure(row: ClaimRow) -> Found:
    """Return a row's number, interval and verdict."""
    if row.measure == "mean":
        estimate, text = _compared(row)
    elif row.measure == "correlation":
        estimate, text = _correlation(row)
    else:
        estimate, text = _share(row)
    judged = verdict(estimate, Bound(row.least, row.most))
    needed = ""
    if judged == "not decided" and row.measure != "share":
        distance = min(abs(estimate.value - row.least), abs(estimate.value - row.most))
        needed = f"±{written(distance, FORMS[row.form]._replace(sign=''))}"
    return Found(estimate, judged, text, needed)


def _compared(row: ClaimRow) -> tuple[Estimate, str]:
    form = FORMS[row.form]
    own = samples(row.data, row.metric, row.where, log=row.log)
    means = ""
    if row.against:
        other = samples(row.data, row.metric, row.against, log=row.log)
        seeds = [seed for seed in own if seed in other]
        both = [[each[seed].value for seed in seeds] for each in (own, other)]
        if row.form != "times":
            means = " against ".join(written(float(np.mean(each)), form._replace(sign="")) for each in both) + ": "
        paired = [difference(own[seed], other[seed]) for seed in seeds]
    else:
        paired = list(own.values())
    estimate = _estimate(row, over_seeds_and_examples(paired), paired)
    return estimate, f"{means}{interval(estimate, form)}"


def _estimate(row: ClaimRow, found: tuple[float, float, float], paired: Sequence[Sample]) -> Estimate:
    value, *ends = (FORMS[row.form].transform(each) for each in found)
    over = [f"{len(paired)} seeds"] if len(paired) > 1 else []
    if np.isfinite([sample.variance for sample in paired]).all():
        over.append(experiment(row.data)["examples"])
    return Estimate(value, min(ends), max(ends), " x ".join(over))


def experiment(name: str) -> Mapping[str, str]:
    """Return what claims.toml says of an experiment."""
    found: Mapping[str, str] = document()["experiments"][name]
    return found


def interval(found: Estimate, form: Form) -> str:
    """Return a number with its interval and what that covers, as pages print it."""
    text = written(found.value, form)
    if np.isfinite(found.low):
        text += f" ({written(found.low, form)} to {written(found.high, form)})"
    return ", ".join(filter(None, (f"{text} {form.unit}".strip(), found.over)))


def written(value: float, form: Form) -> str:
    """Return a number as a form has it."""
    return f"{0.0 + round(value, form.digits):{form.sign}.{form.digits}f}"  # no -0.00


def _share(row: ClaimRow) -> tuple[Estimate, str]:
    """Return the share of items within a bound."""
    items = _items(row)
    within, surely, possibly = share(items, Bound(row.at_least, row.within), exact=row.exact)
    counts = [round(each * len(items)) for each in (within, surely, possibly)]
    sure = "" if row.exact else f"; surely {counts[1]}, possibly {counts[2]}"
    return Estimate(within, surely, possibly), f"{counts[0]} of {len(items)} {row.what}{sure}"


def _items(row: ClaimRow) -> list[Sample]:
    """Return the number of each setting, seed and head, the mean over draws, in the units of the form."""
    groups: dict[tuple[str, str, str], list[Sample]] = {}
    for each in select(read(row.data), {"metric": row.metric, **row.where}):
        groups.setdefault((each.setting, each.seed, each.head), []).append(Sample(*each[8:11]))
    transform, items = FORMS[row.form].transform, []
    for found in groups.values():
        value, *ends = (transform(each) for each in over_seeds_and_examples(found))
        items.append(Sample(value, *sorted(ends)))
    return items


def _correlation(row: ClaimRow) -> tuple[Estimate, str]:
    """Return Pearson's r between items' numbers in two settings, of each seed; intervals are Fisher's over the items.

    Items are told apart by their column `head`; a setting may name a metric of its own.
    """
    pairs: dict[str, list[list[float]]] = {}
    effects = [
        {(each.seed, each.head): each.value for each in select(read(row.data), {"metric": row.metric, **where})}
        for where in (row.where, row.against)
    ]
    for seed, head in effects[0]:
        pairs.setdefault(seed, []).append([each[seed, head] for each in effects])
    found = []
    for heads in pairs.values():
        test = stats.pearsonr(*np.transpose(heads))
        ends = test.confidence_interval()
        found.append(Sample(float(test.statistic), float(ends.low), float(ends.high)))
    value, low, high = over_seeds_and_examples(found)
    over = [f"{len(found)} seeds"] if len(found) > 1 else []
    estimate = Estimate(value, low, high, " x ".join([*over, f"{len(heads)} {row.what or 'heads'}"]))
    return estimate, f"r = {interval(estimate, FORMS[row.form])}"
