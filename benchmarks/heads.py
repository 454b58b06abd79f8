"""`python -m benchmarks heads`: scoring, ablating and pruning the heads of a BERT-base classifier, beside PyTorch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import headjax
from benchmarks.result import SPREAD, BenchResult, pytorch
from benchmarks.train_step import bert, our_step
from headjax.core import numbers
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.heads.ordering import random_order
from headjax.models.model import Model
from headjax.models.tasks import Classification
from headjax.report.tables import Column, Table

LAYERS, HEADS, CLASSES, LENGTH = 12, 12, 3, 128
SCORED, SWEPT = (8, LENGTH), (2, 64)
"""Examples and tokens of the batch that is scored, and of the one whose heads are ablated."""

REPEATS, SWEEPS = 4, 2
SPEEDS = {1: 11, 4: 7, 16: 5, 64: 2}
"""Batch sizes at which the pruned model is timed, and how often."""

PAPER = {1: 1.019, 4: 1.027, 16: 1.175, 64: 1.175}
"""Speed-up with half of the heads removed by batch size, Michel et al. 2019, table 4 (BERT-base, GTX 1080Ti)."""

STEP, SCORES, IMPORTANCE = "headjax: train step", "headjax: every score", "headjax: importance"
GATES, ONE_BY_ONE = (f"PyTorch: importance, {how}" for how in ("gates for each example", "one example at a time"))


def run(progress: Progress = silent) -> BenchResult:
    """Measure scoring, a sweep and pruned models in one run; the candidates of each are taken in turns.

    Raises:
        HeadjaxError: PyTorch or transformers is not installed.
    """
    peer = _peer()
    config = bert(Classification(classes=CLASSES, dropout=0.0))
    model = Model(config, config.initialize(jax.random.key(0)))
    speeds: dict[int, dict[str, Timing]] = {}
    with progress("heads", 2 + len(SPEEDS), "measurement") as bar:
        scoring = time_in_turns(_scoring(model) | peer, repeats=REPEATS)
        bar(1, {})
        sweep = time_in_turns(_sweep(model), repeats=SWEEPS, settle=0)
        share = sweep["sweep"].median / (LAYERS * HEADS * sweep["forward"].median)
        pruned = headjax.prune(model, random_order(headjax.all_heads(config), seed=0)[: LAYERS * HEADS // 2])
        for done, (size, repeats) in enumerate(SPEEDS.items(), start=2):
            bar(done, {})
            inputs = {name: array for name, array in _batch((size, LENGTH)).items() if name != "labels"}
            models = {"whole": model, "pruned": pruned}
            calls = {name: functools.partial(one, one.device_batch(inputs)) for name, one in models.items()}
            speeds[size] = time_in_turns(calls, repeats=repeats, warmup=2)
        bar(2 + len(SPEEDS), {})
    predicted = config.flops(LENGTH) / pruned.config.flops(LENGTH)
    median = {name: timing.median for name, timing in scoring.items()}
    ours = {
        "score_seconds": median[SCORES],
        "importance_seconds": median[IMPORTANCE],
        "train_step_seconds": median[STEP],
        "score_over_train_step": median[SCORES] / median[STEP],
        "sweep_seconds": sweep["sweep"].median,
        "sweep_over_plain_forwards": share,
        "pruned_speed_up": {str(size): speed_up(timings) for size, timings in speeds.items()},
        "pruned_speed_up_predicted": predicted,
    }
    theirs = {
        "importance_seconds": median[GATES],
        "importance_one_by_one_seconds": median[ONE_BY_ONE],
        "pruned_speed_up": {str(size): value for size, value in PAPER.items()},
    }
    tables = (_scoring_table(scoring), _sweep_table(sweep, share), _speed_table(speeds, predicted))
    return BenchResult(ours, theirs, median[IMPORTANCE] / median[GATES], tables, ("torch", "transformers"))


def _batch(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "input_ids": generator.integers(1000, 30000, shape, dtype=np.int32),
        "attention_mask": np.ones(shape, np.int32),
        "labels": generator.integers(0, CLASSES, shape[0], dtype=np.int32),
    }


def _scoring(model: Model) -> dict[str, Callable[[], Any]]:
    batch = _batch(SCORED)
    return {
        STEP: our_step(model.config, batch, model.params),
        SCORES: lambda: headjax.score_heads(model, [batch]).values,
        IMPORTANCE: lambda: headjax.score_heads(model, [batch], statistics=()).values,
    }


def _peer() -> dict[str, Callable[[], Any]]:
    """The paper's importance of a BERT-base in PyTorch, parameters frozen, by the two ways to get at each example's.

    Gates for each example take one backward pass for the whole batch; gates shared by the batch, as Hugging Face's head
    mask was, take a backward pass for every example.
    """
    torch, transformers = pytorch("heads")
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=CLASSES)
    model = transformers.BertForSequenceClassification(config).eval().requires_grad_(False)
    projections = [layer.attention.output.dense for layer in model.bert.encoder.layer]
    batch = {name: torch.from_numpy(array).long() for name, array in _batch(SCORED).items()}

    def importance(examples: slice) -> Any:
        some = {name: array[examples] for name, array in batch.items()}
        labels = some.pop("labels")

        def loss() -> Any:
            return torch.nn.functional.cross_entropy(model(**some).logits, labels, reduction="sum")

        _, gradient = torch_gate_gradient(projections, (len(labels), 1, HEADS), loss)
        return gradient.abs().sum(dim=(1, 2)).numpy()

    return {
        GATES: lambda: importance(slice(None)),
        ONE_BY_ONE: lambda: [importance(slice(i, i + 1)) for i in range(SCORED[0])],
    }


def _sweep(model: Model) -> dict[str, Callable[[], Any]]:
    batch = _batch(SWEPT)
    arrays = model.device_batch(batch)
    return {
        "forward": lambda: model(arrays).logits,
        "sweep": lambda: headjax.ablate(model, [batch]).ablated["loss"],
    }


def speed_up(timings: dict[str, Timing]) -> float:
    """Return the time of the unpruned model over the time of the pruned one."""
    return timings["whole"].median / timings["pruned"].median


def _scoring_table(timings: dict[str, Timing]) -> Table:
    rows = [(name, *timing[:3], timing.median / timings[STEP].median) for name, timing in timings.items()]
    columns = (Column(f"Batch {SCORED[0]} x {SCORED[1]}"), *SPREAD, Column("Of a train step", numbers.significant))
    note = f"BERT-base classifier, float32, {REPEATS} runs in turns. Train step: all parameters, AdamW."
    return Table(columns, rows, title="Scoring", notes=(note,))


def _sweep_table(timings: dict[str, Timing], share: float) -> Table:
    heads = LAYERS * HEADS
    rows = [
        (f"{heads} plain forward passes", *(heads * seconds for seconds in timings["forward"][:3]), 1.0),
        (f"every head of {heads} ablated", *timings["sweep"][:3], share),
    ]
    columns = (Column(f"Batch {SWEPT[0]} x {SWEPT[1]}"), *SPREAD, Column("Share", numbers.significant))
    return Table(columns, rows, title="Ablation", notes=(f"{SWEEPS} runs in turns, one forward pass in each.",))


def _speed_table(speeds: dict[int, dict[str, Timing]], predicted: float) -> Table:
    rows = []
    for size, timings in speeds.items():
        rates, measured = [size / timing.median for timing in timings.values()], speed_up(timings)
        rows.append((str(size), *rates, measured, predicted, measured / predicted, PAPER[size]))
    titles = ("Unpruned, examples/s", "Pruned, examples/s", "Speed-up", "By FLOPs")
    columns = (
        Column("Batch"),
        *(Column(title, numbers.significant) for title in titles),
        Column("Reached", numbers.percent),
        Column("Paper, table 4", numbers.significant),
    )
    counts = ", ".join(f"{size}: {repeats}" for size, repeats in SPEEDS.items())
    note = f"Half of the heads removed at random over all layers, {LENGTH} tokens; medians, runs by batch: {counts}."
    return Table(columns, rows, title="Half of the heads removed", notes=(note,))


def torch_gate_gradient(
    projections: Sequence[Any], shape: tuple[int, int, int], loss: Callable[[], Any]
) -> tuple[Any, Any]:
    """Return the summed loss of a batch and its gradient in gates on the heads' contexts.

    Examples do not see each other, so that the gradient of the sum holds every example's own.

    Args:
        projections: each attention's output projection, a `torch.nn.Module` whose input `[batch, query, width]` is the
            heads' contexts side by side.
        shape: `(batch, query, heads)` of the gates; a query of 1 sums over positions.
        loss: computes the summed loss with the gated model.

    Returns:
        The loss, a scalar, and `[layers, batch, query, heads]`.
    """
    import torch

    gates = torch.ones(len(projections), *shape, requires_grad=True)

    def multiply(layer: int, _: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        contexts = inputs[0].unflatten(-1, (shape[-1], -1))
        return (contexts * gates[layer][..., None]).flatten(-2), *inputs[1:]

    with contextlib.ExitStack() as hooks:
        for layer, module in enumerate(projections):
            hooks.callback(module.register_forward_pre_hook(functools.partial(multiply, layer)).remove)
        total = loss()
    (gradient,) = torch.autograd.grad(total, gates)
    return total.detach(), gradient
