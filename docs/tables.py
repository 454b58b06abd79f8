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
Cost curves are also drawn, as docs/scaling_NAME.png. The plots of `docs.plots` stand after `<!-- plot: NAME -->`.
A test compares the pages with the raw results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs import claims, composition, design, ground_truth, measures, patterns, plots, stacks
from docs.measures import RAW, removal_of, rounded, saved_share
from headjax.training.grid import CellResult, summarize

PAGES = tuple(
    Path(__file__).parent / name
    for name in ("heads.md", "conversions.md", "head_size.md", "deep_training.md", "benchmarks.md", "../RESULTS.md")
)
REPAIRS = {"none": "none", "rescale": "scalar", "reconstruct": "W_O", "feed_forward": "W_O and feed-forward"}
"""Repairs by their names in the results and in the tables."""

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
        return _keep_curves(name, sweeps[0])
    entry = "removals" if "removals" in sweeps[0] else "trials"
    if entry == "removals" and any(found["baseline"] != sweeps[0]["baseline"] for found in sweeps):
        return stacks.keep_removals(name, sweeps)
    kind = "removals" if entry == "removals" else "conversions" if sweeps[0]["headline"] == "perplexity" else "sharing"
    trials = {_identity(trial): trial for found in sweeps for trial in found[entry]}
    rows = ",\n".join(json.dumps(rounded(trial)) for trial in trials.values())
    head = json.dumps({key: rounded(sweeps[0][key]) for key in KEPT if key in sweeps[0]}, indent=1).removesuffix("\n}")
    file = RAW / f"{kind}_{name}.json"
    file.write_text(f'{head},\n "{entry}": [\n{rows}\n]\n}}\n')
    return file


def _keep_grids(name: str, grids: Sequence[Mapping[str, Any]]) -> Path:
    runs = {(json.dumps(run["settings"]), run["seed"]): run for found in grids for run in found["results"]}
    rows = ",\n".join(json.dumps(rounded(run)) for run in runs.values())
    file = RAW / f"grid_{name}.json"
    file.write_text(f'{{\n "metric": "{grids[0]["metric"]}",\n "results": [\n{rows}\n]\n}}\n')
    return file


def _keep_curves(name: str, found: Mapping[str, Any]) -> Path:
    from headjax.bench import scaling

    file, kept = RAW / f"scaling_{name}.json", rounded({"machine": found["machine"], "ours": found["ours"]})
    curves = kept["ours"].pop("curves")
    head = json.dumps(kept, indent=1).removesuffix("\n }\n}")
    lines = ",\n".join(f"{json.dumps(operation)}: {json.dumps(each)}" for operation, each in curves.items())
    file.write_text(f'{head},\n  "curves": {{\n{lines}\n  }}\n }}\n}}\n')
    kept["ours"]["curves"] = curves
    (RAW.parent / f"scaling_{name}.png").write_bytes(scaling.plot(kept["ours"]).png(dpi=100))
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
        rows.setdefault((_formulation(trial["to"]), trial["variant"]), {})[saved_share(trial, original)] = trial
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


def _formulation(to: str) -> str:
    """Return a target without its size."""
    kind, _, fields = to.partition(":")
    left = [field for field in fields.split(",") if not re.fullmatch(r"(rank|shared_dim|kv_heads|head_dim)=\d+", field)]
    return ":".join([kind, *([",".join(left)] if left else [])])


def sharing_table(found: Mapping[str, Any]) -> str:
    """Return the table of a sweep of an encoder's conversions, one row for each."""
    headline = found["headline"]
    original, *trials = found["trials"]
    lines = [
        f"| conversion | | parameters | error of logits | cosine | {headline} | difference | p |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        f"| original | | {original['parameters']:,} | 0 | 1 | {original['metrics'][headline]:.4f} | | |",
    ]
    for trial in trials:
        test = trial["against_original"]
        lines.append(
            f"| `{trial['to']}` | {trial['variant']} | {trial['parameters']:,} | {trial['logit_error']:.3f} | "
            f"{trial['cosine']:.3f} | {trial['metrics'][headline]:.4f} | {test['difference']:+.4f} | "
            f"{test['p_value']:.2g} |"
        )
    intro = (
        f"{headline.capitalize()} on {found['examples']:,} examples; differences from the original by {found['test']}. "
        "The error of logits is a root mean square over the layers, the cosine that of outputs with the original's."
    )
    return "\n".join([intro, "", *lines])


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


