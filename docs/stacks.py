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

from docs.measures import RAW, Found, raw, rounded

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
        cells = [f"{sum(each) / len(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios]
        lines.append(f"| {stack} | " + " | ".join(cells) + " |")
    intro = (
        f"Perplexity over the whole model's on {found['examples']:,} examples, mean of {len(whole)} models (lowest to "
        f"highest), of which the whole ones have {min(whole):.2f} to {max(whole):.2f}."
    )
    return "\n".join([intro, "", *lines])


def perplexity_without(found: Mapping[str, Any], stack: str, share: str) -> list[float]:
    """Return of each model the perplexity without a share of a stack's heads, over that with all heads."""
    return [
        float(trial["metrics"]["perplexity"]) / float(model["baseline"]["perplexity"])
        for model in found["models"]
        for trial in model["removals"]
        if (",".join(trial["stacks"]) or "all", trial["remove"]) == (stack, share)
    ]


def needed_more(name: str, stack: str, other: str, share: str) -> Found:
    """Return what removals from two stacks cost; the claim is that the first costs more, by a paired t-test.

    Logarithms of perplexities over the whole model's are paired by model.
    """
    found = raw(name)
    costs = [perplexity_without(found, each, share) for each in (stack, other)]
    p = float(stats.ttest_rel(*np.log(costs)).pvalue)
    verdict = "not decided" if p >= 0.05 else "held" if np.mean(costs[0]) > np.mean(costs[1]) else "did not hold"
    means = " against ".join(f"{np.mean(each):.2f}" for each in costs)
    return Found(f"perplexity times {means} ({len(costs[0])} seeds), p = {p:.2g}", verdict)


def keep_ablations(name: str, ablations: Sequence[Mapping[str, Any]]) -> Path:
    """Write ablations of several models: change of perplexity and p-value by mode and head."""
    models = []
    for found in map(rounded, ablations):
        by_mode = {
            mode: {head: [effect, each["p_value"][head]] for head, effect in each["effect"].items()}
            for mode, each in found["modes"].items()
        }
        models.append({"baseline": found["modes"][MODES[0]]["baseline"]["perplexity"], **by_mode})
    file = RAW / f"ablations_{name}.json"
    head = json.dumps({key: ablations[0][key] for key in ("evaluation",)}, indent=1).removesuffix("\n}")
    rows = ",\n".join(json.dumps(model) for model in models)
    file.write_text(f'{head},\n "models": [\n{rows}\n]\n}}\n')
    return file


class Effect(NamedTuple):
    """What the removal of a head, or of all others of its layer, does.

    Attributes:
        stack: Kind of attention.
        layer: Number of its layer in the stack.
        ratio: Perplexity over the whole model's.
        worse: Whether examples get worse by a paired t-test on their losses, p < 0.01.
    """

    stack: str
    layer: int
    ratio: float
    worse: bool


def effects(found: Mapping[str, Any], mode: str) -> list[list[Effect]]:
    """Return the effects of each model's heads."""
    return [list(_effects(model, mode)) for model in found["models"]]


def _effects(model: Mapping[str, Any], mode: str) -> Iterator[Effect]:
    for head, (change, p_value) in model[mode].items():
        stack, layer, _ = head.split("/")
        yield Effect(stack, int(layer), 1 + change / model["baseline"], change > 0 and p_value < SIGNIFICANT)


def best_alone(found: Mapping[str, Any]) -> list[Effect]:
    """Return of each layer of each model the effect of keeping its best head alone."""
    best: dict[tuple[int, str, int], Effect] = {}
    for number, model in enumerate(effects(found, "all-but-one")):
        for effect in model:
            key = (number, effect.stack, effect.layer)
            best[key] = min(best.get(key, effect), effect, key=lambda each: each.ratio)
    return list(best.values())


def ablations_table(found: Mapping[str, Any]) -> str:
    """Return the table of heads removed alone and of heads kept alone, by stack."""
    one = [effect for model in effects(found, "each") for effect in model]
    alone = best_alone(found)
    lines = [
        "| stack | heads whose removal is significant | their perplexity, median (highest) | layers whose best head "
        "alone is significantly worse | their perplexity, median (highest) |",
        "|---" * 5 + "|",
    ]
    for stack in dict.fromkeys(effect.stack for effect in one):
        cells = []
        for group in (one, alone):
            here = [effect for effect in group if effect.stack == stack]
            ratios = [effect.ratio for effect in here]
            worse = sum(effect.worse for effect in here)
            cells += [f"{worse} of {len(here)}", f"{np.median(ratios):.3f} ({max(ratios):.3f})"]
        lines.append(f"| {stack} | " + " | ".join(cells) + " |")
    intro = (
        f"Over {len(found['models'])} models and {found['evaluation']['examples']:,} examples; perplexities over the "
        f"whole model's; significant is p < {SIGNIFICANT} by a paired t-test on losses."
    )
    return "\n".join([intro, "", *lines])


def most_can_go(name: str) -> Found:
    """Return how many heads are missed; the claim is that fewer than half are."""
    every = [effect for model in effects(raw(name), "each") for effect in model]
    return _missed(every, "heads")


def one_is_enough(name: str) -> Found:
    """Return how many layers are worse with their best head alone; the claim is that fewer than half are."""
    return _missed(best_alone(raw(name)), "layers")


def _missed(every: Sequence[Effect], what: str) -> Found:
    worse = sum(effect.worse for effect in every)
    ratios = [effect.ratio for effect in every]
    times = f"perplexity times {np.median(ratios):.3f} (median), {max(ratios):.3f} (most)"
    number = f"{worse} of {len(every)} {what} worse; {times}"
    return Found(number, "held" if 2 * worse < len(every) else "did not hold")
