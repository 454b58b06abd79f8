"""Measures: outcomes per example, read off a model's outputs, and the metrics computed from them.

JAX can trace outcomes, so that they are computed on the device, batched over ablations (`headjax.ablate`) and sharded.
Metrics are NumPy functions of the outcomes of all examples, so that the metric of any ablation, resample or pruned
model follows from outcomes that were computed once.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from headjax.core.class_names import same_classes
from headjax.core.errors import HeadjaxError
from headjax.core.serialize import kind_of
from headjax.data.examples import ExampleSource
from headjax.data.source import embeds
from headjax.models import tasks
from headjax.models.config import Batch, ModelConfig, Output
from headjax.models.encoder import EncoderConfig
from headjax.models.inputs import batch_array

Outcomes = Mapping[str, np.ndarray]
"""Arrays `[examples]` by name: those of `Measure.outcomes`, `loss` (summed over an example, nats) and `targets`."""

MeasureKind = Literal["binary", "graded", "sum", "corpus"]
"""The relation of a primary metric to the examples, which decides the paired test of a difference.

* `binary`: the mean of one value per example (or question), 0 or 1.
* `graded`: the mean of one value per example (or question) on a scale, such as an F1 between 0 and 1.
* `sum`: a function of the examples' summed losses over their targets.
* `corpus`: a function of the outcomes of all examples together, such as a correlation.
"""

SHOWN_RANKS = 5  # greatest number of classes without top-5 accuracy


@dataclasses.dataclass(frozen=True)
class Measure(abc.ABC):
    """Base of the measures."""

    primary_metric: str = "loss"

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher primary metric is better."""
        return self.primary_metric not in ("loss", "perplexity", "word_perplexity", "bits_per_byte")

    takes: ClassVar[tuple[Any, ...]] = ()
    """Outputs of models that can be measured; empty for all. A measure with `names` needs as many classes."""

    def fit(self, config: ModelConfig) -> ModelConfig:
        """Return the config with an output for the task; a model without an output gets one without parameters."""
        output: Any = getattr(config, "task", None)
        names: tuple[str, ...] = getattr(self, "names", ())
        if not self.takes:
            return config
        if not isinstance(output, self.takes) or (names and output.classes != len(names)):
            more = f" of {len(names)} classes ({', '.join(names[:4])}{', ...' if names[4:] else ''})" if names else ""
            raise misfit(config, f"a {self.takes[0]._kind}{more}")
        if names and output.names and not same_classes(output.names, names):
            raise HeadjaxError(f"task: its classes are {', '.join(names)}; the model's are {', '.join(output.names)}")
        return config

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        """Return a number per example, `[batch]`, for each of `columns`; JAX can trace it."""
        return {}

    def of_model(self) -> Mapping[str, OfModel]:
        """Return the outcomes as functions of a model and a batch, the metrics that `headjax.ablate` takes."""
        return {name: OfModel(self, name) for name in self.columns}

    @property
    def kind(self) -> MeasureKind:
        """The relation of the primary metric to the examples."""
        return "corpus"

    @abc.abstractmethod
    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        """Return metrics by name, the primary metric among them."""

    def on(self, source: ExampleSource, counts: Mapping[str, Any]) -> Measure:
        """Return the measure of other examples of the same task."""
        return self

    def notes(self, outcomes: Outcomes) -> tuple[str, ...]:
        """Return what a reader of the metrics must know, in sentences."""
        return ()

    def together(self, example: Mapping[str, np.ndarray]) -> str | None:
        """Return what examples have in common that `split_task` keeps together; None groups them by their inputs."""
        return None

    def values(self, outcomes: Outcomes) -> np.ndarray:
        """Return numbers `[examples]` whose mean is the primary metric, of the kinds `binary` and `graded`."""
        raise NotImplementedError(self.kind)


@dataclasses.dataclass(frozen=True)
class OfModel:
    """One outcome of a measure as a function of a model and a batch."""

    measure: Measure
    name: str

    def __call__(self, model: Any, batch: Batch) -> jax.Array:  # [batch]
        return self.measure.outcomes(model(batch), batch)[self.name]


