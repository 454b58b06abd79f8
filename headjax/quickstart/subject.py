"""Measurements of one language model: its text beside counts, its heads, their removal, sharing and generation."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headjax.conversion import convert
from headjax.conversion.calibration import collect
from headjax.core.progress import Progress
from headjax.core.timing import Timing, time_in_turns
from headjax.data.examples import Source
from headjax.data.ngrams import ngram_losses
from headjax.data.task import TaskData
from headjax.evaluation.task import evaluate
from headjax.heads.gates import without
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.marked_keys import attention_on_marks, matching_bracket, previous_token, same_context
from headjax.heads.ordering import by_scores, random_order
from headjax.heads.pruning import prune
from headjax.heads.scores import Scores, score_heads
from headjax.models.config import Batch
from headjax.models.generation import Greedy, Sample, generate
from headjax.models.model import Model

FRACTIONS = tuple(step / 8 for step in range(9))
"""Shares of heads removed along the pruning curve in the order of importance."""

RANDOM_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares removed in each random order."""

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
"""Models that generate beside the whole one: half of the heads removed, and two conversions."""

COUNTS = ("unigram", "bigram", "trigram")
"""Counts of one, two and three tokens, which a language model has to beat."""

RANDOM_ORDERS = 3
ORDER_BLOCKS = 64
"""Training blocks that order the heads."""
HELD_OUT_BLOCKS = 32
"""Held-out blocks, evenly spread over the text, that everything is judged on."""
CALIBRATION_BLOCKS = 32
ROLE_BLOCKS = 32
BATCH = 8
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


class Role(NamedTuple):
    """The head that does one thing most.

    Attributes:
        head: the head.
        weight: its attention weight on the keys that the thing is about, a mean over queries.
        uniform: the same for equal attention to all keys.
    """

    head: HeadId
    weight: float
    uniform: float


class Heads(NamedTuple):
    """Scores, roles and pruning curves of the model's heads.

    Attributes:
        scores: every head score, on training blocks.
        roles: by what is looked for, the head that does it most.
        curves: by order, (share of heads removed, bits per byte) points; several orders are repeats at random.
    """

    scores: Scores
    roles: Mapping[str, Role]
    curves: Mapping[str, Sequence[tuple[float, float]]]

    def at(self, order: str, fraction: float) -> float:
        """Return the mean of bits per byte with this share of the heads removed."""
        return float(np.mean([value for share, value in self.curves[order] if share == fraction]))


IMPORTANCE, RANDOM = "least important first", "random order"


class Text:
    """A language model's text: blocks to choose on, blocks to judge on, and the bytes that a token stands for."""

    def __init__(self, data: TaskData) -> None:
        self.data = data
        self.held_out = _spread(data.validation, HELD_OUT_BLOCKS)
        self.bytes_per_token = float(data.info["validation"]["bytes_per_token"])

    @property
    def name(self) -> str:
        """Name of the text."""
        return str(self.data.info["text"])

    @property
    def judged(self) -> TaskData:
        """The data with the held-out blocks that everything is judged on as all its validation examples."""
        return self.data._replace(validation=[{"input_ids": block} for block in self.held_out])

    def training_blocks(self, count: int, seed: int = 0) -> np.ndarray:
        """Return blocks of training text drawn at random, `[blocks, length]`."""
        total = len(self.data.train)
        chosen = np.random.default_rng(seed).permutation(total)[:count]
        return np.stack([np.asarray(self.data.train[int(place)]["input_ids"]) for place in sorted(chosen)])

    def loss(self, model: Model, removed: Sequence[HeadId] = ()) -> float:
        """Return the loss in nats per held-out token, with some heads gated off."""
        return self.measure(model, removed)[0]

    def measure(self, model: Model, removed: Sequence[HeadId] = ()) -> tuple[float, float]:
        """Return the loss, and the median seconds of a batch of `BATCH` blocks.

        The first batch, which compiles, is not timed.
        """
        gates = without(model.config, removed)
        losses, seconds = [], []
        for batch in batches(self.held_out):
            started = time.perf_counter()
            losses.append(evaluate(model, [batch], gates=gates)["loss"])
            seconds.append(time.perf_counter() - started)
        return statistics.fmean(losses), statistics.median(seconds[1:] or seconds)

    def bits(self, loss: float) -> float:
        """Return bits per byte of a loss in nats per token."""
        return loss / math.log(2.0) / self.bytes_per_token

    def perplexity(self, bits: float) -> float:
        """Return the perplexity per token of a number of bits per byte."""
        return math.exp(bits * math.log(2.0) * self.bytes_per_token)

    def counts(self, vocab_size: int) -> dict[str, float]:
        """Return the losses of unigram, bigram and trigram counts of the training text on the held-out blocks."""
        blocks = [np.asarray(self.data.train[place]["input_ids"]) for place in range(len(self.data.train))]
        losses = ngram_losses(blocks, self.held_out, vocab_size, len(COUNTS))
        return dict(zip(COUNTS, losses, strict=True))


def batches(blocks: np.ndarray, size: int = BATCH) -> Iterator[Batch]:
    """Return blocks in batches of one size; a rest is left out unless it is all there is."""
    size = min(size, len(blocks))
    for start in range(0, len(blocks) - size + 1, size):
        yield {"input_ids": blocks[start : start + size]}


def _spread(source: Source, count: int) -> np.ndarray:
    places = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    return np.stack([np.asarray(source[int(place)]["input_ids"]) for place in places])


def samples(model: Model, seed: int = 0) -> list[tuple[str, str]]:
    """Return prompts and what the model writes after them."""
    sampler = Sample(temperature=0.5, top_p=0.95)
    written = generate(model, list(PROMPTS), max_new_tokens=96, sampler=sampler, seed=seed)
    return list(zip(PROMPTS, written, strict=True))


