"""The quickstart's study: from the text to every number of its page."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headjax.conversion import convert
from headjax.conversion.calibration import calibrate
from headjax.core.errors import DivergedError, StoppedError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.data.task import TaskData
from headjax.evaluation.selection import selection_of
from headjax.head_report.measure import measure_curves
from headjax.head_report.study import HeadStudy, StudyConfig, begin
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.marked_keys import attention_on_marks, matching_bracket, previous_token, same_context
from headjax.heads.ordering import by_score, compared
from headjax.heads.pruning import prune
from headjax.models.generation import generate
from headjax.models.model import Model
from headjax.models.sampling import Greedy, Sample
from headjax.quickstart.settings import BATCH_SIZE, FORMULATIONS, SEEDS, SHORT, STEPS, training
from headjax.quickstart.text import BATCH, Text, batches, demo_model
from headjax.shrinking.grid import Grid, Level
from headjax.shrinking.shrink import Budget, shrink
from headjax.shrinking.story import Story
from headjax.training.config import train_config
from headjax.training.loop import TrainResult, train
from headjax.training.recording import read_metrics

DECODER = "decoder"

HEADS = StudyConfig(
    judged=0, batch_size=BATCH, orders=("reconstruction+reconstruct", "importance", "random"), scored=64,
    percentages=(25, 50, 75, 100),
)  # fmt: skip
"""Measurements of the heads."""

REMOVED_FOR_REAL = (0.25, 0.5, 1.0)
"""Shares of the heads that are removed for real."""

CONVERSIONS = (
    "collaborative:shared_dim=64",
    "collaborative:shared_dim=32",
    "grouped:kv_heads=4",
    "grouped:kv_heads=1",
    "latent:rank=64",
    "latent:rank=32",
)
"""Other formulations made of the model without training, plain and calibrated."""

GENERATING = ("0.5", "grouped:kv_heads=1", "latent:rank=64")
"""Models that generate beside the unpruned one: half of the heads removed, and two conversions."""

HALF = Budget(parameters=0.5)
"""Budget of the shrunk model."""

SHRINKING = Grid(
    heads=(0.75, 0.5, 0.25), units=(0.7, 0.5, 0.3, 0.15), cached=(Level(1.0, "grouped", 0.5), Level(0.5, "latent", 0.5))
)
"""The forms of every layer that the budget is met with: fewer than `headjax shrink` tries."""

CALIBRATION_BLOCKS = ROLE_BLOCKS = 32
GENERATED = 64

# They end with a word: spaces at an end would be other tokens than spaces before a word.
PROMPTS = (
    "def read_lines(path, encoding=None):\n    with open",
    "class Queue:\n    def __init__(self, maxsize=0):\n        self",
    "    for name, value in sorted(items.items()):\n        if",
)


class Variant(NamedTuple):
    """A model made from the trained one.

    Attributes:
        name: what was done.
        model: the model.
        path: its model directory.
        loss: in nats per token of the held-out blocks.
        details: what else is known of it, as JSON data.
    """

    name: str
    model: Model
    path: Path
    loss: float
    details: Mapping[str, Any]


class MarkRole(NamedTuple):
    """The head that does one thing most.

    Attributes:
        head: the head.
        weight: its attention weight on the keys that the thing is about, a mean over queries.
        uniform: the same for equal attention to all keys.
    """

    head: HeadId
    weight: float
    uniform: float


class Study(NamedTuple):
    """Everything the quickstart found.

    Attributes:
        text: the text.
        subject: name of the model whose heads are taken apart: `decoder`, the one that headjax carries, or `standard`,
            trained on the user's own text.
        model: that model.
        path: its model directory.
        loss: its loss in nats per held-out token.
        samples: prompts and what the model writes after them.
        heads: scores and pruning curves of its heads.
        roles: by what is looked for, the head that does it most.
        pruned, converted: models made from it.
        shrunk: the model within `HALF`.
        story: how it was chosen.
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
    samples: Sequence[tuple[str, str]]
    heads: HeadStudy
    roles: Mapping[str, MarkRole]
    pruned: Sequence[Variant]
    converted: Sequence[Variant]
    shrunk: Variant
    story: Story
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
        StoppedError: interrupted while it trained; the same call continues.
        DivergedError: a training run diverged.
        CheckpointError: the workdir holds other runs.
    """
    started = time.perf_counter()
    steps = steps if steps is not None else (STEPS if path else SHORT)
    decoder = None if path else demo_model()
    text, trained = _trained(workdir, decoder, steps, path, batch_size, progress)
    subject, model, folder = _subject(workdir, decoder, trained["standard"][0])
    heads = begin(model, text.task(), HEADS, selection=selection_of(text.task()))
    for _ in measure_curves(heads, progress):
        pass
    pruned = remove(heads, text, workdir, progress)
    converted = share(model, text, workdir, progress)
    shrunk, story = shrink_to_half(model, text, workdir, progress)
    generating = {subject: model} | _generating((*pruned, *converted)) | {shrunk.name: shrunk.model}
    timings = time_generation(generating, text, progress)
    with progress("writing, and reading attention", 1, "text"):
        samples, roles = _samples(model), find_roles(model, text)
    return Study(
        text=text,
        subject=subject,
        model=model,
        path=folder,
        loss=text.measure(model)[0],
        samples=samples,
        heads=heads,
        roles=roles,
        pruned=pruned,
        converted=converted,
        shrunk=shrunk,
        story=story,
        trained=trained,
        curves={name: read_metrics(_run_folder(workdir, name, SEEDS[0]) / "metrics.jsonl") for name in FORMULATIONS},
        timings=timings,
        steps=steps,
        seconds=time.perf_counter() - started,
    )


def _trained(
    workdir: Path, decoder: Model | None, steps: int, path: str, batch_size: int, progress: Progress
) -> tuple[Text, dict[str, list[TrainResult]]]:
    """Return the text, and by formulation the training runs on it."""
    config = train_config(training("standard", steps=steps, path=path, batch_size=batch_size))
    with progress("reading the text", 1, "text"):
        text = Text(config.data.load(None if decoder is None else decoder.tokenizer))
    run = functools.partial(
        _train, workdir, steps=steps, path=path, batch_size=batch_size, data=text.data, progress=progress
    )
    return text, {name: [run(name, seed) for seed in SEEDS] for name in FORMULATIONS}


def _subject(workdir: Path, decoder: Model | None, standard: TrainResult) -> tuple[str, Model, Path]:
    """Return the name, the model and the model directory of the model to take apart."""
    if decoder is None:
        return "standard", standard.model, workdir / "standard" / "model"
    decoder.save(workdir / DECODER)
    return DECODER, decoder, workdir / DECODER


def _samples(model: Model) -> list[tuple[str, str]]:
    """Return the prompts, and the model's text after each."""
    sampler = Sample(temperature=0.5, top_p=0.95)
    return list(zip(PROMPTS, generate(model, list(PROMPTS), max_new_tokens=96, sampler=sampler, seed=0), strict=True))


