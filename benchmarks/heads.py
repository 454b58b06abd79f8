"""`headjax bench heads`: scoring, ablating and pruning the heads of a BERT-base classifier, beside PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.result import BenchResult
from benchmarks.train_step import bert
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, Update, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.heads.ablation import ablate
from headjax.heads.latency import time_forward
from headjax.heads.ordering import random_order
from headjax.heads.pruning import prune
from headjax.heads.scores import score_heads
from headjax.mesh.distributed import put_batch
from headjax.mesh.mesh import MeshConfig
from headjax.models.compute import Compute
from headjax.models.config import Batch
from headjax.models.inputs import device_batch
from headjax.models.model import Model, forward
from headjax.models.tasks import Classification
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.training.optimizer import AdamW, ConstantRate
from headjax.training.state import initial_state
from headjax.training.step import train_step

LAYERS, HEADS, CLASSES = 12, 12, 3
SCORED = (8, 128)
SWEPT = (2, 64)
"""Examples and tokens of the batch that is scored, and of the one whose heads are ablated."""

REPEATS = 4
SWEEPS = 2
LENGTH = 128
SPEEDS = {1: 11, 4: 7, 16: 5, 64: 2}
"""Batch sizes at which the pruned model is timed, and how often."""

PAPER = {1: 1.019, 4: 1.027, 16: 1.175, 64: 1.175}
"""Speed-up with half of the heads removed by batch size, Michel et al. 2019, table 4 (BERT-base, GTX 1080Ti)."""

COLUMNS = (
    Column("Median", numbers.duration),
    Column("First quartile", numbers.duration),
    Column("Third quartile", numbers.duration),
)


def run(progress: Progress = silent) -> BenchResult:
    """Measure the three in one run; the candidates of each are taken in turns.

    Raises:
        HeadjaxError: PyTorch or transformers is not installed.
    """
    peer = _peer()
    config = bert(HEADS, LAYERS, task=Classification(classes=CLASSES, dropout=0.0))
    model = Model(config, config.initialize(jax.random.key(0)))
    with progress("heads", 2 + len(SPEEDS), "measurement") as bar:
        scoring = _time_scoring(model, peer)
        bar(1, {})
        sweep = time_in_turns(_sweep(model), repeats=SWEEPS, settle=0)
        bar(2, {})
        pruned = prune(model, random_order(config, seed=0)[: LAYERS * HEADS // 2])
        speeds = _time_forwards({"whole": model, "pruned": pruned}, bar)
    predicted = {size: config.flops(LENGTH) / pruned.config.flops(LENGTH) for size in SPEEDS}
    tables = (_scoring_table(scoring), _sweep_table(sweep), _speed_table(speeds, predicted))
    every = scoring["headjax: every score"].median
    batched = scoring["PyTorch: importance, gates for each example"].median
    ours = {
        "score_seconds": every,
        "importance_seconds": scoring["headjax: importance"].median,
        "train_step_seconds": scoring["headjax: train step"].median,
        "score_over_train_step": every / scoring["headjax: train step"].median,
        "sweep_seconds": sweep["sweep"].median,
        "sweep_over_plain_forwards": _sweep_share(sweep),
        "pruned_speed_up": {str(size): speed_up(timings) for size, timings in speeds.items()},
        "pruned_speed_up_predicted": predicted[16],
    }
    theirs = {
        "importance_seconds": batched,
        "importance_one_by_one_seconds": scoring["PyTorch: importance, one example at a time"].median,
        "pruned_speed_up": {str(size): value for size, value in PAPER.items()},
    }
    ratio = scoring["headjax: importance"].median / batched
    return BenchResult(ours, theirs, ratio, tables, ("torch", "transformers"))


def _batch(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "input_ids": generator.integers(1000, 30000, shape, dtype=np.int32),
        "attention_mask": np.ones(shape, np.int32),
        "labels": generator.integers(0, CLASSES, shape[0], dtype=np.int32),
    }


def _time_scoring(model: Model, peer: dict[str, Callable[[], Any]]) -> dict[str, Timing]:
    batch = _batch(SCORED)
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    optimizer = AdamW(schedule=ConstantRate(peak=1e-5), clip_norm=0.0).build(model.config.tensors(), 100)
    step = train_step(model.config, optimizer, mesh, compute=Compute(), seed=0)
    held = {"state": initial_state(model.config, optimizer, mesh, 0, model.params)}

    def train() -> Any:
        held["state"], metrics = step(held["state"], put_batch(batch, mesh))
        return held["state"], metrics

    def score(statistics: bool) -> None:
        if statistics:
            score_heads(model, [batch])
        else:
            score_heads(model, [batch], statistics=(), compute=Compute())

    ours = {
        "headjax: train step": train,
        "headjax: every score": lambda: score(True),
        "headjax: importance": lambda: score(False),
    }
    return time_in_turns({**ours, **peer}, repeats=REPEATS)


def _peer() -> dict[str, Callable[[], Any]]:
    """The paper's importance of a BERT-base in PyTorch, parameters frozen, by the two ways to get at each example's.

    Gates for each example take one backward pass for the whole batch; gates shared by the batch, as Hugging Face's head
    mask was, take a backward pass for every example.
    """
    try:
        import torch
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError as error:
        raise HeadjaxError(f"bench heads: needs the parity extra ({error.name} is not installed)") from None
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_labels=CLASSES)).eval().requires_grad_(False)
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
        "PyTorch: importance, gates for each example": lambda: importance(slice(None)),
        "PyTorch: importance, one example at a time": lambda: [importance(slice(i, i + 1)) for i in range(SCORED[0])],
    }


def _sweep(model: Model) -> dict[str, Callable[[], Any]]:
    batch = _batch(SWEPT)
    arrays = device_batch(model.config, batch)
    return {
        "forward": lambda: forward(model.config, model.params, arrays).logits,
        "sweep": lambda: ablate(model, [batch]).ablated["loss"],
    }


def _sweep_share(timings: dict[str, Timing]) -> float:
    """The sweep's time as a share of one forward pass for every head."""
    return timings["sweep"].median / (LAYERS * HEADS * timings["forward"].median)


