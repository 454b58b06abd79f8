"""Heads by kind of attention, over several models: the encoder's, the decoder's, and those that look at the encoder.

Raw results: docs/measurements/stacks_NAME.json of `headjax sweep --stacks`, ablations_NAME.json of `headjax ablate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from docs.measures import RAW, Found, mean_and_interval, ratio_and_interval, raw, rounded

SIGNIFICANT = 0.01
"""Level of the tests of single heads, as in Michel et al. (2019)."""

MODES = ("each", "all-but-one")


def keep_removals(name: str, sweeps: Sequence[Mapping[str, Any]]) -> Path:
    """Write sweeps of several models, each a model's and some of its stacks', as the models with all their trials."""
    models: list[Any] = []
    for found in map(rounded, sweeps):
        model = next((each for each in models if each["baseline"] == found["baseline"]), None)
        if model is None:
            models.append({"baseline": found["baseline"], "removals": found["removals"]})
        else:
            model["removals"] += found["removals"]
    head = {key: sweeps[0][key] for key in ("headline", "examples", "evaluation") if key in sweeps[0]}
    file = RAW / f"stacks_{name}.json"
    file.write_text(json.dumps(head | {"models": models}, indent=1) + "\n")
    return file


def removals_table(found: Mapping[str, Any]) -> str:
    """Return the table of removals from one stack at a time: perplexity over the whole model's."""
    removals = found["models"][0]["removals"]
    shares = sorted({trial["remove"] for trial in removals}, key=lambda share: float(share.rstrip("%")))
    stacks = dict.fromkeys(",".join(trial["stacks"]) or "all" for trial in removals)
    whole = [float(model["baseline"]["perplexity"]) for model in found["models"]]
    lines = [
        "| heads removed from | " + " | ".join(f"{share[:-1]} %" for share in shares) + " |",
        "|---" * (len(shares) + 1) + "|",
    ]
    for stack in stacks:
        ratios = [perplexity_without(found, stack, share) for share in shares]
        cells = [mean_and_interval(each) for each in ratios]
        lines.append(f"| {stack} | " + " | ".join(cells) + " |")
    intro = (
        f"Perplexity over the whole model's on {found['examples']:,} examples, mean of {len(whole)} models (95 % "
        f"interval), of which the whole ones have {min(whole):.2f} to {max(whole):.2f}."
    )
    return "\n".join([intro, "", *lines])


def perplexity_without(found: Mapping[str, Any], stack: str, share: str, metric: str = "perplexity") -> list[float]:
    """Return of each model the perplexity without a share of a stack's heads, over that with all heads."""
    return [
        float(trial["metrics"][metric]) / float(model["baseline"][metric])
        for model in found["models"]
        for trial in model["removals"]
        if (",".join(trial["stacks"]) or "all", trial["remove"]) == (stack, share)
    ]


def attention_matters(name: str, least: float) -> Found:
    """Return how many times the perplexity per word is that without any head, and whether it is at least `least`."""
    times = perplexity_without(raw(name), "all", "100%", "word_perplexity")
    number = f"{mean_and_interval(times, 0)} times the perplexity per word, {len(times)} seeds"
    return Found(number, "held" if min(times) >= least else "did not hold")


def needed_more(name: str, stack: str, other: str, share: str) -> Found:
    """Return what removals from two stacks cost; the claim is that the first costs more, by a paired t-test.

    Logarithms of perplexities over the whole model's are paired by model.
    """
    found = raw(name)
    costs = [perplexity_without(found, each, share) for each in (stack, other)]
    p = float(stats.ttest_rel(*np.log(costs)).pvalue)
    verdict = "not decided" if p >= 0.05 else "held" if np.mean(costs[0]) > np.mean(costs[1]) else "did not hold"
    means = " against ".join(f"{np.mean(each):.2f}" for each in costs)
    ratio = ratio_and_interval(costs[0], costs[1])
    return Found(f"perplexity times {means}, ratio {ratio}, {len(costs[0])} seeds, p = {p:.2g}", verdict)


