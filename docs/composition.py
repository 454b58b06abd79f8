"""Removing heads and sharing keys, alone and in both orders, at equal parameters.

    python -m docs.composition NAME FOLDER   # keeps docs/measurements/composition_NAME.json from FOLDER/MODEL/SHARE/
    python -m docs.tables                    # writes the table into docs/heads.md

`SHARE` is a percentage of the whole model's parameters. Beside each other lie there `ORDER.json`, of `headjax prune
--remove 0% --fine-tune N` after all removals and conversions, `ORDER-inspect.json`, of `headjax inspect`, and, but
for the whole model, `ORDER-compare.json`, of `headjax compare` with the whole one, both fine-tuned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from docs.measures import RAW, Found, mean_and_interval, ratio_and_interval, raw, rounded

ORDERS = {
    "whole": "nothing",
    "prune": "heads removed",
    "convert": "keys shared",
    "prune-convert": "heads removed, then keys shared",
    "convert-prune": "keys shared, then heads removed",
}
"""What is done to a model, by the names of files."""


def keep(name: str, folder: Path) -> Path:
    """Write the trials of all models, by share of the parameters, and order."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    models = [
        [
            _trial(model / share, order)
            for share in sorted((path.name for path in model.iterdir()), key=int, reverse=True)
            for order in ORDERS
            if (model / share / f"{order}.json").is_file()
        ]
        for model in folders
    ]
    evaluation = json.loads((folders[0] / "100" / "whole.json").read_text())["evaluation"]
    rows = ",\n".join(json.dumps(rounded(trials)) for trials in models)
    file = RAW / f"composition_{name}.json"
    file.write_text(f'{{"examples": {evaluation["examples"]}, "models": [\n{rows}\n]}}\n')
    return file


def _trial(folder: Path, order: str) -> dict[str, Any]:
    tuned = json.loads((folder / f"{order}.json").read_text())
    model = json.loads((folder / f"{order}-inspect.json").read_text())
    compared = folder / f"{order}-compare.json"
    return {
        "share": folder.name,
        "order": order,
        "parameters": model["parameters"],
        "heads": model["heads"],
        "flops": model["flops"],
        "time": 1 / json.loads(compared.read_text())["speed_up"] if order != "whole" else 1.0,
        "before": tuned["metrics_before"]["perplexity"],
        "after": tuned["metrics"]["perplexity"],
    }


def values(found: Mapping[str, Any], share: str, order: str, key: str) -> list[float]:
    """Return of each model one entry of a trial."""
    return [
        trial[key]
        for trials in found["models"]
        for trial in trials
        if (trial["share"], trial["order"]) == (share, order)
    ]


def trials(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the share and the order of each trial, which all models have."""
    return [(trial["share"], trial["order"]) for trial in found["models"][0]]


def table(found: Mapping[str, Any]) -> str:
    """Return the table of all orders at every size."""
    lines = [
        "| done to the model | heads | parameters, % | operations, % | time, % | perplexity | fine-tuned |",
        "|---" * 7 + "|",
    ]
    whole = {key: np.array(values(found, "100", "whole", key)) for key in ("parameters", "flops")}
    for share, order in trials(found):
        heads = np.mean(values(found, share, order, "heads"))
        shares = [100 * np.mean(values(found, share, order, key) / each) for key, each in whole.items()]
        cells = [f"{heads:.0f}", *(f"{each:.1f}" for each in shares)]
        cells.append(f"{100 * np.mean(values(found, share, order, 'time')):.0f}")
        cells += [mean_and_interval(values(found, share, order, key)) for key in ("before", "after")]
        lines.append(f"| {ORDERS[order]} | {' | '.join(cells)} |")
    intro = (
        f"Perplexity on {found['examples']:,} examples, mean of {len(found['models'])} models (95 % interval); "
        "operations of 128 tokens, time of a forward pass over a batch, both models in turns."
    )
    return "\n".join([intro, "", *lines])


def better(name: str, share: str, order: str, others: tuple[str, ...]) -> Found:
    """Return fine-tuned perplexities at one size; the claim is that an order's is lower than all others'.

    Logarithms are paired by model; the p-value is that of the best of the others.
    """
    found = raw(name)
    own = values(found, share, order, "after")
    against = min((values(found, share, other, "after") for other in others), key=np.mean)
    p = float(stats.ttest_rel(np.log(own), np.log(against)).pvalue)
    verdict = "not decided" if p >= 0.05 else "held" if np.mean(own) < np.mean(against) else "did not hold"
    means = f"{np.mean(own):.2f} against {np.mean(against):.2f}"
    ratio = ratio_and_interval(own, against, 3)
    return Found(f"perplexity {means}, ratio {ratio}, {len(own)} models, p = {p:.2g}", verdict)


if __name__ == "__main__":
    print(keep(sys.argv[1], Path(sys.argv[2])))
