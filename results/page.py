"""RESULTS.md and its appendix, docs/results.md, from claims.toml and the raw results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from results.measures import Claim, ClaimRow, Found, claims, document, experiment, measure
from results.plots import PLOTS
from results.verdicts import Verdict

ROOT = Path(__file__).parents[1]
PAGE, APPENDIX, PICTURES = ROOT / "RESULTS.md", ROOT / "docs" / "results.md", ROOT / "docs" / "plots"

VERDICTS: Mapping[Verdict, str] = {
    "held": "reproduced",
    "did not hold": "not reproduced",
    "not decided": "not decided",
    "not comparable": "not comparable",
}
"""What a verdict on a measurement says of the paper's finding."""


def results() -> str:
    """Return RESULTS.md: limits, findings and figures."""
    found = document()["page"]
    rows = []
    for finding in found["findings"]:
        claim = next(claim for claim in claims() if claim.name == finding["claim"])
        row = claim.rows[finding.get("row", 0)]
        measured = measure(row)
        says = f"[{finding['says']}](docs/results.md#{anchor(claim.heading)})"
        verdict = f"**{VERDICTS[measured.verdict]}** ({_counts(measure(each) for each in claim.rows)})"
        rows.append((says, claim.source, f"{finding['here']}: {measured.text}", verdict))
    figures = [f"![{PLOTS[name]().alt}](docs/plots/{name}.png)\n\n{text}" for name, text in found["figures"].items()]
    header = ("finding", "of", "here (95 % interval)", "verdict (all measurements)")
    parts = ["# Results", found["limits"].strip(), table(header, rows), *figures, found["end"].strip()]
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
    return "\n\n".join((*parts, document()["page"]["runs"].strip())) + "\n"


def _counts(found: Iterable[Found]) -> str:
    counts = Counter(each.verdict for each in found)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def section(claim: Claim, found: Sequence[Found], shown: set[str]) -> list[str]:
    """Return a claim's heading, its measurements, and notes on experiments that no section has shown yet."""
    covers = {each.estimate.over for each in found}
    covered = f", {covers.pop()}".removesuffix(", ") if len(covers) == 1 else ""
    measured = [each.text.removesuffix(covered) for each in found]
    verdicts = [
        f"**{each.verdict}**" + (f": {row.obstacle}" if row.obstacle else "")
        for row, each in zip(claim.rows, found, strict=True)
    ]
    rows = zip((row.setting for row in claim.rows), measured, verdicts, strict=True)
    parts = [f"## {claim.heading}", f"{claim.source}: *{claim.says}.* {claim.reading}".rstrip()]
    parts.append(table(("setting", f"measured{covered}", "verdict"), rows))
    names = [name for name in _experiments(claim.rows) if name not in shown]
    shown.update(names)
    return [*parts, *(note for name in names if (note := experiment(name).get("note", "")))]


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
        (PICTURES / f"{name}.png").write_bytes(plot().png(dpi=100))
