"""Tables of `headjax sweep --remove`: a metric by order, share of heads and repair, of one model or of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docs.measures import agrees_better, mean_and_interval, models_of, repaired_and_bare

REPAIRS = {"none": "none", "rescale": "scalar", "reconstruct": "W_O", "feed_forward": "W_O and feed-forward"}
"""Repairs by their names in the results and in the tables."""


def table(found: Mapping[str, Any]) -> str:
    """Return the table of a sweep of removals, and what the trials say together."""
    headline, models = found["headline"], models_of(found)
    trials = [trial for model in models for trial in model["removals"]]
    shares = sorted({trial["remove"] for trial in trials}, key=lambda share: float(share.rstrip("%")))
    lines = [
        "| order | repair | " + " | ".join(f"{share[:-1]} %" for share in shares) + " |",
        "|---" * (len(shares) + 2) + "|",
    ]
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    for trial in trials:
        row = rows.setdefault((trial["order"], trial["repair"]), {})
        row.setdefault(trial["remove"], []).append(trial["metrics"][headline])
    for (order, repair), values in rows.items():
        cells = [_cell(values.get(share, []), several=len(models) > 1) for share in shares]
        lines.append(f"| {order} | {REPAIRS[repair]} | " + " | ".join(cells) + " |")
    whole = mean_and_interval([model["baseline"][headline] for model in models], 4)
    intro = f"{headline.capitalize()} on {found['examples']:,} examples; whole model {whole}."
    if len(models) > 1:
        intro += f" Means over {len(models)} models, with the 95 % interval."
    return "\n".join([intro, "", *lines, "", *_together(found)])


def _cell(values: Sequence[float], *, several: bool) -> str:
    """Return the mean, with its interval over several models, or half the range over the draws of one."""
    if not values:
        return ""
    if several:
        return mean_and_interval(values, 4)
    mean, half = sum(values) / len(values), (max(values) - min(values)) / 2
    return f"{mean:.4f}" if len(values) == 1 else f"{mean:.4f} ± {half:.4f}"


def _together(found: Mapping[str, Any]) -> list[str]:
    """Return sentences that count over all cells: agreement and paired tests of each repair."""
    better = 1.0 if found["headline"] not in ("loss", "perplexity") else -1.0
    lines = []
    for repair, words in REPAIRS.items():
        pairs = [] if repair == "none" else repaired_and_bare(found, repair)
        if not pairs:
            continue
        agreeing = agrees_better(found, repair)
        signs = [better * t["against_none"]["difference"] * (t["against_none"]["p_value"] < 0.05) for t, _ in pairs]
        gains, losses = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
        seconds = sorted(t["repair_seconds"] for t, _ in pairs)[len(pairs) // 2]
        lines.append(
            f"* {words}: agrees better with the whole model than no repair in {agreeing} of {len(pairs)} cells; "
            f"{found['headline']} better in {gains} and worse in {losses} by {found['test']} (p < 0.05); "
            f"{seconds:.0f} s of processor time (median)."
        )
    orders = _medians((t["order"], t["order_seconds"]) for model in models_of(found) for t in model["removals"])
    lines.append("* Orders take " + ", ".join(f"{name} {value:.0f} s" for name, value in orders.items()) + " (median).")
    return lines


def _medians(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: sorted(values)[len(values) // 2] for name, values in groups.items()}
