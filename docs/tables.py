"""Tables from the raw results of `headjax sweep`, `headjax ablate`, `headjax grid` and `headjax bench scaling`.

    python -m docs.tables                            # writes the tables into the pages
    python -m docs.tables NAME SWEEP.json [...]      # first keeps results as docs/measurements/removals_NAME.json,
                                                     # conversions_NAME.json (of caches: decoders), sharing_NAME.json
                                                     # (of encoders), grid_NAME.json or scaling_NAME.json;
                                                     # stacks_NAME.json of removals from several models by stack,
                                                     # ablations_NAME.json of several models' heads one at a time,
                                                     # transfer_NAME.json of that on several data sets,
                                                     # training_NAME.json of reports on several runs' checkpoints

A table stands between `<!-- KIND: NAME -->` and `<!-- end -->`, its raw results are docs/measurements/KIND_NAME.json.
Cost curves are also drawn, as docs/scaling_NAME.png. The plots of `docs.plot_list` stand after `<!-- plot: NAME -->`.
A test compares the pages with the raw results.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docs import claims, composition, design, ground_truth, patterns, plot_list, removals, scaling, stacks
from docs.claim_list import CLAIMS
from docs.measures import RAW, estimate, formulation, mean_and_interval, models_of, removal_of, rounded, saved_share
from headjax.training.grid import CellResult, summarize

PAGES = tuple(
    Path(__file__).parent / name
    for name in ("heads.md", "conversions.md", "head_size.md", "deep_training.md", "benchmarks.md", "../RESULTS.md")
)
KEPT = ("baseline", "headline", "examples", "agreement", "test", "evaluation")
"""Entries of a sweep's JSON that are kept beside the trials."""

Trial = Mapping[str, Any]


def keep(name: str, files: Sequence[str]) -> Path:
    """Write the trials of one or more sweeps of one model and task, or of one or more grids, as one raw file."""
    sweeps = [json.loads(Path(file).read_text()) for file in files]
    if "results" in sweeps[0]:  # a grid, or raw results of one that further runs are added to
        return _keep_grids(name, sweeps)
    if "modes" in sweeps[0]:
        tasks = {found["evaluation"]["task"] for found in sweeps}
        return (stacks.keep_ablations if len(tasks) == 1 else stacks.keep_transfer)(name, sweeps)
    if "snapshots" in sweeps[0]:
        return stacks.keep_training(name, sweeps)
    if "curves" in sweeps[0].get("ours", ()):
        return scaling.keep(name, sweeps[0])
    entry = "removals" if "removals" in sweeps[0] else "trials"
    several = len({_whole(found) for found in sweeps}) > 1
    if several and entry == "removals" and sweeps[0]["headline"] == "perplexity":
        return stacks.keep_removals(name, sweeps)
    kind = "removals" if entry == "removals" else "conversions" if sweeps[0]["headline"] == "perplexity" else "sharing"
    if several:
        return _keep_models(name, kind, entry, sweeps)
    trials = {_identity(trial): trial for found in sweeps for trial in found[entry]}
    rows = ",\n".join(json.dumps(rounded(trial)) for trial in trials.values())
    told = {key: rounded(sweeps[0][key]) for key in KEPT if key in sweeps[0]} | _seconds(sweeps)
    head = json.dumps(told, indent=1).removesuffix("\n}")
    file = RAW / f"{kind}_{name}.json"
    file.write_text(f'{head},\n "{entry}": [\n{rows}\n]\n}}\n')
    return file


