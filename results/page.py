"""RESULTS.md and its appendix, docs/results.md, from claims.toml and the raw results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from results.measures import FORMS, Claim, ClaimRow, Found, claims, document, experiment, measure
from results.plots import PLOTS
from results.verdicts import Verdict

ROOT = Path(__file__).parents[1]
PAGE, APPENDIX, PICTURES = ROOT / "RESULTS.md", ROOT / "docs" / "results.md", ROOT / "docs" / "plots"

HEADINGS: Mapping[Verdict, str] = {
    "held": "What you can count on",
    "did not hold": "What was not reproduced",
    "not decided": "What is not decided",
}
"""Parts of RESULTS.md, by the verdict on a finding's measurement."""

FILLED = 0.6
"""Share of the cells that a table of places and statements must fill."""


def results() -> str:
    """Return RESULTS.md: limits, findings by verdict, and figures."""
    found = document()["page"]
    rows: dict[Verdict, list[tuple[str, ...]]] = {verdict: [] for verdict in HEADINGS}
    for finding in found["findings"]:
        claim = next(claim for claim in claims() if claim.name == finding["claim"])
        measured = measure(claim.rows[finding.get("row", 0)])
        says = f"[{finding['says']}](docs/results.md#{anchor(claim.heading)})"
        counts = _counts(measure(each) for each in claim.rows)
        needed = f"; {measured.needed} would decide" if measured.needed else ""
        here = f"{finding['here']}: {measured.text}{needed}"
        rows[measured.verdict].append((says, claim.source, here, counts))
    header = ("finding", "of", "here (95 % interval)", "all measurements")
    tables = [f"## {HEADINGS[verdict]}\n\n{table(header, lines)}" for verdict, lines in rows.items()]
    figures = [f"![{PLOTS[name]().alt}](docs/plots/{name}.png)\n\n{text}" for name, text in found["figures"].items()]
    parts = ["# Results", found["limits"].strip(), *tables, "## Figures", *figures, found["end"].strip()]
    return "\n\n".join(parts) + "\n"


def appendix() -> str:
    """Return docs/results.md: every claim with all its measurements."""
    found = {claim.name: [measure(row) for row in claim.rows] for claim in claims()}
    every = [each for several in found.values() for each in several]
    intro = f"{len(found)} claims, {len(every)} measurements: {_counts(every)}."
    parts = ["# All measurements", document()["page"]["rules"].strip(), intro]
    shown: set[str] = set()
    for claim in claims():
        parts += section(claim, found[claim.name], shown)
    return "\n\n".join(parts) + "\n"


def _counts(found: Iterable[Found]) -> str:
    counts = Counter(each.verdict for each in found)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in HEADINGS if counts[verdict])


def section(claim: Claim, found: Sequence[Found], shown: set[str]) -> list[str]:
    """Return a claim's heading, its measurements, and notes on experiments that no section has shown yet."""
    groups: dict[tuple[str, str], list[tuple[ClaimRow, Found]]] = {}
    for row, each in zip(claim.rows, found, strict=True):
        groups.setdefault((row.data, each.estimate.over), []).append((row, each))
    crossed = {key: rows for key, group in groups.items() if (rows := _crossed(group))}
    plain = [pair for key, group in groups.items() if key not in crossed for pair in group]
    parts = [f"## {claim.heading}", f"{claim.source}: *{claim.says}.* {claim.reading}".rstrip()]
    parts += [*crossed.values(), *([_listed(plain)] if plain else [])]
    names = [name for name in _experiments(claim.rows) if name not in shown]
    shown.update(names)
    return [*parts, *(note for name in names if (note := experiment(name).get("note", "")))]


def _listed(group: Sequence[tuple[ClaimRow, Found]]) -> str:
    """Return a table with a line for each measurement."""
    ending = _ending(group)
    rows = [(row.setting, each.text.removesuffix(ending), _verdict(each)) for row, each in group]
    return table(("setting", f"measured ({ending.strip(', ')})" if ending else "measured", "verdict"), rows)


def _crossed(group: Sequence[tuple[ClaimRow, Found]]) -> str:
    """Return a table of settings "PLACE: STATEMENT", by place and statement; nothing if it would be small or empty."""
    ending, cells = _ending(group), {}
    for row, each in group:
        place, _, statement = row.setting.rpartition(": ")
        cells[place, statement] = f"{each.text.removesuffix(ending)}, {_verdict(each)}"
    places, statements = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    filled = len(cells) >= FILLED * len(places) * len(statements)
    if min(len(places), len(statements)) < 2 or len(cells) < len(group) or not filled:
        return ""
    rows = [(place, *(cells.get((place, statement), "") for statement in statements)) for place in places]
    return table((ending.strip(" ,"), *statements), rows)


def _ending(group: Sequence[tuple[ClaimRow, Found]]) -> str:
    """Return the unit and the scope in which all numbers of a table end, or the scope alone, or nothing."""
    scopes = {f", {each.estimate.over}".removesuffix(", ") for _, each in group}
    endings = {f" {FORMS[row.form].unit}{scope}" for row, _ in group for scope in scopes}
    for ending in (*endings, *scopes) if len(scopes) == 1 else ():
        if all(each.text.endswith(ending) for _, each in group):
            return ending
    return ""


def _verdict(found: Found) -> str:
    return f"**{found.verdict}**" + (f": {found.needed}" if found.needed else "")


def _experiments(rows: Iterable[ClaimRow]) -> list[str]:
    return list(dict.fromkeys(row.data for row in rows))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = (f"| {' | '.join(line)} |" for line in rows)
    return "\n".join((f"| {' | '.join(header)} |", f"{'|---' * len(header)}|", *lines))


def anchor(heading: str) -> str:
    """Return the fragment by which GitHub and the site name a heading."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def draw() -> None:
    """Write both pages and all plots."""
    PAGE.write_text(results(), encoding="utf-8")
    APPENDIX.write_text(appendix(), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, plot in PLOTS.items():
        (PICTURES / f"{name}.png").write_bytes(plot().png())