@dataclasses.dataclass(frozen=True)
class LanguageModelling(Measure):
    """Perplexity per token, word and byte, of texts or of translations given their sources."""

    primary_metric: str = "perplexity"
    words_per_token: float = 1.0
    bytes_per_token: float = 1.0

    kind = "sum"

    def fit(self, config: ModelConfig) -> ModelConfig:
        if isinstance(getattr(config, "task", None), tasks.TaskOutput):
            raise misfit(config, "a language model's, logits of the next token")
        return config

    def on(self, source: ExampleSource, counts: Mapping[str, Any]) -> Measure:
        ratios = {name: counts[name] for name in ("words_per_token", "bytes_per_token") if name in counts}
        return dataclasses.replace(self, **ratios)

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        loss = float(outcomes["loss"].sum() / outcomes["targets"].sum())
        return {
            "perplexity": perplexity(loss),
            "word_perplexity": perplexity(loss, self.words_per_token),
            "bits_per_byte": bits_per_byte(loss, self.bytes_per_token),
        }


@dataclasses.dataclass(frozen=True)
class Classes(Measure):
    """Metrics of a classification, those `chosen` of `METRICS`; `f1` is that of the class `positive`."""

    primary_metric: str = "accuracy"
    names: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ("accuracy",)
    positive: int = 1

    takes = (tasks.Classification, tasks.DistilledClassification)
    columns = ("prediction", "label", "rank")

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        logits, labels = output.require_logits(), batch_array(batch, "labels")  # [batch, classes], [batch]
        right = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[:, None], axis=1)
        return {
            "prediction": jnp.argmax(logits, axis=-1).astype(jnp.float32),
            "label": labels.astype(jnp.float32),
            "rank": (logits > right).sum(axis=1).astype(jnp.float32),  # the classes with a larger logit
        }

    @property
    def kind(self) -> MeasureKind:
        return "binary" if self.primary_metric == "accuracy" else "corpus"

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        predicted, gold = outcomes["prediction"], outcomes["label"]
        options = {"f1": {"positive": self.positive}}
        values = {name: METRICS[name](predicted, gold, **options.get(name, {})) for name in self.chosen}
        if len(self.names) > SHOWN_RANKS:
            values["top5_accuracy"] = top_k_accuracy(outcomes["rank"], 5)
        return values

    def notes(self, outcomes: Outcomes) -> tuple[str, ...]:
        predicted = np.unique(outcomes["prediction"])
        if len(predicted) > 1 or len(np.unique(outcomes["label"])) == 1:
            return ()
        number = int(predicted[0])
        name = self.names[number] if number < len(self.names) else number
        return (f"The model always predicts one class, {name}, on {len(outcomes['prediction']):,} examples.",)

    def values(self, outcomes: Outcomes) -> np.ndarray:
        return (outcomes["prediction"] == outcomes["label"]).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Numbers(Measure):
    """Correlations of predicted with right numbers."""

    primary_metric: str = "spearman"
    chosen: tuple[str, ...] = ("spearman", "pearson")

    takes = (tasks.Regression,)
    columns: ClassVar[tuple[str, ...]] = ("prediction", "label")

    def fit(self, config: ModelConfig) -> ModelConfig:
        output: Any = getattr(super().fit(config), "task", None)
        if output.outputs != 1:
            raise misfit(config, "a regression of one number")
        return config

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        logits = output.require_logits()  # [batch, 1], or [batch] similarities of pairs
        labels = batch_array(batch, "labels").astype(jnp.float32)
        # The label of the rows that fill up a batch is a nan.
        return {"prediction": logits.reshape(logits.shape[0]).astype(jnp.float32), "label": jnp.nan_to_num(labels)}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        return {name: METRICS[name](outcomes["prediction"], outcomes["label"]) for name in self.chosen}


@dataclasses.dataclass(frozen=True)
class Similarities(Numbers):
    """Correlations of the similarities of sentence embeddings, as the model compares them, with right ones."""

    def fit(self, config: ModelConfig) -> ModelConfig:
        if not embeds(config):
            raise misfit(config, "none, or a sentence_similarity, of an encoder or a decoder")
        plain: Any = config
        without = isinstance(plain.task, tasks.NoTask)
        return dataclasses.replace(plain, task=tasks.SentenceSimilarity()) if without else config


def misfit(config: ModelConfig, needed: str) -> HeadjaxError:
    """Return the error of a model whose output is for another task."""
    has = f"{kind_of(config)}{config.output_description()}"
    fresh = isinstance(config, EncoderConfig) and isinstance(config.task, tasks.NoTask)
    hint = "; headjax finetune trains an output" if fresh else ""
    return HeadjaxError(f"task: it needs another model output: {needed}; the model is: {has}{hint}")


