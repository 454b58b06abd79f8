"""How many heads does a small language model need, and what can they share? `make quickstart` runs this script.

headjax carries a decoder of a million parameters, trained on the source code of Python's standard library. This script
scores its attention heads, removes some, converts and shrinks it. Heads are chosen on training text and measured on
held-out text; everything that it prints was measured in this run. Most of its time compiles programs.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

import headjax
from headjax.core import numbers
from headjax.plots import score_map
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.report.tables import Column, Table
from headjax.shrinking.measure import MeasureConfig
from headjax.shrinking.search_space import SearchSpace

BLOCKS = 32  # blocks of 256 tokens to choose heads on, and as many others to measure on
BATCH = 8
PAGE = Path(__file__).parents[1] / "build" / "quickstart.html"
STARTED = time.perf_counter()


def section(title: str) -> None:
    """Print a heading with the time since the start."""
    print(f"\n{title} ({time.perf_counter() - STARTED:.0f} s)\n{'-' * len(title)}")


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print rows of text in columns."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


section("A model and its text")
# A model is a flax.nnx module with a tokenizer. A task divides its text: whole files were held out from training.
model = headjax.demo_model()
print(model)
text = headjax.load_task("python_code", model, length=256)
training = list(headjax.evaluation_batches(text.data.train, BATCH))[: BLOCKS // BATCH]
held_out = list(headjax.evaluation_batches(text.data.validation, BATCH))[: BLOCKS // BATCH]


def perplexity(model: headjax.Model) -> float:
    """Return the perplexity per token of the held-out text."""
    return headjax.evaluate(model, held_out)["perplexity"]


whole = perplexity(model)
prompt = "def read_lines(path, encoding=None):\n    with open"
print(f"perplexity of held-out text: {whole:.2f}\n")
print(prompt + headjax.generate(model, prompt, max_new_tokens=48, sampler=headjax.Greedy()))


section("Which heads matter?")
# Importance (Michel et al. 2019): the mean of |dL / d gate_h|, where the gate of head h multiplies its context. One
# backward pass gives it for all heads. Ablation removes every head alone and measures the loss.
importance = headjax.score_heads(model, training).score("importance")
ablated = headjax.ablate(model, training[:2])
effects = ablated.effects("loss")
ranked = sorted(importance, key=lambda head: importance[head])
table(
    ("head", "importance", "loss without it"),
    [(head, f"{importance[head]:.2f}", f"{effects[head]:+.4f}") for head in (*ranked[:3], *ranked[-3:])],
)


section("How many can go?")
# A gate of 0 switches a head off, which costs nothing to try. Three orders of removal: at random, the least important
# first, and the heads that the others can best stand in for; there W_O of the kept heads is refitted by least squares.
orders = {
    "random": random.Random(0).sample(ranked, len(ranked)),
    "importance": ranked,
    "reconstruction, refitted": headjax.reconstruction_order(model, training),
}
half = {name: order[: len(order) // 2] for name, order in orders.items()}
left = {name: headjax.gated(model, dict.fromkeys(removed, 0.0)) for name, removed in half.items()}
left["reconstruction, refitted"] = headjax.reconstruct(model, training, half["reconstruction, refitted"]).model
measured = {name: perplexity(smaller) for name, smaller in left.items()}
table(("order", "perplexity without half of the heads"), [(name, f"{found:.2f}") for name, found in measured.items()])

# `prune` deletes the slices of these heads from every parameter: the same function in a smaller model.
pruned = headjax.prune(model, half["importance"])
print(f"\nhalf of the heads gated off: {measured['importance']:.4f}; removed: {perplexity(pruned):.4f}")
print(f"parameters: {model.num_parameters:,} -> {pruned.num_parameters:,}")


section("What can heads share?")
# The same weights in another formulation, without training. A calibrated conversion keeps what each layer computes on a
# few batches, a plain one what its weights multiply to. The cache holds keys and values while a text is generated.
rows = []
for target in ("collaborative:shared_dim=64", "grouped:kv_heads=4", "latent:rank=64"):
    plain, calibrated = (headjax.convert(model, target, batches=batches).model for batches in (None, training))
    cache = headjax.summarize(plain.config, 256).cache_bytes_per_token
    rows.append((target, perplexity(plain), perplexity(calibrated), cache))
cache = headjax.summarize(model.config, 256).cache_bytes_per_token
shared = Table(
    (
        Column("converted to"),
        Column("plain", numbers.fixed(2)),
        Column("calibrated", numbers.fixed(2)),
        Column("cache, bytes a token", numbers.number),
    ),
    [("(original)", whole, None, cache), *rows],
)
table([column.title for column in shared.columns], [[cell.text for cell in row] for row in shared.cells()])


section("Heads and units, to a budget")
# Smaller forms of every layer are measured; an integer program takes one a layer within the budget. Here the forms have
# fewer heads or fewer feed-forward units; by default heads also share and change their size, which takes longer.
few = MeasureConfig(space=SearchSpace(heads=(0.5,), units=(0.6, 0.3), cached=(), others=()))
small = headjax.shrink(model, training[:2], headjax.Budget(parameters=0.6), measuring=few).model
print(f"60 % of the parameters of attention and feed-forwards: perplexity {perplexity(small):.2f}")
print(small)


section("Keep it")
# A model is saved as a folder, with its history; it can be loaded, trained, converted again, or exported.
with tempfile.TemporaryDirectory() as folder:
    small.save(f"{folder}/small")
    print("loaded again:", f"{perplexity(headjax.load(f'{folder}/small')):.2f}")
    print("history:", *(entry["action"] for entry in small.history))


half_left, smallest = left["reconstruction, refitted"], perplexity(small)
sizes = [
    ("before", model.num_parameters, whole),
    ("half of the heads, by reconstruction, refitted", half_left.num_parameters, measured["reconstruction, refitted"]),
    ("60 % of the layers' parameters", small.num_parameters, smallest),
]
stays = {head: value for head, value in importance.items() if head not in half["reconstruction, refitted"]}
unit = "|dL / d gate|, nats a block"
maps = [
    Picture(
        score_map(model, importance, title="Importance", unit=unit),
        "What the loss of a block feels of each head, mean over blocks: Michel et al. 2019, equation 2.",
    ),
    Picture(
        score_map(model, stays, title="The half that stays", unit=unit),
        "Hatched heads went: the others can best stand in for them. That order reads no labels.",
    ),
]
sections = [
    Section(
        "Before and after",
        table=Table(
            (Column("model"), Column("parameters", numbers.number), Column("perplexity", numbers.fixed(2))), sizes
        ),
    ),
    Section(
        "Which heads matter", "Importance says what the loss feels; reconstruction asks what can be replaced.", maps
    ),
    Section("What heads can share", "Perplexity of the same weights, converted without training.", table=shared),
]
facts = {
    f"perplexity without half of the heads, {whole:.2f} before": f"{measured['reconstruction, refitted']:.2f}",
    f"parameters at 60 % of the layers, {numbers.count(model.num_parameters)} before": numbers.count(
        small.num_parameters
    ),
    f"perplexity there, {whole:.2f} before": f"{smallest:.2f}",
}
summary = f"Heads chosen on training text, perplexity of {BLOCKS} held-out blocks of source code; nothing was trained."
page = render_page("The heads of a small decoder", summary, sections, facts=facts)
print("a page to look at:", write_page(PAGE, page))
print("train your own: headjax train --config configs/quickstart.py:formulation=collaborative --workdir runs/mine")
print(f"\n{time.perf_counter() - STARTED:.0f} s on {jax.devices()[0].device_kind}")
