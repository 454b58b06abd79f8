"""Tables of docs/heads.md on removals, from the raw results of `headjax sweep --remove`.

    python docs/removals.py                            # writes the tables into docs/heads.md
    python docs/removals.py NAME SWEEP.json [...]      # first keeps results as docs/measurements/removals_NAME.json

A table stands between `<!-- removals: NAME -->` and `<!-- end -->`. A test compares the page with the raw results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "heads.md"
RAW = Path(__file__).parent / "measurements"
REPAIRS = {"none": "none", "rescale": "scalar", "reconstruct": "W_O", "feed_forward": "W_O and feed-forward"}
"""Repairs by their names in the results and in the tables."""

KEPT = ("baseline", "headline", "examples", "agreement", "test", "evaluation")
"""Entries of a sweep's JSON that are kept beside the trials."""

Trial = Mapping[str, Any]


def keep(name: str, files: Sequence[str]) -> Path:
    """Write the trials of one or more sweeps of one model and task as one file of raw results."""
    sweeps = [json.loads(Path(file).read_text()) for file in files]
    trials = {
        (t["order"], t["remove"], t["draw"], tuple(t["stacks"]), t["repair"]): t
        for found in sweeps
        for t in found["removals"]
    }
    rows = ",\n".join(json.dumps(_rounded(trial)) for trial in trials.values())
    head = json.dumps({key: _rounded(sweeps[0][key]) for key in KEPT}, indent=1).removesuffix("\n}")
    file = RAW / f"removals_{name}.json"
    file.write_text(f'{head},\n "removals": [\n{rows}\n]\n}}\n')
    return file


def table(name: str) -> str:
    """Return the table of a file of raw results, and what the trials say together."""
    found = json.loads((RAW / f"removals_{name}.json").read_text())
    trials, headline = found["removals"], found["headline"]
    shares = sorted({trial["remove"] for trial in trials}, key=lambda share: float(share.rstrip("%")))
    stacked = any(trial["stacks"] for trial in trials)
    lines = [
        f"| {'stack | ' if stacked else ''}order | repair | "
        + " | ".join(f"{share[:-1]} %" for share in shares)
        + " |",
        "|---" * (len(shares) + 2 + stacked) + "|",
    ]
    rows: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for trial in trials:
        key = (",".join(trial["stacks"]) or "all", trial["order"], trial["repair"])
        rows.setdefault(key, {}).setdefault(trial["remove"], []).append(trial["metrics"][headline])
    for (stack, order, repair), values in rows.items():
        cells = [_cell(values.get(share, [])) for share in shares]
        lines.append(f"| {f'{stack} | ' if stacked else ''}{order} | {REPAIRS[repair]} | " + " | ".join(cells) + " |")
    whole = found["baseline"][headline]
    intro = f"{headline.capitalize()} on {found['examples']:,} examples; whole model {whole:.4f}."
    return "\n".join([intro, "", *lines, "", *_together(found, trials)])


def _cell(values: Sequence[float]) -> str:
    """Return the mean, and half the range where there are several draws."""
    if not values:
        return ""
    mean, half = sum(values) / len(values), (max(values) - min(values)) / 2
    return f"{mean:.4f}" if len(values) == 1 else f"{mean:.4f} ± {half:.4f}"


def _together(found: Mapping[str, Any], trials: Sequence[Trial]) -> list[str]:
    """Return sentences that count over all cells: agreement and paired tests of each repair."""
    closer: Callable[[float, float], bool] = float.__gt__ if found["agreement"] == "cosine" else float.__lt__
    better = 1.0 if found["headline"] not in ("loss", "perplexity") else -1.0
    bare = {_cell_of(trial): trial for trial in trials if trial["repair"] == "none"}
    lines = []
    for repair, words in REPAIRS.items():
        pairs = [(bare[_cell_of(t)], t) for t in trials if t["repair"] == repair != "none" and _cell_of(t) in bare]
        if not pairs:
            continue
        agreeing = sum(closer(float(t["agreement"]), float(none["agreement"])) for none, t in pairs)
        signs = [better * t["against_none"]["difference"] * (t["against_none"]["p_value"] < 0.05) for _, t in pairs]
        gains, losses = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
        seconds = sorted(t["repair_seconds"] for _, t in pairs)[len(pairs) // 2]
        lines.append(
            f"* {words}: agrees better with the whole model than no repair in {agreeing} of {len(pairs)} cells; "
            f"{found['headline']} better in {gains} and worse in {losses} by {found['test']} (p < 0.05); "
            f"{seconds:.0f} s of processor time (median)."
        )
    orders = _medians((t["order"], t["order_seconds"]) for t in trials)
    lines.append("* Orders take " + ", ".join(f"{name} {value:.0f} s" for name, value in orders.items()) + " (median).")
    return lines


def _cell_of(trial: Trial) -> tuple[Any, ...]:
    return trial["order"], trial["remove"], trial["draw"], tuple(trial["stacks"])


def _medians(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: sorted(values)[len(values) // 2] for name, values in groups.items()}


def _rounded(value: Any) -> Any:
    """Return the same with numbers of six digits, which is more than a page shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value


def page(text: str) -> str:
    """Return a page with its tables made anew."""
    pattern = r"(<!-- removals: (\w+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(keep(sys.argv[1], sys.argv[2:]))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