def keep_ablations(name: str, ablations: Sequence[Mapping[str, Any]]) -> Path:
    """Write ablations of several models: change of the headline and p-value by mode and head."""
    models, metric = [], ablations[0]["metric"]
    for found in map(rounded, ablations):
        by_mode = {
            mode: {head: [effect, each["p_value"][head]] for head, effect in each["effect"].items()}
            for mode, each in found["modes"].items()
        }
        models.append({"baseline": found["modes"][MODES[0]]["baseline"][metric], **by_mode})
    file = RAW / f"ablations_{name}.json"
    told = {key: ablations[0][key] for key in ("metric", "test", "evaluation")}
    told["command_seconds"] = rounded([found["command_seconds"] for found in ablations])
    head = json.dumps(told, indent=1).removesuffix("\n}")
    rows = ",\n".join(json.dumps(model) for model in models)
    file.write_text(f'{head},\n "models": [\n{rows}\n]\n}}\n')
    return file


def keep_transfer(name: str, ablations: Sequence[Mapping[str, Any]]) -> Path:
    """Write ablations of the same models on several data sets, in the same order: exp(change of the loss) by head.

    Data sets are named by their tasks; the first one is that of the models.
    """
    sets: dict[str, list[Mapping[str, Any]]] = {}
    for found in ablations:
        sets.setdefault(Path(found["evaluation"]["task"]).name, []).append(found)
    models: list[Any] = []
    for several in zip(*sets.values(), strict=True):
        ratios = {}
        for task, found in zip(sets, several, strict=True):
            each = found["modes"]["each"]
            effects = {head: float(np.exp(change)) for head, change in each["effects"]["loss"].items()}
            ratios[task] = {"baseline": each["baseline"][found["metric"]], "ratios": effects}
        models.append(rounded(ratios))
    file = RAW / f"transfer_{name}.json"
    head = {
        "metric": ablations[0]["metric"],
        "examples": {task: found[0]["evaluation"]["examples"] for task, found in sets.items()},
        "command_seconds": rounded([found["command_seconds"] for found in ablations]),
    }
    rows = ",\n".join(json.dumps(model) for model in models)
    file.write_text(f'{json.dumps(head)[:-1]}, "models": [\n{rows}\n]}}\n')
    return file


class Effect(NamedTuple):
    """What the removal of a head, or of all others of its layer, does.

    Attributes:
        stack: Kind of attention.
        layer: Number of its layer in the stack.
        cost: Perplexity over the whole model's, or points of another metric lost.
        worse: Whether the metric gets worse by the ablation's paired test, p < 0.01.
    """

    stack: str
    layer: int
    cost: float
    worse: bool


def effects(found: Mapping[str, Any], mode: str) -> list[list[Effect]]:
    """Return the effects of each model's heads."""
    return [list(_effects(model, mode, found["metric"])) for model in found["models"]]


def _effects(model: Mapping[str, Any], mode: str, metric: str) -> Iterator[Effect]:
    sign = 1 if metric == "perplexity" else -1
    for head, (change, p_value) in model[mode].items():
        stack, layer, _ = head.split("/")
        cost = 1 + change / model["baseline"] if metric == "perplexity" else -100 * change
        yield Effect(stack, int(layer), cost, sign * change > 0 and p_value < SIGNIFICANT)


def best_alone(found: Mapping[str, Any]) -> list[Effect]:
    """Return of each layer of each model the effect of keeping its best head alone."""
    best: dict[tuple[int, str, int], Effect] = {}
    for number, model in enumerate(effects(found, "all-but-one")):
        for effect in model:
            key = (number, effect.stack, effect.layer)
            best[key] = min(best.get(key, effect), effect, key=lambda each: each.cost)
    return list(best.values())


def _median_and_most(metric: str, costs: Sequence[float]) -> tuple[str, str]:
    digits = 3 if metric == "perplexity" else 2
    return f"{0.0 + round(float(np.median(costs)), digits):.{digits}f}", f"{max(costs):.{digits}f}"