def _time_forwards(models: dict[str, Model], bar: Update) -> dict[int, dict[str, Timing]]:
    found = {}
    for done, (size, repeats) in enumerate(SPEEDS.items(), start=3):
        batch: Batch = {name: array for name, array in _batch((size, LENGTH)).items() if name != "labels"}
        found[size] = time_forward(models, batch, repeats=repeats)
        bar(done, {})
    return found


def speed_up(timings: dict[str, Timing]) -> float:
    """Return the time of the whole model over the time of the pruned one."""
    return timings["whole"].median / timings["pruned"].median


def _spread(timing: Timing) -> tuple[float, float, float]:
    return timing.median, timing.low, timing.high


def _scoring_table(timings: dict[str, Timing]) -> Table:
    step = timings["headjax: train step"].median
    rows = [(name, *_spread(timing), timing.median / step) for name, timing in timings.items()]
    columns = (Column(f"Batch {SCORED[0]} x {SCORED[1]}"), *COLUMNS, Column("Of a train step", numbers.significant))
    note = f"BERT-base classifier, float32, {REPEATS} runs in turns. Train step: all parameters, AdamW."
    return Table(columns, rows, title="Scoring", notes=(note,))


def _sweep_table(timings: dict[str, Timing]) -> Table:
    heads = LAYERS * HEADS
    forward, sweep = timings["forward"], timings["sweep"]
    rows = [
        (f"{heads} plain forward passes", *(heads * seconds for seconds in _spread(forward)), 1.0),
        (f"every head of {heads} ablated", *_spread(sweep), _sweep_share(timings)),
    ]
    columns = (Column(f"Batch {SWEPT[0]} x {SWEPT[1]}"), *COLUMNS, Column("Share", numbers.significant))
    return Table(columns, rows, title="Ablation", notes=(f"{SWEEPS} runs in turns, one forward pass in each.",))


def _speed_table(speeds: dict[int, dict[str, Timing]], predicted: dict[int, float]) -> Table:
    rows = [
        (
            str(size),
            size / timings["whole"].median,
            size / timings["pruned"].median,
            speed_up(timings),
            predicted[size],
            speed_up(timings) / predicted[size],
            PAPER[size],
        )
        for size, timings in speeds.items()
    ]
    columns = (
        Column("Batch"),
        Column("Whole, examples/s", numbers.significant),
        Column("Pruned, examples/s", numbers.significant),
        Column("Speed-up", numbers.significant),
        Column("By FLOPs", numbers.significant),
        Column("Reached", numbers.percent),
        Column("Paper, table 4", numbers.significant),
    )
    counts = ", ".join(f"{size}: {repeats}" for size, repeats in SPEEDS.items())
    note = f"Half of the heads removed at random over all layers, {LENGTH} tokens; medians, runs by batch: {counts}."
    return Table(columns, rows, title="Half of the heads removed", notes=(note,))


@contextlib.contextmanager
def gated(projections: Sequence[Any], gates: Any) -> Iterator[None]:
    """While open, every head's context is multiplied by its gate before the output projection.

    Args:
        projections: each attention's output projection, a `torch.nn.Module` whose input `[batch, query, width]` is the
            heads' contexts side by side.
        gates: `[layers, batch, query, heads]`, or 1 in place of `query`; a tensor.
    """

    def hook(layer: int) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
        def multiply(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            heads = inputs[0].unflatten(-1, (gates.shape[-1], -1))
            return (heads * gates[layer][..., None]).flatten(-2), *inputs[1:]

        return multiply

    handles = [module.register_forward_pre_hook(hook(layer)) for layer, module in enumerate(projections)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def torch_gate_gradient(
    projections: Sequence[Any], shape: tuple[int, int, int], loss: Callable[[], Any]
) -> tuple[Any, Any]:
    """The summed loss of a batch and its gradient in the gates, from one forward and one backward.

    Examples do not see each other, so that the gradient of the sum holds every example's own.

    Args:
        projections: see `gated`.
        shape: `(batch, query, heads)` of the gates; a query of 1 sums over positions.
        loss: computes the summed loss with the gated model.

    Returns:
        The loss, a scalar, and `[layers, batch, query, heads]`.
    """
    import torch

    gates = torch.ones(len(projections), *shape, requires_grad=True)
    with gated(projections, gates):
        total = loss()
    (gradient,) = torch.autograd.grad(total, gates)
    return total.detach(), gradient
