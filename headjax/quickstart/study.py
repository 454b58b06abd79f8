"""What the quickstart does: train, score, prune, convert and measure. Everything it finds is in one `Study`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headjax.conversion import convert
from headjax.core.errors import CheckpointError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.data.stream import evaluation_batches
from headjax.data.task import TaskData
from headjax.evaluation.evaluate import evaluate
from headjax.heads.gates import without
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.latency import time_forward
from headjax.heads.pruning import prune
from headjax.heads.scores import Scores, score_heads
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.quickstart.settings import BATCH_SIZE, FORMULATIONS, training
from headjax.training.config import train_config
from headjax.training.loop import TrainResult, train
from headjax.training.recording import read_metrics

FRACTIONS = tuple(step / 10 for step in range(11))
"""Shares of heads removed along the pruning curves."""

REMOVED_FOR_REAL = (0.25, 0.5, 1.0)
"""Shares of the standard model's heads that are removed for real."""

CONVERSIONS = (
    "collaborative:shared_dim=128",
    "collaborative:shared_dim=32",
    "grouped:kv_heads=4",
    "grouped:kv_heads=1",
    "latent:rank=64",
)
"""Other formulations made of the trained standard model, without training."""

RANDOM_ORDERS = 3
SCORED_EXAMPLES = 128


class Variant(NamedTuple):
    """A model made from the trained standard one.

    Attributes:
        name: what was done.
        model: the model.
        path: its model directory.
        perplexity: on the validation text.
        details: what else is known of it, as JSON data.
    """

    name: str
    model: Model
    path: Path
    perplexity: float
    details: Mapping[str, Any]


class Study(NamedTuple):
    """Everything the quickstart found.

    Attributes:
        data: the text.
        trained: by formulation, the training run.
        curves: by formulation, records of training metrics.
        scores: by formulation, every head score.
        pruning: by formulation and order, (fraction removed, perplexity) points.
        pruned, converted: models made from the standard one.
        timings: by model name, one forward pass of `timed_tokens` tokens.
        timed_tokens: tokens of that pass.
        seconds: wall-clock time in all.
    """

    data: TaskData
    trained: Mapping[str, TrainResult]
    curves: Mapping[str, Sequence[Mapping[str, float]]]
    scores: Mapping[str, Scores]
    pruning: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
    pruned: Sequence[Variant]
    converted: Sequence[Variant]
    timings: Mapping[str, Timing]
    timed_tokens: int
    seconds: float

    @property
    def text(self) -> str:
        """Name of the text."""
        return str(self.data.info["text"])


def run_study(
    workdir: Path, *, steps: int, path: str = "", batch_size: int = BATCH_SIZE, progress: Progress = silent
) -> Study:
    """Trains the formulations in `workdir` and takes the standard one's heads apart.

    Args:
        workdir: holds one training run per formulation and the pruned and converted models.
        steps: optimizer steps of each run.
        path: the user's text; empty for the text that ships with Python.
        batch_size: blocks per step.
        progress: shows the advance.

    Raises:
        CheckpointError: interrupted (the same call goes on), or the workdir holds other runs.
    """
    started = time.perf_counter()
    configs = {
        name: train_config(training(name, steps=steps, path=path, batch_size=batch_size)) for name in FORMULATIONS
    }
    data = configs["standard"].data.load()
    trained: dict[str, TrainResult] = {}
    for name, config in configs.items():
        trained[name] = train(config, workdir / name, data=data, progress=_titled(progress, name))
        if not trained[name].finished:
            raise CheckpointError(
                f"{workdir / name}: interrupted after step {trained[name].steps}; run it again to go on"
            )
    scores = {name: _score(result.model, data, batch_size) for name, result in trained.items()}
    pruning = _pruning_curves(trained, scores, data, batch_size, progress)
    standard = trained["standard"].model
    pruned = _prune(standard, scores["standard"], workdir, data, batch_size)
    converted = _convert(standard, workdir, data, batch_size)
    models = {name: result.model for name, result in trained.items()}
    models |= {variant.name: variant.model for variant in (*pruned, *converted)}
    batch = {"input_ids": next(iter(_batches(data, batch_size)))["input_ids"]}
    return Study(
        data=data,
        trained=trained,
        curves={name: read_metrics(workdir / name / "metrics.jsonl") for name in configs},
        scores=scores,
        pruning=pruning,
        pruned=pruned,
        converted=converted,
        timings=time_forward(models, batch),
        timed_tokens=int(np.size(batch["input_ids"])),
        seconds=time.perf_counter() - started,
    )