def _seconds(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the time of every command; none of results that were written before commands told it."""
    seconds = [found["command_seconds"] for found in sweeps if "command_seconds" in found]
    return {"command_seconds": rounded(seconds)} if seconds else {}


def _whole(found: Mapping[str, Any]) -> str:
    """Return the metrics of a sweep's whole model, which tell models apart."""
    return json.dumps(found["baseline"] if "baseline" in found else found["trials"][0]["metrics"])


def _keep_models(name: str, kind: str, entry: str, sweeps: Sequence[Mapping[str, Any]]) -> Path:
    """Write sweeps of several models, each by one or more commands."""
    models: dict[str, list[Mapping[str, Any]]] = {}
    for found in map(rounded, sweeps):
        models.setdefault(_whole(found), []).append(found)
    rows = []
    for parts in models.values():
        whole = {key: parts[0][key] for key in ("baseline",) if key in parts[0]}
        trials = {_identity(trial): trial for found in parts for trial in found[entry]}
        rows.append(json.dumps(whole | {entry: list(trials.values())}))
    head = {key: rounded(sweeps[0][key]) for key in KEPT if key in sweeps[0] and key != "baseline"}
    file, told = RAW / f"{kind}_{name}.json", json.dumps(head | _seconds(sweeps), indent=1).removesuffix("\n}")
    file.write_text(told + ',\n "models": [\n' + ",\n".join(rows) + "\n]\n}\n")
    return file


def _keep_grids(name: str, grids: Sequence[Mapping[str, Any]]) -> Path:
    runs = {(json.dumps(run["settings"]), run["seed"]): run for found in grids for run in found["results"]}
    rows = ",\n".join(json.dumps(rounded(run)) for run in runs.values())
    file = RAW / f"grid_{name}.json"
    file.write_text(f'{{\n "metric": "{grids[0]["metric"]}",\n "results": [\n{rows}\n]\n}}\n')
    return file


def _identity(trial: Trial) -> tuple[Any, ...]:
    if "to" in trial:
        return trial["to"], trial["variant"]
    return *removal_of(trial), trial["repair"]


def conversions_table(found: Mapping[str, Any]) -> str:
    """Return the table of a sweep of conversions, one column for each share of the cache that is saved.

    Shares are rounded to an eighth: a latent has one more number a token for its position.
    """
    headline = found["headline"]
    original, *trials = found["trials"]
    rows: dict[tuple[str, str], dict[float, Trial]] = {}
    for trial in trials:
        rows.setdefault((formulation(trial["to"]), trial["variant"]), {})[saved_share(trial, original)] = trial
    shares = sorted({share for row in rows.values() for share in row})
    lines = [
        "| conversion | variant | "
        + " | ".join(f"{share:.4g} %" for share in (100 * share for share in shares))
        + " |",
        "|---" * (len(shares) + 2) + "|",
    ]
    for (to, variant), row in rows.items():
        values = [f"{row[share]['metrics'][headline]:.2f}" if share in row else "" for share in shares]
        lines.append(f"| `{to}` | {variant} | " + " | ".join(values) + " |")
    whole = original["metrics"][headline]
    tests = [trial["against_original"] for trial in trials]
    lost = sum(test["p_value"] < 0.05 for test in tests)
    intro = (
        f"{headline.capitalize()} by share of the key and value cache saved; the original has {whole:.2f} and caches "
        f"{original['cache']:,} numbers a token. {found['examples']:,} examples; {lost} of {len(tests)} conversions "
        f"differ from the original by {found['test']} (p < 0.05)."
    )
    return "\n".join([intro, "", *lines])


def sharing_table(found: Mapping[str, Any]) -> str:
    """Return the table of a sweep of an encoder's conversions, one row for each; of several models, of their means."""
    headline, models = found["headline"], models_of(found)
    original, *trials = (list(each) for each in zip(*(model["trials"] for model in models), strict=True))
    several = len(models) > 1
    lines = [
        f"| conversion | | parameters | error of logits | cosine | {headline} | difference |"
        + ("" if several else " p |"),
        "|---|---|---:|---:|---:|---:|---:|" + ("" if several else "---:|"),
        f"| original | | {original[0]['parameters']:,} | 0 | 1 | {_mean(original, 'metrics', headline):.4f} | |"
        + ("" if several else " |"),
    ]
    for same in trials:
        trial, tests = same[0], [each["against_original"] for each in same]
        lost = mean_and_interval([test["difference"] for test in tests], 4)
        ends = [lost] if several else [told(tests[0]), f"{tests[0]['p_value']:.2g}"]
        lines.append(
            f"| `{trial['to']}` | {trial['variant']} | {trial['parameters']:,} | {_mean(same, 'logit_error'):.3f} | "
            f"{_mean(same, 'cosine'):.3f} | {_mean(same, 'metrics', headline):.4f} | {' | '.join(ends)} |"
        )
    by = f"means of {len(models)} models, with the 95 % interval over them" if several else f"by {found['test']}"
    intro = (
        f"{headline.capitalize()} on {found['examples']:,} examples; differences from the original {by}. "
        "The error of logits is a root mean square over the layers, the cosine that of outputs with the original's."
    )
    return "\n".join([intro, "", *lines])


def told(test: Mapping[str, Any]) -> str:
    """Return a test's difference and, where it has one, its interval."""
    if math.isnan(test["low"]):
        return f"{test['difference']:+.4f}"
    return estimate(test["difference"], test["low"], test["high"], 4)


def _mean(same: Sequence[Trial], *keys: str) -> float:
    """Return the mean over models of one entry of their trials."""
    return float(np.mean([functools.reduce(operator.getitem, keys, trial) for trial in same]))


def grid_table(found: Mapping[str, Any]) -> str:
    """Return the table of a grid of training runs: means over seeds with their intervals."""
    metric, digits = found["metric"], 4 if found["metric"] == "loss" else 2
    summaries = summarize([CellResult(**result) for result in found["results"]], metric)
    names = list(dict.fromkeys(name for summary in summaries for name in summary.settings))
    lines = [
        f"| {' | '.join(names)} | parameters | runs | {metric} | 95 % interval | seconds |",
        "|---" * (len(names) + 5) + "|",
    ]
    for each in summaries:
        runs = f"{each.runs}" + (f", {each.diverged} diverged" if each.diverged else "")
        mean = "" if each.mean is None else f"{each.mean:.{digits}f}"
        interval = "" if each.low is None else f"{each.low:.{digits}f} to {each.high:.{digits}f}"
        cells = [each.settings.get(name, "") for name in names]
        lines.append(
            f"| {' | '.join(cells)} | {each.parameters:,} | {runs} | {mean} | {interval} | {each.seconds:.0f} |"
        )
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[Any], str]] = {
    "removals": removals.table,
    "stacks": stacks.removals_table,
    "ablations": stacks.ablations_table,
    "transfer": stacks.transfer_table,
    "training": stacks.training_table,
    "composition": composition.table,
    "conversions": conversions_table,
    "sharing": sharing_table,
    "grid": grid_table,
    "design": design.table,
    "scaling": scaling.table,
    "ground_truth": ground_truth.table,
    "patterns": patterns.table,
}
"""Tables by the kind of their raw results."""


def page(text: str) -> str:
    """Return a page with its tables made anew."""
    pattern = rf"(<!-- ({'|'.join(TABLES)}|plot|claims): (\w+) -->\n).*?(<!-- end -->)"
    return re.sub(
        pattern, lambda found: f"{found[1]}\n{_block(found[2], found[3])}\n\n{found[4]}", text, flags=re.DOTALL
    )


def _block(kind: str, name: str) -> str:
    """Return what stands between a block's marks."""
    if kind == "plot":
        return plot_list.markdown(name)
    if kind == "claims":  # of many raw results
        return claims.summary(CLAIMS) if name == "all" else claims.section(next(c for c in CLAIMS if c.name == name))
    return TABLES[kind](json.loads((RAW / f"{kind}_{name}.json").read_text()))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(keep(sys.argv[1], sys.argv[2:]))
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
    plot_list.draw()
