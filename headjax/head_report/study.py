"""The report's measurements of a model's heads: pruning curves of several orders, scores, ablations, and views.

A view is what the attention viewer shows: every head on an example, and predictions with heads switched off.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import require
from headjax.core.fields import Checked, Count, Size
from headjax.core.progress import Progress, silent
from headjax.data.examples import subset
from headjax.data.source import classes_of
from headjax.evaluation.paired import Comparison, HeadEffects, head_effects, paired_test
from headjax.evaluation.specs import SEED, split_task
from headjax.evaluation.task import Evaluation, Task, measure_task
from headjax.heads.ablation import ablate
from headjax.heads.agreement import Predictions, agreement_kind, compare, mean_agreement, predict
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId, Values, all_heads
from headjax.heads.ordering import fitting, removals
from headjax.heads.orders import LEARNED, OrderConfig, order_heads
from headjax.heads.program import gated
from headjax.heads.pruning import percent_steps
from headjax.heads.reconstruct import reconstruct
from headjax.heads.scoring import Role, head_roles, score_heads
from headjax.models.config import Batch
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.nn.block import Compute

WORDS = {"importance_layer": "importance within the layer", "random": "chance"}


@dataclasses.dataclass(frozen=True)
class CurveConfig(Checked):
    """An order of removal, and whether the output projections of kept heads are then refitted."""

    order: OrderConfig
    reconstruct: bool = False

    @property
    def words(self) -> str:
        """The order in words."""
        words = WORDS.get(self.order.by, self.order.by.replace("_", " "))
        return f"{words}, refitted" if self.reconstruct else words

    @classmethod
    def parse(cls, text: str) -> CurveConfig:
        """`importance`, `reconstruction+reconstruct`, ..."""
        order = text.removesuffix("+reconstruct")
        return cls(OrderConfig(by=order), order != text)


Judge = Callable[[Model], tuple[float, Comparison | None]]
"""From a model to its primary metric on a task, and the change from the original's, tested on the same examples."""

Draw = Callable[[int], Sequence[Batch]]
"""From a seed to the examples that heads are ordered by."""


class CurvePoint(NamedTuple):
    """One point of one order: the share of heads removed, their number, the seed, the primary metric without them."""

    fraction: float
    removed: int
    seed: int
    value: float
    change: Comparison | None = None
    heads: tuple[HeadId, ...] = ()


def curve(
    model: Model, config: CurveConfig, batches: Sequence[Batch], percentages: Sequence[int], judge: Judge, seed: int = 0
) -> Iterator[CurvePoint]:
    """Yield the primary metric with more and more heads gated off; heads that layers share go together."""
    total = len(all_heads(model.config))
    ordered = functools.partial(order_heads, model, batches, dataclasses.replace(config.order, seed=seed))
    learned = config.order.by in LEARNED  # gates choose all heads together, for each number anew
    order = () if learned else ordered()
    for percentage, count in zip(percentages, percent_steps(total, percentages), strict=True):
        order = ordered(count=count) if learned else order
        removed, _ = fitting(removals(find_sites(model), order), count)
        repaired = model
        if config.reconstruct and count < total:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # fewer tokens than unknowns: the page tells the examples
                repaired = reconstruct(model, batches, removed).repaired
        value, change = judge(gated(repaired, dict.fromkeys(removed, 0.0)))
        yield CurvePoint(percentage / 100.0, len(removed), seed, value, change, tuple(removed))


def removable(points: Sequence[CurvePoint], baseline: float, drop: float, higher_is_better: bool) -> float:
    """Return the largest share of heads up to which every measured share loses at most `drop`, seeds averaged."""
    sign = 1.0 if higher_is_better else -1.0
    best = 0.0
    for fraction in sorted({point.fraction for point in points}):
        values = [point.value for point in points if point.fraction == fraction]
        if sign * (baseline - sum(values) / len(values)) > drop:
            break
        best = fraction
    return best