def scaling_table(found: Mapping[str, Any]) -> str:
    """Return the table of slopes, and the machine that they were measured on."""
    from headjax.bench import scaling

    made = scaling.table(found["ours"])
    heading = f"| {' | '.join(column.title for column in made.columns)} |"
    rows = [f"| {' | '.join(cell.text for cell in row)} |" for row in made.cells()]
    machine = found["machine"]
    loads = f"load {machine['load_before']:.1f} before and {machine['load_after']:.1f} after"
    where = f"{machine['processor_model']} ({' '.join(machine['instruction_sets'])}), {machine['usable_cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    notes = [f"* {note}" for note in (f"{where}, {loads}; {versions}.", *made.notes)]
    return "\n".join([heading, "|---" * len(made.columns) + "|", *rows, "", *notes])


def removals_table(found: Mapping[str, Any]) -> str:
    """Return the table of a sweep of removals, and what the trials say together."""
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
    return "\n".join([intro, "", *lines, "", *_together(found)])


def _cell(values: Sequence[float]) -> str:
    """Return the mean, and half the range where there are several draws."""
    if not values:
        return ""
    mean, half = sum(values) / len(values), (max(values) - min(values)) / 2
    return f"{mean:.4f}" if len(values) == 1 else f"{mean:.4f} ± {half:.4f}"


def _together(found: Mapping[str, Any]) -> list[str]:
    """Return sentences that count over all cells: agreement and paired tests of each repair."""
    better = 1.0 if found["headline"] not in ("loss", "perplexity") else -1.0
    lines = []
    for repair, words in REPAIRS.items():
        pairs = [] if repair == "none" else measures.repaired_and_bare(found, repair)
        if not pairs:
            continue
        agreeing = measures.agrees_better(found, repair)
        signs = [better * t["against_none"]["difference"] * (t["against_none"]["p_value"] < 0.05) for t, _ in pairs]
        gains, losses = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
        seconds = sorted(t["repair_seconds"] for t, _ in pairs)[len(pairs) // 2]
        lines.append(
            f"* {words}: agrees better with the whole model than no repair in {agreeing} of {len(pairs)} cells; "
            f"{found['headline']} better in {gains} and worse in {losses} by {found['test']} (p < 0.05); "
            f"{seconds:.0f} s of processor time (median)."
        )
    orders = _medians((t["order"], t["order_seconds"]) for t in found["removals"])
    lines.append("* Orders take " + ", ".join(f"{name} {value:.0f} s" for name, value in orders.items()) + " (median).")
    return lines


def _medians(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: sorted(values)[len(values) // 2] for name, values in groups.items()}


TABLES: Mapping[str, Callable[[Any], str]] = {
    "removals": removals_table,
    "stacks": stacks.removals_table,
    "ablations": stacks.ablations_table,
    "transfer": stacks.transfer_table,
    "training": stacks.training_table,
    "composition": composition.table,
    "conversions": conversions_table,
    "sharing": sharing_table,
    "grid": grid_table,
    "design": design.table,
    "scaling": scaling_table,
    "ground_truth": ground_truth.table,
    "patterns": patterns.table,
    "claims": lambda _: claims.table(),  # of all raw results
}
"""Tables by the kind of their raw results."""


def page(text: str) -> str:
    """Return a page with its tables made anew."""
    pattern = rf"(<!-- ({'|'.join(TABLES)}|plot): (\w+) -->\n).*?(<!-- end -->)"

    def made(found: re.Match[str]) -> str:
        if found[2] == "plot":
            return f"{found[1]}\n{plots.markdown(found[3])}\n\n{found[4]}"
        raw = {} if found[2] == "claims" else json.loads((RAW / f"{found[2]}_{found[3]}.json").read_text())
        return f"{found[1]}\n{TABLES[found[2]](raw)}\n\n{found[4]}"

    return re.sub(pattern, made, text, flags=re.DOTALL)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(keep(sys.argv[1], sys.argv[2:]))
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
    plots.draw()
