"""The quickstart's study: from the text to every number of its page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import DivergedError, StoppedError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.data.task import TaskData
from headjax.models.model import Model
from headjax.quickstart.decoder import demo_model
from headjax.quickstart.settings import BATCH_SIZE, FORMULATIONS, SEEDS, SHORT, STEPS, training
from headjax.quickstart.subject import (
    GENERATING,
    Gated,
    Heads,
    Text,
    Variant,
    remove,
    samples,
    share,
    study_heads,
    time_generation,
)
from headjax.training.config import train_config
from headjax.training.loop import TrainResult, train
from headjax.training.recording import read_metrics

DECODER = "decoder"


class Study(NamedTuple):
    """Everything the quickstart found.

    Attributes:
        text: the text, and its blocks to judge on.
        subject: name of the model whose heads are taken apart: `decoder`, the one that headjax carries, or `standard`,
            trained on the user's own text.
        model: that model.
        path: its model directory.
        loss: its loss in nats per held-out token.
        counts: by name, the losses of n-gram counts on the same tokens.
        samples: prompts and what the model writes after them.
        heads: what is known of its heads.
        pruned, converted: models made from it.
        trained: by formulation, the training runs, one a seed.
        curves: by formulation, records of the first run's metrics.
        timings: by model name, generating.
        steps: optimizer steps of each training run.
        seconds: wall-clock time in all.
    """

    text: Text
    subject: str
    model: Model
    path: Path
    loss: float
    counts: Mapping[str, float]
    samples: Sequence[tuple[str, str]]
    heads: Heads
    pruned: Sequence[Variant]
    converted: Sequence[Variant]
    trained: Mapping[str, Sequence[TrainResult]]
    curves: Mapping[str, Sequence[Mapping[str, float]]]
    timings: Mapping[str, Timing]
    steps: int
    seconds: float


def run_study(
    workdir: Path,
    *,
    steps: int | None = None,
    path: str = "",
    batch_size: int = BATCH_SIZE,
    progress: Progress = silent,
) -> Study:
    """Take a language model's heads apart, and train three formulations side by side.

    The model is the decoder that headjax carries; with a text of the user's own it is the standard formulation, trained
    on that text.

    Args:
        workdir: holds the training runs, the model and what is made of it.
        steps: optimizer steps of each training run; None is `SHORT`, or `STEPS` with a text of the user's own.
        path: the user's text; empty for the source code of Python's standard library.
        batch_size: blocks per step.
        progress: shows the advance.

    Raises:
        StoppedError: interrupted while it trained; the same call goes on.
        DivergedError: a training run diverged.
        CheckpointError: the workdir holds other runs.
    """
    started = time.perf_counter()
    steps = steps if steps is not None else (STEPS if path else SHORT)
    decoder = None if path else demo_model()
    config = train_config(training("standard", steps=steps, path=path, batch_size=batch_size))
    with progress("reading the text", 1, "text"):
        text = Text(config.data.load(None if decoder is None else decoder.tokenizer))
    trained = {
        name: [_train(workdir, name, seed, steps, path, batch_size, text.judged, progress) for seed in SEEDS]
        for name in FORMULATIONS
    }
    subject = "standard" if decoder is None else DECODER
    model = trained["standard"][0].model if decoder is None else decoder
    folder = workdir / subject
    if decoder is not None:
        decoder.save(folder)
    gated = Gated(model, text)
    heads = study_heads(gated, progress)
    pruned = remove(gated, heads.scores, workdir, progress)
    converted = share(model, text, workdir, progress)
    timings = time_generation({subject: model} | _generating((*pruned, *converted)), text, progress)
    with progress("writing and counting", 1, "text"):
        written, counts = samples(model), text.counts(model.tokenizer.largest_id + 1)
    return Study(
        text=text,
        subject=subject,
        model=model,
        path=folder if decoder is not None else folder / "model",
        loss=gated.loss(),
        counts=counts,
        samples=written,
        heads=heads,
        pruned=pruned,
        converted=converted,
        trained=trained,
        curves={name: read_metrics(_run_folder(workdir, name, SEEDS[0]) / "metrics.jsonl") for name in FORMULATIONS},
        timings=timings,
        steps=steps,
        seconds=time.perf_counter() - started,
    )


def _generating(variants: Sequence[Variant]) -> dict[str, Model]:
    """Return the models of `GENERATING` by name; of conversions the calibrated ones."""
    return {
        variant.name: variant.model
        for variant in variants
        if str(variant.details.get("fraction")) in GENERATING
        or (variant.details.get("to") in GENERATING and variant.details["calibrated"])
    }


def _train(
    workdir: Path, name: str, seed: int, steps: int, path: str, batch_size: int, data: TaskData, progress: Progress
) -> TrainResult:
    fields = training(name, steps=steps, path=path, batch_size=batch_size, seed=seed)
    if seed != SEEDS[0]:
        fields["evaluate_every"] = 0  # The page draws the first seed's curve; of the others it tells the end.
    config = train_config(fields)
    folder = _run_folder(workdir, name, seed)
    titled = lambda title, total, unit: progress(f"{title} {name}, seed {seed}", total, unit)  # noqa: E731
    result = train(config, folder, data=data, progress=titled)
    if result.diverged is not None:
        raise DivergedError(f"{folder}: diverged: {result.diverged}")
    if not result.finished:
        raise StoppedError(f"{folder}: interrupted after step {result.steps}; the same command goes on from there")
    return result


def _run_folder(workdir: Path, name: str, seed: int) -> Path:
    """Return where a run goes: the first seed's under the formulation's name."""
    return workdir / (name if seed == SEEDS[0] else f"{name}-seed{seed}")
