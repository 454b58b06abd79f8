"""Claims beside measurements, each with a verdict: the tables of RESULTS.md.

    python -m docs.tables       # writes them, from the raw results in docs/measurements/

`docs.claim_list` has the claims. Every number and every verdict is computed from the raw results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from docs.measures import Found

VERDICTS = ("held", "did not hold", "not decided")


class Row(NamedTuple):
    """One measurement of a claim.

    Attributes:
        setting: what was measured here.
        measure: from nothing to the measurement; reads raw results.
    """

    setting: str
    measure: Callable[[], Found]


class Claim(NamedTuple):
    """A claim and its measurements.

    Attributes:
        name: name of its block in RESULTS.md, `<!-- claims: NAME -->`.
        heading: heading of its section there.
        source: who says it.
        says: the claim.
        rows: measurements, the most telling one first.
        command: the command that measures; the section has it whole.
        time: from nothing to how long they took; reads raw results.
        page: page with all commands, tables and limits.
    """

    name: str
    heading: str
    source: str
    says: str
    rows: Sequence[Row]
    command: str
    time: Callable[[], str]
    page: str


def summary(claims: Sequence[Claim]) -> str:
    """Return one line for each claim: its first measurement, and the verdicts of all."""
    lines = ["| claim | setting | measured (95 % interval) | verdict | command and time |", "|---" * 5 + "|"]
    every: list[str] = []
    for claim in claims:
        found = [row.measure() for row in claim.rows]
        verdicts = [each.verdict for each in found]
        every += verdicts
        more = f"; {len(found) - 1} more" if len(found) > 1 else ""
        cells = (
            f"[{claim.says}](#{anchor(claim.heading)}) ({claim.source})",
            claim.rows[0].setting,
            f"{found[0].number}{more}",
            told(verdicts),
            f"`{claim.command}`, {claim.time()}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    counts = Counter(every)
    intro = f"{len(claims)} claims, {len(every)} measurements: " + ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in VERDICTS
    )
    return "\n".join([f"{intro}.", "", *lines])


def told(verdicts: Sequence[str]) -> str:
    """Return the verdict that all measurements share, or how many have each."""
    if len(set(verdicts)) == 1:
        return f"**{verdicts[0]}**" + (f" ({len(verdicts)} of {len(verdicts)})" if len(verdicts) > 1 else "")
    counts = Counter(verdicts)
    return ", ".join(f"**{verdict}** in {counts[verdict]}" for verdict in VERDICTS if counts[verdict])


def anchor(heading: str) -> str:
    """Return the fragment by which GitHub and the site's pages name a heading."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def section(claim: Claim) -> str:
    """Return who says what, and a table of all measurements with their time."""
    lines = ["| setting | measured (95 % interval) | verdict |", "|---" * 3 + "|"]
    for row in claim.rows:
        found = row.measure()
        lines.append(f"| {row.setting} | {found.number} | **{found.verdict}** |")
    page = claim.page.removeprefix("docs/").removesuffix(".md").replace("_", " ")
    end = f"Time: {claim.time()}. The whole tables and their limits: [{page}]({claim.page})."
    return "\n".join([f"{claim.source}: *{claim.says}.*", "", *lines, "", end])