def ablations_table(found: Mapping[str, Any]) -> str:
    """Return the table of heads removed alone and of heads kept alone, by stack."""
    one = [effect for model in effects(found, "each") for effect in model]
    alone = best_alone(found)
    what = "perplexity" if found["metric"] == "perplexity" else f"loss of {found['metric']} in points"
    lines = [
        f"| stack | heads whose removal is significant | their {what}, median (highest) | layers whose best head "
        f"alone is significantly worse | their {what}, median (highest) |",
        "|---" * 5 + "|",
    ]
    for stack in dict.fromkeys(effect.stack for effect in one):
        cells = []
        for group in (one, alone):
            here = [effect for effect in group if effect.stack == stack]
            worse = sum(effect.worse for effect in here)
            median, most = _median_and_most(found["metric"], [effect.cost for effect in here])
            cells += [f"{worse} of {len(here)}", f"{median} ({most})"]
        lines.append(f"| {stack} | " + " | ".join(cells) + " |")
    whole = [float(model["baseline"]) for model in found["models"]]
    over = "perplexities over the whole model's" if found["metric"] == "perplexity" else "positive where it gets worse"
    intro = (
        f"Over {len(found['models'])} models, whose {found['metric']} is {min(whole):.4g} to {max(whole):.4g} on "
        f"{found['evaluation']['examples']:,} examples; {over}; significant is p < {SIGNIFICANT} by {found['test']}."
    )
    return "\n".join([intro, "", *lines])


def most_can_go(name: str) -> Found:
    """Return how many heads are missed; the claim is that fewer than half are."""
    found = raw(name)
    return _missed(found, [effect for model in effects(found, "each") for effect in model], "heads")


def one_is_enough(name: str) -> Found:
    """Return how many layers are worse with their best head alone; the claim is that fewer than half are."""
    found = raw(name)
    return _missed(found, best_alone(found), "layers")


def _missed(found: Mapping[str, Any], every: Sequence[Effect], what: str) -> Found:
    """Return how many of all heads or layers are missed: a count of all there are, so that it has no interval."""
    worse = sum(effect.worse for effect in every)
    median, most = _median_and_most(found["metric"], [effect.cost for effect in every])
    if found["metric"] == "perplexity":
        cost = f"perplexity times {median} (median), {most} (most)"
    else:
        cost = f"{median} (median), {most} (most) points lost"
    return Found(f"{worse} of {len(every)} {what} worse; {cost}", "held" if 2 * worse < len(every) else "did not hold")


def correlations(found: Mapping[str, Any], other: str, within: bool = False) -> list[tuple[float, float]]:
    """Return of each model Pearson's r, and its p-value, of the heads' effects on its own data set and on another.

    Args:
        found: the file of `keep_transfer`.
        other: name of the other data set.
        within: take the mean effect of each stack away first, so that a difference between stacks counts for nothing.
    """
    pairs = []
    for model in found["models"]:
        own, elsewhere = next(iter(model.values()))["ratios"], model[other]["ratios"]
        x, y = (np.array([ratios[head] for head in own]) for ratios in (own, elsewhere))
        if within:
            stacks = np.array([head.partition("/")[0] for head in own])
            for stack in set(stacks):
                for effects in (x, y):
                    effects[stacks == stack] -= effects[stacks == stack].mean()
        test = stats.pearsonr(x, y)
        pairs.append((float(test.statistic), float(test.pvalue)))
    return pairs


def transfer_table(found: Mapping[str, Any]) -> str:
    """Return the correlation of single heads' effects on the models' own data set and on each other one."""
    own, *others = found["examples"]
    lines = [
        f"| data set | examples | {found['metric']} | correlation with the effects on {own} | that within stacks |",
        "|---" * 5 + "|",
    ]
    for task, examples in found["examples"].items():
        whole = [model[task]["baseline"] for model in found["models"]]
        both = ["", ""]
        if task in others:
            both = [mean_and_interval([r for r, _ in correlations(found, task, within)]) for within in (False, True)]
        lines.append(f"| {task} | {examples:,} | {np.mean(whole):.4g} | {both[0]} | {both[1]} |")
    heads = len(next(iter(found["models"][0].values()))["ratios"])
    intro = (
        f"Pearson's r over {heads} heads, mean of {len(found['models'])} models (95 % interval); "
        "within stacks: each stack's mean effect taken away."
    )
    return "\n".join([intro, "", *lines])