class Gated:
    """Losses of one model on the held-out blocks with heads gated off; an equal removal is evaluated once."""

    def __init__(self, model: Model, text: Text) -> None:
        self.model, self.text = model, text
        self._known: dict[frozenset[HeadId], float] = {}

    def loss(self, removed: Iterable[HeadId] = ()) -> float:
        """Return the loss in nats per held-out token without these heads."""
        heads = frozenset(removed)
        if heads not in self._known:
            self._known[heads] = self.text.loss(self.model, sorted(heads))
        return self._known[heads]


def study_heads(gated: Gated, progress: Progress) -> Heads:
    """Score the heads on training blocks, find what some of them do, and remove them in order on held-out blocks."""
    model, text = gated.model, gated.text
    chosen_on = list(batches(text.training_blocks(ORDER_BLOCKS)))
    with progress("scoring heads", len(chosen_on), "batch") as bar:
        scores = score_heads(model, chosen_on, progress=bar)
    points = [(IMPORTANCE, by_scores(scores, "importance"), fraction) for fraction in FRACTIONS]
    for seed in range(RANDOM_ORDERS):
        points += [(RANDOM, random_order(model.config, seed), fraction) for fraction in RANDOM_FRACTIONS]
    curves: dict[str, list[tuple[float, float]]] = {IMPORTANCE: [], RANDOM: []}
    with progress("removing heads", len(points), "point") as bar:
        for done, (name, order, fraction) in enumerate(points, start=1):
            loss = gated.loss(order[: round(fraction * len(order))])
            curves[name].append((fraction, text.bits(loss)))
            bar(done, {})
    with progress("reading attention", 1, "model"):
        roles = find_roles(model, text)
    return Heads(scores, roles, curves)


def find_roles(model: Model, text: Text) -> dict[str, Role]:
    """Return the heads that attend most to the previous token, to what followed earlier copies, to opened brackets."""
    backend = model.tokenizer.backend
    spelled = {token: backend.decode([token]) for token in range(backend.get_vocab_size())}
    markers = {
        "previous token": previous_token,
        "what followed this token before": same_context,
        "the bracket that this one closes": matching_bracket(spelled.__getitem__),
    }
    blocks = text.training_blocks(ROLE_BLOCKS, seed=1)
    present = {name: marker for name, marker in markers.items() if any(marker(row).any() for row in blocks.tolist())}
    found = attention_on_marks(model, batches(blocks, 4), present)
    heads = all_heads(model.config)
    roles = {}
    for name, weights in found.items():
        best = max(heads, key=weights.__getitem__)
        roles[name] = Role(best, weights[best], weights["uniform"])
    return roles


def remove(gated: Gated, scores: Scores, workdir: Path, progress: Progress) -> list[Variant]:
    """Remove shares of the heads for real and compare each model with the gated one."""
    order = by_scores(scores, "importance")
    variants = []
    with progress("removing heads for real", len(REMOVED_FOR_REAL), "model") as bar:
        for fraction in REMOVED_FOR_REAL:
            removed = order[: round(fraction * len(order))]
            smaller = prune(gated.model, removed)
            path = workdir / f"pruned-{fraction:.0%}".rstrip("%")
            smaller.save(path)
            loss, seconds = gated.text.measure(smaller)
            details = {
                "fraction": fraction,
                "forward_seconds": seconds,
                "removed": [str(head) for head in sorted(removed)],
                "loss": loss,
                "masked_loss": gated.loss(removed),
            }
            variants.append(Variant(f"{fraction:.0%} of heads removed", smaller, path, loss, details))
            bar(len(variants), {})
    return variants


def share(model: Model, text: Text, workdir: Path, progress: Progress) -> list[Variant]:
    """Convert the model to every formulation of `CONVERSIONS`, from its weights alone and calibrated."""
    moments = collect(model, batches(text.training_blocks(CALIBRATION_BLOCKS, seed=2)))
    variants = []
    with progress("converting", 2 * len(CONVERSIONS), "model") as bar:
        for target in CONVERSIONS:
            for calibrated in (False, True):
                conversion = convert(model, target, batches=moments if calibrated else None)
                ending = "-calibrated" if calibrated else ""
                path = workdir / f"converted-{target.replace(':', '-').replace('=', '-')}{ending}"
                conversion.model.save(path)
                loss, seconds = text.measure(conversion.model)
                details = {
                    "to": target,
                    "calibrated": calibrated,
                    "forward_seconds": seconds,
                    "error_per_layer": [
                        {"stack": error.stack, "layer": error.layer, "relative_error": error.relative_error}
                        for error in conversion.errors
                    ],
                }
                name = f"to {target}{', calibrated' if calibrated else ''}"
                variants.append(Variant(name, conversion.model, path, loss, details))
                bar(len(variants), {})
    return variants


def time_generation(models: Mapping[str, Model], text: Text, progress: Progress) -> dict[str, Timing]:
    """Return the seconds in which each model continues the same prompts by `GENERATED` tokens, taken in turns."""
    prompts = text.held_out[:BATCH, : text.held_out.shape[1] - GENERATED]
    calls = {name: functools.partial(_continue, model, prompts) for name, model in models.items()}
    with progress("compiling generation", len(calls), "model") as bar:
        for done, call in enumerate(calls.values(), start=1):
            call()
            bar(done, {})
    return time_in_turns(calls, repeats=3, warmup=0, settle=0, progress=progress)


def _continue(model: Model, prompts: np.ndarray) -> Any:
    return generate(model, {"input_ids": prompts}, max_new_tokens=GENERATED, sampler=Greedy()).tokens