@dataclasses.dataclass(frozen=True)
class MaskedAndNext(Measure):
    """Accuracy of BERT's pre-training tasks: masked tokens and next-sentence labels."""

    primary_metric: str = "masked_accuracy"

    takes = (tasks.Pretraining,)
    columns = ("masked_right", "next_right")

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        next_sentence = jnp.argmax(output.require_logits("seq_relationship_logits"), axis=-1)
        right = next_sentence == batch_array(batch, "next_sentence_label")
        return {"masked_right": right_tokens(output, batch), "next_right": right.astype(jnp.float32)}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        return {
            "masked_accuracy": float(outcomes["masked_right"].sum() / outcomes["targets"].sum()),
            "next_sentence_accuracy": float(outcomes["next_right"].mean()),
        }


def right_tokens(output: Output, batch: Batch) -> jax.Array:
    """Return the number of tokens whose label has the largest logit, `[batch]`."""
    right = jnp.argmax(output.require_logits(), axis=-1) == batch_array(batch, "labels")  # which -100 never is
    return right.sum(axis=1).astype(jnp.float32)


# Formulas on arrays `[examples]`, in float64. Rates are fractions of 1; a metric that is undefined (no positive
# prediction, a constant column) is 0.


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return mean_i [prediction_i = label_i]."""
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    return float((predicted == gold).mean())


def top_k_accuracy(ranks: ArrayLike, k: int) -> float:
    """Return mean_i [rank_i < k], where rank_i `[examples]` counts the classes that score higher than the right one."""
    return float((np.asarray(ranks) < k).mean())


def f1(predictions: ArrayLike, labels: ArrayLike, positive: int = 1) -> float:
    """Return 2 TP / (2 TP + FP + FN) of the class `positive`: the harmonic mean of its precision and recall."""
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    hits = 2.0 * ((predicted == positive) & (gold == positive)).sum()
    return float(_ratio(hits, (predicted == positive).sum() + (gold == positive).sum()))


def macro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of `f1` over the classes that occur among predictions or labels."""
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    return float(np.mean([f1(predicted, gold, label) for label in np.union1d(predicted, gold)]))


def matthews(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Matthews' correlation coefficient for any number of classes (Gorodkin 2004), CoLA's metric.

    With p and l the one-hot predictions and labels `[examples, classes]`: cov(p, l) / sqrt(cov(p, p) cov(l, l)), each
    covariance summed over classes. For two classes this is
    (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)).
    """
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    classes = np.union1d(predicted, gold)
    p, l = (np.bincount(np.searchsorted(classes, column), minlength=len(classes)) for column in (predicted, gold))  # noqa: E741
    total, right = float(len(gold)), float((predicted == gold).sum())
    spread = (total**2 - float(p @ p)) * (total**2 - float(l @ l))
    return _ratio(right * total - float(p @ l), math.sqrt(spread))


def pearson(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Pearson's correlation coefficient, cov(p, l) / sqrt(cov(p, p) cov(l, l))."""
    predicted, gold = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    return float(np.corrcoef(predicted, gold)[0, 1]) if np.ptp(predicted) and np.ptp(gold) else 0.0


def spearman(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Spearman's rank correlation: Pearson's coefficient of the ranks; ties have their mean rank."""
    from scipy import stats

    return pearson(stats.rankdata(predictions), stats.rankdata(labels))


def reciprocal_rank(relevance: ArrayLike, cut: int) -> float:
    """Return 1 / rank of the first item whose `relevance` `[items]` is above 0; 0 if none of the first `cut` is."""
    places = np.flatnonzero(np.asarray(relevance)[:cut] > 0)
    return 1.0 / (int(places[0]) + 1) if places.size else 0.0


def ndcg(relevance: ArrayLike, cut: int) -> float:
    """Return DCG / the DCG of the best order, with DCG = sum_i relevance_i / log2(i + 1) over the first `cut`, from 1.

    `relevance` `[items]` is in the order of the ranking and not negative (Järvelin and Kekäläinen 2002).
    """
    gains = np.maximum(np.asarray(relevance, np.float64), 0.0)
    discounts = 1.0 / np.log2(np.arange(2, min(cut, len(gains)) + 2))
    return _ratio(float(gains[:cut] @ discounts), float(np.sort(gains)[::-1][:cut] @ discounts))


def perplexity(loss: float, units_per_target: float = 1.0) -> float:
    """Return exp(loss / units_per_target)."""
    return math.exp(min(loss / units_per_target, 700.0))


def bits_per_byte(loss: float, bytes_per_target: float) -> float:
    """Return loss / (ln 2 * bytes_per_target), the logarithm to base 2 of the perplexity per byte."""
    return loss / math.log(2.0) / bytes_per_target


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


METRICS = {metric.__name__: metric for metric in (accuracy, f1, macro_f1, matthews, pearson, spearman)}
"""Metrics of predicted and right classes, or numbers, by name."""
