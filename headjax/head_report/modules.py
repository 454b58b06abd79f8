"""A page about the heads of any Flax model: where they lie, their scores, and the loss without them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from headjax.core import numbers
from headjax.core.progress import Progress, silent
from headjax.head_report.page import RELATIVE, TITLE, footer, score_maps, with_whole
from headjax.head_report.study import CurvePoint, removable
from headjax.heads.ablation import ablate
from headjax.heads.ordering import Order, by_score, random_order
from headjax.heads.program import Applied, Loss, Program, mean_loss, prepare
from headjax.heads.pruning import PERCENTAGES, percent_steps
from headjax.heads.scoring import Scores, score_heads
from headjax.heads.site import Sites, find_heads, ones, without
from headjax.report.curves import pruning_curves
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.report.tables import Column, Table


def report_heads(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    out: str | os.PathLike[str],
    *,
    loss: Loss | None,
    held_out: Iterable[Any] | None = None,
    orders: Sequence[str] = ("importance_layer", "fisher", "random"),
    percentages: Sequence[int] = PERCENTAGES,
    seeds: int = 3,
    progress: Progress = silent,
) -> Path:
    """Write one HTML page about the heads of any Flax model: a map of each score, pruning curves, and its layers.

    The page needs no other file. Nothing is trained.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> def loss(model, x):
        ...     return ((model(x) - x) ** 2).mean((1, 2))
        >>> x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
        >>> headjax.report_heads(layer, [x], folder / "heads.html", loss=loss, percentages=[50], seeds=1).name
        'heads.html'

    Args:
        model: Any module, or a function of a tree of arrays, as for `headjax.score_heads`.
        batches: Examples that heads are scored and ordered on.
        out: File of the page.
        loss: Function of a model and a batch, as for `headjax.score_heads`.
        held_out: Examples that the curves are measured on; None is `batches`, which the page says.
        orders: Orders of removal: names of scores, `ablation`, or `random`.
        percentages: Shares of the heads to remove.
        seeds: Number of random orders.
        progress: Shows how far it is.

    Raises:
        DataError: There are no examples.
        HeadjaxError: There is no such order, the file cannot be written, or as for `headjax.score_heads`.
    """
    started = time.perf_counter()
    program, state = prepare(model, loss)
    batches = list(batches)
    with progress("scoring", len(batches), "batch") as bar:
        scores = score_heads(model, batches, loss=loss, progress=bar)
    eval_batches = batches if held_out is None else list(held_out)
    curves = {
        name: list(_curve(program, state, eval_batches, order, percentages))
        for name in orders
        for order in [_orders(name, model, batches, loss, scores, seeds)]
    }
    baseline = mean_loss(program, state, ones(program.sites), eval_batches)
    sections = [
        Section("What the scores say", "One pass over the examples gives every score.", score_maps(scores.values)),
        _removal(curves, baseline, "other examples" if held_out is not None else "the same examples"),
        Section("Where the heads lie", "", table=site_table(program.sites)),
    ]
    facts = _facts(program.sites, curves, baseline)
    summary = f"{type(model).__name__}: {scores.examples:,} examples score its heads. Nothing was trained."
    return write_page(out, render_page(TITLE, summary, sections, footer(time.perf_counter() - started), facts))


def _facts(sites: Sites, curves: Mapping[str, Sequence[CurvePoint]], baseline: float) -> dict[str, str]:
    best = max((removable(points, baseline, RELATIVE * abs(baseline), False) for points in curves.values()), default=0)
    return {
        "attention layers": numbers.count(sum(len(site.places) for site in sites)),
        "heads": numbers.count(len(find_heads(sites))),
        "mean loss": numbers.significant(baseline),
        f"of the heads can go at {numbers.percent(RELATIVE)} more loss": numbers.percent(best),
    }


def _orders(
    name: str, model: Any, batches: Sequence[Any], loss: Loss | None, scores: Scores, seeds: int
) -> list[Order]:
    """Return the orders of one name: several of `random`."""
    if name == "random":
        heads = tuple(scores.score("importance"))
        return [random_order(heads, seed) for seed in range(seeds)]
    if name == "ablation":
        return [by_score(ablate(model, batches, "each", loss=loss).effects())]
    return [by_score(scores.score(name))]


def _curve(
    program: Program, state: Any, batches: Sequence[Any], orders: Sequence[Order], percentages: Sequence[int]
) -> Iterator[CurvePoint]:
    for seed, order in enumerate(orders):
        for percentage, count in zip(percentages, percent_steps(len(order), percentages), strict=True):
            value = mean_loss(program, state, without(program.sites, order[:count]), batches)
            yield CurvePoint(percentage / 100.0, count, seed, value)


def _removal(curves: Mapping[str, Sequence[CurvePoint]], baseline: float, examples: str) -> Section:
    plot = pruning_curves(
        with_whole(curves, baseline), metric="Mean loss", baseline=baseline, title="Loss against heads removed"
    )
    caption = (
        f"Heads gated off in each order, without training afterwards, measured on {examples} as those that order them. "
        "A band reaches from the best random order to the worst."
    )
    return Section("How many heads can go", "", (Picture(plot, caption),))


def site_table(sites: Sites) -> Table:
    """Return the attention layers with their sizes."""
    rows = [
        (str(site.head_ids()[start]).rpartition("/")[0], site.heads, site.kv_heads, site.head_dim)
        for site in sites
        for start in range(0, len(site.head_ids()), site.heads)
    ]
    sizes = (Column(name, numbers.count) for name in ("Heads", "KV heads", "head_dim"))
    return Table((Column("Layer"), *sizes), rows)