ORDERS = ("reconstruction+reconstruct", "importance_layer", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(Checked):
    """Settings of the measurements; a number of examples that is 0 stands for all."""

    limit: Count = 0  # examples to evaluate on, the first ones
    judged: Count = 512  # of them, drawn for the pruning curves
    ablated: Count = 96  # of those, drawn for the ablations of single heads and for what heads look at
    batch_size: Size = 16
    buckets: tuple[Size, ...] = ()  # see `Task.batches`
    orders: tuple[str, ...] = ORDERS  # see `CurveConfig.parse`
    seeds: Size = 2  # repeats of every order; each draws other examples to order heads by
    scored: Count = 256  # selection examples that heads are scored and ordered by
    percentages: tuple[int, ...] = (25, 50, 75)  # of heads removed along the curves
    resamples: Size = 1000  # of bootstraps

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = list(self.percentages)
        inside = bool(shares) and all(0 < share <= 100 for share in shares) and shares == sorted(shares)
        require(inside, "percentages", f"must rise within 1..100, got {shares}")
        for order in self.orders:
            CurveConfig.parse(order)


class HeadStudy(NamedTuple):
    """Facts about a model's heads."""

    model: Model
    task: Task  # the examples that curves are judged on
    few: Task  # those of them that single heads are ablated on
    selection: Task  # the examples that heads are ordered by
    config: StudyConfig
    baseline: Mapping[str, float]  # metrics with all heads
    scores: Mapping[str, Values]  # by name
    curves: Mapping[str, Sequence[CurvePoint]]  # by order
    effects: HeadEffects
    roles: Mapping[HeadId, Role]
    views: Sequence[View]
    seconds: float

    @property
    def whole(self) -> float:
        """The primary metric with all heads."""
        return self.baseline[self.task.primary_metric]

    @property
    def ordered_by(self) -> str:
        """The examples that heads are ordered by, in words."""
        count = min(self.config.scored or self.selection.count(), self.selection.count())
        return f"{count:,} examples of {self.selection.name}, {self.selection.split}, others for each seed"


def study_heads(
    model: Model,
    task: Task,
    config: StudyConfig,
    *,
    selection: Task | None = None,
    draw: Draw | None = None,
    progress: Progress = silent,
) -> HeadStudy:
    """Score, prune by gates, ablate and view the heads of a model; None draws `config.scored` selection examples."""
    started = time.perf_counter()
    if selection is None:
        selection, task = split_task(task)
    size, buckets = config.batch_size, config.buckets
    if draw is None:
        count = config.scored or selection.count()
        sample = functools.partial(selection.sample, count, size, buckets=buckets)
        draw = functools.cache(lambda seed: sample(seed=seed))
    drawn = _drawn(task, config.judged, config.limit)
    few, fitted = _drawn(drawn, config.ablated), drawn.fit(model)
    evaluation = measure_task(fitted, drawn, batch_size=size, buckets=buckets)
    with progress(f"scoring on {selection.name}", len(draw(0)), "batch") as bar:
        scores = score_heads(fitted, draw(0), progress=bar).values
    batches = list(few.batches(size, buckets=buckets))
    with progress(f"ablating {len(all_heads(model.config))} heads", len(batches), "batch") as bar:
        ablation = ablate(fitted, batches, metrics=task.measure.of_model(), progress=bar)
    return HeadStudy(
        model=model,
        task=drawn,
        few=few,
        selection=selection,
        config=config,
        baseline=evaluation.metrics,
        scores=scores,
        curves=_curves(fitted, drawn, evaluation, draw, config, progress),
        effects=head_effects(ablation, task.measure, resamples=config.resamples),
        roles=head_roles(fitted, batches),
        views=views(few.fit(model), next(few.batches(size, limit=size))),
        seconds=time.perf_counter() - started,
    )


def _curves(
    model: Model, task: Task, whole: Evaluation, draw: Draw, config: StudyConfig, progress: Progress
) -> dict[str, list[CurvePoint]]:
    _, test = paired_test(whole.outcomes, task.measure, config.resamples)

    def judge(model: Model) -> tuple[float, Comparison | None]:
        judged = measure_task(model, task, batch_size=config.batch_size, buckets=config.buckets)
        return judged.metrics[task.primary_metric], test(judged.outcomes) if judged.examples > 1 else None

    curves: dict[str, list[CurvePoint]] = {order: [] for order in config.orders}
    total = len(config.orders) * config.seeds * len(config.percentages)
    with progress("pruning curves", total, "point") as bar:
        for order, seed in itertools.product(curves, range(config.seeds)):
            settings = CurveConfig.parse(order)
            for point in curve(model, settings, draw(seed), config.percentages, judge, seed=seed):
                curves[order].append(point)
                bar(sum(map(len, curves.values())), {task.primary_metric: point.value})
    return curves


def _drawn(task: Task, count: int, limit: int = 0) -> Task:
    """Return the task with `count` of its first `limit` evaluation examples, drawn at random and in their order."""
    total = task.count(limit)
    if total == task.count() and (not count or count >= total):
        return task
    chosen = np.sort(np.random.default_rng(SEED).permutation(total)[: count or total])
    data = task.data._replace(validation=subset(task.data.validation, chosen))
    return dataclasses.replace(task, data=data, part=task.split)


# Views.

MOST_EXAMPLES = 3
"""Number of examples that are shown where their attention is not more than `MOST_BYTES`."""

MOST_TOKENS = 24
"""Number of tokens of an example that are shown, the first ones."""

MOST_BYTES = 1_500_000
"""Number of attention weights of all examples, a byte each."""

UNITS = {
    "kl": "KL divergence from the original model, nats",
    "cosine": "1 - cosine to the original model's embedding",
    "squared_difference": "squared difference from the original model",
}
"""Unit of the change of a prediction, by kind of agreement."""

SPACES = str.maketrans({"Ġ": "␣", "▁": "␣"})
"""Signs of a space in tokens of byte-level BPE and of SentencePiece, and the sign that is shown."""

View = dict[str, Any]
"""An example as JSON data.

`stacks` holds, by head stack, `queries` and `keys` (tokens, or numbers of patches), `heads` (names, layer by layer) and
`weights`, bytes `[heads, queries, keys]` in base 64 where 255 is a weight of 1. `whole` is the prediction with all
heads; `without` has, by the name of a head (`encoder/0/3`) or of a layer (`encoder/0`), the `prediction` without it and
its `change` in `UNITS`.
"""


def views(model: Model, batch: Batch) -> list[View]:
    """Return the first examples of a batch with the attention of all heads, and their predictions without some.

    Padding is left out of the attention, and so are tokens after the first `MOST_TOKENS`; predictions read all tokens.
    """
    heads = all_heads(model.config)
    fitting = MOST_BYTES // max(len(heads) * MOST_TOKENS**2, 1)
    count = max(min(MOST_EXAMPLES, fitting, len(next(iter(batch.values())))), 1)
    examples = {name: np.asarray(array)[:count] for name, array in batch.items()}
    attention = model(examples, attention=True, compute=Compute(attention="einsum")).attention or {}
    shown = [_stacks(model, examples, attention, number) for number in range(count)]
    changes = _predictions(model, examples)
    return [{"stacks": stacks, **changes[number]} for number, stacks in enumerate(shown)]


def _stacks(model: Model, examples: Batch, attention: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the attention of all heads on one example, by head stack."""
    tokens = _tokens(model, {name: array[number] for name, array in examples.items()})
    stacks: dict[str, Any] = {}
    sides = dict.fromkeys(model.config.attentions(), ("input", "input"))  # of queries and keys
    if "cross" in sides:
        sides |= {"decoder": ("target", "target"), "cross": ("target", "input")}
    for stack in sides:
        heads = all_heads(model.config, [stack])
        if not heads:
            continue
        rows = np.concatenate([layer[number] for layer in attention[stack] if layer is not None])
        queries, keys = (
            (tokens.get(side) or tuple(map(str, range(size))))[:MOST_TOKENS]
            for side, size in zip(sides[stack], rows.shape[1:], strict=True)
        )
        weights = np.rint(255 * rows[:, : len(queries), : len(keys)]).astype(np.uint8)  # [heads, queries, keys]
        stacks[stack] = {
            "queries": queries,
            "keys": keys,
            "heads": [str(head) for head in heads],
            "weights": base64.b64encode(weights.tobytes()).decode(),
        }
    return stacks


def _tokens(model: Model, example: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return an example's tokens without padding, by side; nothing where it has none."""
    if "input_ids" not in example:
        return {}
    ids = example["input_ids"]
    sides = {"input": ids[example.get("attention_mask", np.ones_like(ids)) > 0]}
    if "cross" in model.config.attentions():
        labels = example["labels"]
        start = getattr(model.config, "start_token", 0)
        sides["target"] = np.concatenate([[start], labels[labels != IGNORED][:-1]])
    return {side: tuple(_written(model, int(token)) for token in tokens) for side, tokens in sides.items()}


def _written(model: Model, token: int) -> str:
    if model.tokenizer is None:
        return str(token)
    text = model.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else str(text).translate(SPACES)


def _predictions(model: Model, examples: Batch) -> list[dict[str, Any]]:
    """Return for each example the prediction with all heads, and those without each head and without each layer."""
    config = model.config
    removals: dict[str, list[HeadId]] = {}
    for head in all_heads(config):
        removals[str(head)] = [head]
        removals.setdefault(f"{head.stack}/{head.layer}", []).append(head)
    arrays = device_batch(config, examples)

    def predicted(heads: Sequence[HeadId]) -> list[Predictions]:
        values, weight = predict(gated(model, dict.fromkeys(heads, 0.0)), arrays)
        return [Predictions(values[row : row + 1], weight[row : row + 1]) for row in range(len(values))]

    whole = predicted(())
    shown: list[dict[str, Any]] = [{"whole": _text(model, prediction), "without": {}} for prediction in whole]
    kind = agreement_kind(config)
    for name, heads in removals.items():
        for example, before, after in zip(shown, whole, predicted(heads), strict=True):
            change = max(mean_agreement(kind, [compare(kind, before, after)]).distance, 0.0)
            example["without"][name] = {"prediction": _text(model, after), "change": change}
    return shown


def _text(model: Model, predictions: Predictions) -> str:
    """Return a prediction in words: a class, a number or a token; nothing of embeddings, spans and tags."""
    values, config = np.asarray(predictions.values[0], np.float64), model.config
    output, names = getattr(config, "task", None), classes_of(model)
    if isinstance(output, Regression):
        return ", ".join(f"{value:.3g}" for value in values.ravel())
    if names and values.ndim == 1:
        return _most_likely(values, names)
    if names or values.ndim == 1 or isinstance(output, Span | SentenceSimilarity):
        return ""
    last = values[np.flatnonzero(np.asarray(predictions.weight[0]))[-1]]  # [vocabulary]
    best = int(last.argmax())
    return f"{_most_likely(last, {best: _written(model, best)})} at the last token"


def _most_likely(logits: np.ndarray, names: Any) -> str:
    best = int(logits.argmax())
    return f"{names[best]} ({1.0 / np.exp(logits - logits[best]).sum():.1%})"