def _train(
    workdir: Path, name: str, seed: int, *, steps: int, path: str, batch_size: int, data: TaskData, progress: Progress
) -> TrainResult:
    fields = training(name, steps=steps, path=path, batch_size=batch_size, seed=seed)
    if seed != SEEDS[0]:
        fields["evaluate_every"] = 0  # The page draws the first seed's curve; of the others it tells the end.
    folder = _run_folder(workdir, name, seed)
    titled = lambda title, total, unit: progress(f"{title} {name}, seed {seed}", total, unit)  # noqa: E731
    result = train(train_config(fields), folder, data=data, progress=titled)
    if result.diverged is not None:
        raise DivergedError(f"{folder}: diverged: {result.diverged}")
    if not result.finished:
        raise StoppedError(f"{folder}: interrupted after step {result.steps}; the same command continues from there")
    return result


def _run_folder(workdir: Path, name: str, seed: int) -> Path:
    """Return where a run goes: the first seed's under the formulation's name."""
    return workdir / (name if seed == SEEDS[0] else f"{name}-seed{seed}")


def find_roles(model: Model, text: Text) -> dict[str, MarkRole]:
    """Return the heads that attend most to the previous token, to successors of earlier copies, to opened brackets."""
    backend = model.tokenizer.backend
    spelled = {token: backend.decode([token]) for token in range(backend.get_vocab_size())}
    markers = {
        "previous token": previous_token,
        "what followed this token before": same_context,
        "the bracket that this one closes": matching_bracket(spelled.__getitem__),
    }
    blocks = text.training_blocks(ROLE_BLOCKS, seed=1)
    present = {name: marker for name, marker in markers.items() if any(marker(row).any() for row in blocks.tolist())}
    roles = {}
    for name, weights in attention_on_marks(model, batches(blocks, 4), present).items():
        best = max(all_heads(model.config), key=weights.__getitem__)
        roles[name] = MarkRole(best, weights[best], weights["uniform"])
    return roles