def transfers(name: str, other: str) -> Found:
    """Return how heads' effects on two data sets correlate; the claim is that they do in every model, p < 0.01."""
    pairs = correlations(raw(name), other)
    r, p = [each for each, _ in pairs], max(each for _, each in pairs)
    number = f"r = {mean_and_interval(r)}, {len(r)} seeds, p at most {p:.1g}"
    return Found(number, "held" if min(r) > 0 and p < SIGNIFICANT else "did not hold")


def keep_training(name: str, reports: Sequence[Mapping[str, Any]]) -> Path:
    """Write what reports say of the checkpoints of several runs: perplexity over that of the checkpoint's all heads."""
    models = []
    for report in reports:
        steps = {}
        for snapshot in report["snapshots"]:
            ratios = {f"{point['fraction']:.0%}": point["value"] / snapshot["baseline"] for point in snapshot["curve"]}
            kept = {"baseline": snapshot["baseline"], "agreement": snapshot["agreement"], "ratios": ratios}
            steps[str(snapshot["step"])] = rounded(kept)
        models.append(steps)
    file = RAW / f"training_{name}.json"
    rows = ",\n".join(json.dumps(model) for model in models)
    file.write_text(f'{{"examples": {reports[0]["examples"]}, "models": [\n{rows}\n]}}\n')
    return file


def training_table(found: Mapping[str, Any]) -> str:
    """Return the perplexity without more and more heads along training, and how the heads' order settles."""
    shares = next(iter(found["models"][0].values()))["ratios"]
    lines = [
        f"| step | all heads | {' | '.join(f'without {share}' for share in shares)} | order as at the end |",
        "|---" * (3 + len(shares)) + "|",
    ]
    for step in found["models"][0]:
        at = [model[step] for model in found["models"]]
        cells = [f"{np.mean([each['baseline'] for each in at]):.1f}"]
        cells += [mean_and_interval([each["ratios"][share] for each in at]) for share in shares]
        cells += [mean_and_interval([each["agreement"] for each in at])]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    intro = (
        f"Perplexity on {found['examples']:,} examples, and how many times as high it is without heads, in the order "
        "of each checkpoint's own importance; Spearman's correlation of that importance with the finished model's. "
        f"Mean of {len(found['models'])} models (95 % interval)."
    )
    return "\n".join([intro, "", *lines])


def later_is_cheaper(name: str, share: str) -> Found:
    """Return what heads cost at a run's first and last checkpoint; the claim is that they cost less at the last."""
    runs = [list(model.values()) for model in raw(name)["models"]]
    early, late = ([run[at]["ratios"][share] for run in runs] for at in (0, -1))
    test = stats.ttest_rel(np.log(late), np.log(early))
    first, *_, last = raw(name)["models"][0]
    number = f"perplexity times {np.mean(early):.2f} at step {int(first):,}, {np.mean(late):.2f} at step {int(last):,}"
    cheaper = bool(np.mean(late) < np.mean(early))
    verdict = "not decided" if test.pvalue >= 0.05 else "held" if cheaper else "did not hold"
    ratio = ratio_and_interval(late, early)
    return Found(f"{number}, ratio {ratio}, {len(runs)} seeds, p = {test.pvalue:.2g}", verdict)


def settles(name: str, least: float = 0.9) -> Found:
    """Return how the order of heads settles; the claim is that it has by half of the training, but not at its start."""
    first, half, early = ([], [], [])
    for model in raw(name)["models"]:
        orders = {int(step): each["agreement"] for step, each in model.items()}
        first.append(orders[min(orders)])
        half.append(min(each for step, each in orders.items() if 2 * step >= max(orders)))
        early.append(min(step for step in orders if all(orders[later] >= least for later in orders if later >= step)))
    number = (
        f"Spearman's correlation {mean_and_interval(first)} at step {min(orders)}, at least {min(half):.2f} from step "
        f"{max(orders) // 2} on; above {least} from step {max(early)} on ({len(first)} seeds)"
    )
    return Found(number, "held" if min(half) >= least > max(first) else "did not hold")