def importance_order(scores: Scores) -> list[HeadId]:
    """Heads by increasing importance: the order in which the paper removes them."""
    return sorted(scores.score("importance"), key=lambda head: (scores.score("importance")[head], head))


def _score(model: Model, data: TaskData, batch_size: int) -> Scores:
    # Scored on training text, so that the validation text judges a choice it had no part in.
    count = max(1, min(SCORED_EXAMPLES, len(data.train)) // batch_size)
    return score_heads(model, islice(evaluation_batches(data.train, batch_size), count))


def _pruning_curves(
    trained: Mapping[str, TrainResult],
    scores: Mapping[str, Scores],
    data: TaskData,
    batch_size: int,
    progress: Progress,
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Perplexity with more and more heads gated off: by importance, for the standard model also at random."""
    orders = {name: [("least important first", importance_order(scores[name]))] for name in trained}
    for seed in range(RANDOM_ORDERS):
        heads = list(all_heads(trained["standard"].model.config))
        np.random.default_rng(seed).shuffle(heads)
        orders["standard"].append(("random order", heads))
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with progress("pruning curves", sum(map(len, orders.values())) * len(FRACTIONS), "point") as bar:
        done = 0
        for name, named in orders.items():
            model = trained[name].model
            for label, order in named:
                points = curves.setdefault(name, {}).setdefault(label, [])
                for fraction in FRACTIONS:
                    gates = without(model.config, order[: round(fraction * len(order))])
                    metrics = evaluate(model, _batches(data, batch_size), gates=gates)
                    points.append((fraction, metrics["perplexity"]))
                    done += 1
                    bar(done, {})
    return curves


def _prune(model: Model, scores: Scores, workdir: Path, data: TaskData, batch_size: int) -> list[Variant]:
    order = importance_order(scores)
    variants = []
    for fraction in REMOVED_FOR_REAL:
        removed = order[: round(fraction * len(order))]
        smaller = prune(model, removed)
        path = workdir / f"pruned-{fraction:.0%}".rstrip("%")
        smaller.save(path)
        metrics = evaluate(smaller, _batches(data, batch_size))
        masked = evaluate(model, _batches(data, batch_size), gates=without(model.config, removed))
        details = {
            "fraction": fraction,
            "removed": [str(head) for head in sorted(removed)],
            "loss": metrics["loss"],
            "masked_loss": masked["loss"],
        }
        variants.append(Variant(f"{fraction:.0%} of heads removed", smaller, path, metrics["perplexity"], details))
    return variants


def _convert(model: Model, workdir: Path, data: TaskData, batch_size: int) -> list[Variant]:
    variants = []
    for target in CONVERSIONS:
        conversion = convert(model, target)
        path = workdir / f"converted-{target.replace(':', '-').replace('=', '-')}"
        conversion.model.save(path)
        metrics = evaluate(conversion.model, _batches(data, batch_size))
        details = {
            "to": target,
            "error_per_layer": [
                {"stack": error.stack, "layer": error.layer, "relative_error": error.relative_error}
                for error in conversion.errors
            ],
        }
        variants.append(Variant(f"to {target}", conversion.model, path, metrics["perplexity"], details))
    return variants


def _batches(data: TaskData, batch_size: int) -> Iterator[Batch]:
    return evaluation_batches(data.validation, batch_size)


def _titled(progress: Progress, name: str) -> Progress:
    return lambda title, total, unit: progress(f"{title} {name}", total, unit)