def remove(heads: HeadStudy, text: Text, workdir: Path, progress: Progress) -> list[Variant]:
    """Remove shares of the heads for real, and gate the same heads off."""
    order = by_score(compared(heads.scores, "importance"))
    variants = []
    with progress("removing heads for real", len(REMOVED_FOR_REAL), "model") as bar:
        for fraction in REMOVED_FOR_REAL:
            removed = order[: round(fraction * len(order))]
            path = workdir / f"pruned-{fraction:.0%}".rstrip("%")
            more = {
                "fraction": fraction,
                "removed": [str(head) for head in sorted(removed)],
                "masked_loss": text.measure(heads.model, removed)[0],
            }
            variants.append(_saved(f"{fraction:.0%} of heads removed", prune(heads.model, removed), path, text, more))
            bar(len(variants), {})
    return variants


def share(model: Model, text: Text, workdir: Path, progress: Progress) -> list[Variant]:
    """Convert the model to every formulation of `CONVERSIONS`, from its weights alone and calibrated."""
    calibration = calibrate(model, batches(text.training_blocks(CALIBRATION_BLOCKS, seed=2)))
    variants = []
    with progress("converting", 2 * len(CONVERSIONS), "model") as bar:
        for target in CONVERSIONS:
            for calibrated in (False, True):
                conversion = convert(model, target, batches=calibration if calibrated else None)
                ending = "-calibrated" if calibrated else ""
                path = workdir / f"converted-{target.replace(':', '-').replace('=', '-')}{ending}"
                errors = [
                    {"stack": error.stack, "layer": error.layer, "relative_error": error.relative_error}
                    for error in conversion.errors
                ]
                more = {"to": target, "calibrated": calibrated, "error_per_layer": errors}
                name = f"to {target}{', calibrated' if calibrated else ''}"
                variants.append(_saved(name, conversion.model, path, text, more))
                bar(len(variants), {})
    return variants


def shrink_to_half(model: Model, text: Text, workdir: Path, progress: Progress) -> tuple[Variant, Story]:
    """Return the model within `HALF`, and how it was chosen."""
    blocks = list(batches(text.training_blocks(CALIBRATION_BLOCKS, seed=3)))
    found = shrink(model, blocks, HALF, grid=SHRINKING, measured=16, length=text.length, progress=progress)
    story = Story(found.table, "parameters", found.frontier, found.choice)
    more = {"layers": story.layers()}
    return _saved(f"shrunk to {HALF.parameters:.0%}", found.model, workdir / "shrunk", text, more), story


def _saved(name: str, model: Model, path: Path, text: Text, more: Mapping[str, Any]) -> Variant:
    model.save(path)
    loss, seconds = text.measure(model)
    return Variant(name, model, path, loss, {**more, "loss": loss, "forward_seconds": seconds})


def _generating(variants: Sequence[Variant]) -> dict[str, Model]:
    """Return the models of `GENERATING` by name; of conversions the calibrated ones."""
    return {
        variant.name: variant.model
        for variant in variants
        if str(variant.details.get("fraction")) in GENERATING
        or (variant.details.get("to") in GENERATING and variant.details["calibrated"])
    }


def time_generation(models: Mapping[str, Model], text: Text, progress: Progress) -> dict[str, Timing]:
    """Return the seconds in which each model continues the same prompts by `GENERATED` tokens, taken in turns."""
    prompts = text.held_out[:BATCH, : text.length - GENERATED]
    calls = {name: functools.partial(_continue, model, prompts) for name, model in models.items()}
    with progress("compiling generation", len(calls), "model") as bar:
        for done, call in enumerate(calls.values(), start=1):
            call()
            bar(done, {})
    return time_in_turns(calls, repeats=3, warmup=0, settle=0, progress=progress)


def _continue(model: Model, prompts: np.ndarray) -> Any:
    return generate(model, {"input_ids": prompts}, max_new_tokens=GENERATED, sampler=Greedy()).tokens
