"""Measures: outcomes per example, read off a model's outputs, and the metrics computed from them.

Outcomes are traceable functions, so that they are computed on the device, batched over ablations
(`headjax.ablate`) and sharded. Metrics are NumPy functions of the outcomes of all examples, so that the metric of any
ablation, resample or pruned model follows from outcomes that were computed once.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.class_names import same_classes
from headjax.core.errors import HeadjaxError
from headjax.core.serialize import kind_of
from headjax.data import metrics as formulas
from headjax.data.examples import ExampleSource
from headjax.models.config import Batch, ModelConfig, Output
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.inputs import batch_array
from headjax.models.tasks import (
    Classification,
    DistilledClassification,
    NoTask,
    Pretraining,
    Regression,
    SentenceSimilarity,
    TaskOutput,
)

Outcomes = Mapping[str, np.ndarray]
"""Arrays `[examples]` by name: those of `Measure.outcomes`, `loss` (summed over an example, nats) and `targets`."""

Outcome = Callable[[Output, Batch], jax.Array]
"""A function of a model's output and the batch that returns a number per example, `[batch]`; JAX can trace it."""


@dataclasses.dataclass(frozen=True)
class OfModel:
    """An outcome as a function of the model and the batch."""

    outcome: Outcome

    def __call__(self, model: Any, batch: Batch) -> jax.Array:
        """Return a number per example, `[batch]`."""
        return self.outcome(model(batch), batch)


MeasureKind = Literal["binary", "graded", "sum", "corpus"]
"""The relation of a primary metric to the examples, which decides the paired test of a difference.

* `binary`: the mean of one value per example (or question), 0 or 1.
* `graded`: the mean of one value per example (or question) on a scale, such as an F1 between 0 and 1.
* `sum`: a function of the examples' summed losses over their targets.
* `corpus`: a function of the outcomes of all examples together, such as a correlation.
"""

SHOWN_RANKS = 5
"""Greatest number of classes without top-5 accuracy."""


@dataclasses.dataclass(frozen=True)
class Measure(abc.ABC):
    """Base of the measures."""

    primary_metric: str = "loss"

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher primary metric is better."""
        return self.primary_metric not in ("loss", "perplexity", "word_perplexity", "bits_per_byte")

    takes: ClassVar[tuple[Any, ...]] = ()
    """Outputs of models that can be measured, with the measure's classes if it has `names`."""

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

    def outcomes(self) -> Mapping[str, Outcome]:
        """Return the functions of per-example outcomes by name."""
        return {}

    def of_model(self) -> Mapping[str, OfModel]:
        """Return the outcomes as functions of a model and a batch, the metrics that `headjax.ablate` takes."""
        return {name: OfModel(outcome) for name, outcome in self.outcomes().items()}

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
        """Return a text that is equal for examples that must stay together; None compares their inputs."""
        return None

    def values(self, outcomes: Outcomes) -> np.ndarray:
        """Return numbers `[examples]` whose mean is the primary metric, of the kinds `binary` and `graded`."""
        raise NotImplementedError(self.kind)


@dataclasses.dataclass(frozen=True)
class LanguageModelling(Measure):
    """Perplexity per token, word and byte, of texts or of translations given their sources."""

    primary_metric: str = "perplexity"
    words_per_token: float = 1.0
    bytes_per_token: float = 1.0

    def fit(self, config: ModelConfig) -> ModelConfig:
        output = getattr(config, "task", None)
        if isinstance(output, TaskOutput):
            raise misfit(config, "a language model's, logits of the next token")
        return config

    @property
    def kind(self) -> MeasureKind:
        return "sum"

    def on(self, source: ExampleSource, counts: Mapping[str, Any]) -> Measure:
        ratios = {name: counts[name] for name in ("words_per_token", "bytes_per_token") if name in counts}
        return dataclasses.replace(self, **ratios)

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        loss = float(outcomes["loss"].sum() / outcomes["targets"].sum())
        return {
            "perplexity": formulas.perplexity(loss),
            "word_perplexity": formulas.perplexity(loss, self.words_per_token),
            "bits_per_byte": formulas.bits_per_byte(loss, self.bytes_per_token),
        }


Metric = Callable[[np.ndarray, np.ndarray], float]
"""A function of predicted and right values `[examples]` that returns a number."""

CLASSIFICATION_METRICS: Mapping[str, Metric] = {
    "accuracy": formulas.accuracy,
    "f1": formulas.f1,
    "macro_f1": formulas.macro_f1,
    "matthews": formulas.matthews,
}
"""Metrics of predicted and right classes; `f1` is that of class 1 unless a measure names another class."""

REGRESSION_METRICS: Mapping[str, Metric] = {"spearman": formulas.spearman, "pearson": formulas.pearson}


@dataclasses.dataclass(frozen=True)
class Classes(Measure):
    """Metrics of a classification."""

    primary_metric: str = "accuracy"
    names: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ("accuracy",)
    positive: int = 1

    takes = (Classification, DistilledClassification)

    def outcomes(self) -> Mapping[str, Outcome]:
        return {"prediction": predicted_class, "label": given_label, "rank": rank_of_label}

    @property
    def kind(self) -> MeasureKind:
        return "binary" if self.primary_metric == "accuracy" else "corpus"

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        predicted, gold = outcomes["prediction"], outcomes["label"]
        positive: Metric = functools.partial(formulas.f1, positive=self.positive)
        known = {**CLASSIFICATION_METRICS, "f1": positive}
        values = {name: known[name](predicted, gold) for name in self.chosen}
        if len(self.names) > SHOWN_RANKS:
            values["top5_accuracy"] = formulas.top_k_accuracy(outcomes["rank"], 5)
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
    """Correlations of predicted with right numbers. Outcomes: `prediction` and `label`."""

    primary_metric: str = "spearman"
    chosen: tuple[str, ...] = ("spearman", "pearson")

    takes = (Regression,)

    def fit(self, config: ModelConfig) -> ModelConfig:
        output: Any = getattr(super().fit(config), "task", None)
        if output.outputs != 1:
            raise misfit(config, "a regression of one number")
        return config

    def outcomes(self) -> Mapping[str, Outcome]:
        return {"prediction": predicted_number, "label": given_label}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        return {name: REGRESSION_METRICS[name](outcomes["prediction"], outcomes["label"]) for name in self.chosen}


@dataclasses.dataclass(frozen=True)
class Similarities(Numbers):
    """Correlations of the similarities of sentence embeddings, as the model compares them, with right ones."""

    def fit(self, config: ModelConfig) -> ModelConfig:
        if not embeds(config):
            raise misfit(config, "none, or a sentence_similarity, of an encoder or a decoder")
        plain: Any = config
        return dataclasses.replace(plain, task=SentenceSimilarity()) if isinstance(plain.task, NoTask) else config


def embeds(config: ModelConfig) -> bool:
    """Return whether a model of texts makes sentence vectors, or has nothing else to do."""
    output = getattr(config, "task", None)
    return isinstance(config, EncoderConfig | DecoderConfig) and isinstance(output, NoTask | SentenceSimilarity)


def predicted_class(output: Output, batch: Batch) -> jax.Array:
    """Return the class of the largest logit, `[batch]`."""
    return jnp.argmax(output.require_logits(), axis=-1).astype(jnp.float32)


def rank_of_label(output: Output, batch: Batch) -> jax.Array:
    """Return the number of classes with a larger logit than the right class, `[batch]`."""
    logits = output.require_logits()
    right = jnp.take_along_axis(logits, jnp.maximum(batch_array(batch, "labels"), 0)[:, None], axis=1)
    return (logits > right).sum(axis=1).astype(jnp.float32)


def predicted_number(output: Output, batch: Batch) -> jax.Array:
    """Return the only logit, or the similarity of a pair, `[batch]`."""
    logits = output.require_logits()
    return logits.reshape(logits.shape[0]).astype(jnp.float32)


def given_label(output: Output, batch: Batch) -> jax.Array:
    """Return the label, `[batch]`; 0 at the rows that fill up a batch, whose label is a nan."""
    return jnp.nan_to_num(batch_array(batch, "labels").astype(jnp.float32))


def misfit(config: ModelConfig, needed: str) -> HeadjaxError:
    """Return the error of a model whose output is for another task."""
    has = f"{kind_of(config)}{config.output_description()}"
    fresh = isinstance(config, EncoderConfig) and isinstance(config.task, NoTask)
    hint = "; headjax finetune trains an output" if fresh else ""
    return HeadjaxError(f"task: it needs another model output: {needed}; the model is: {has}{hint}")


@dataclasses.dataclass(frozen=True)
class MaskedAndNext(Measure):
    """Accuracy of BERT's pre-training tasks: masked tokens and next-sentence labels."""

    primary_metric: str = "masked_accuracy"

    takes = (Pretraining,)

    def outcomes(self) -> Mapping[str, Outcome]:
        return {"masked_right": masked_right, "next_right": next_right}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        return {
            "masked_accuracy": float(outcomes["masked_right"].sum() / outcomes["targets"].sum()),
            "next_sentence_accuracy": float(outcomes["next_right"].mean()),
        }


def masked_right(output: Output, batch: Batch) -> jax.Array:
    """Return the number of masked tokens whose right token has the largest logit, `[batch]`."""
    right = jnp.argmax(output.require_logits(), axis=-1) == batch_array(batch, "labels")  # -100 is no token
    return right.sum(axis=1).astype(jnp.float32)


def next_right(output: Output, batch: Batch) -> jax.Array:
    """Return 1 if the next-sentence label has the larger logit, else 0, `[batch]`."""
    logits = output.require_logits("seq_relationship_logits")
    return (jnp.argmax(logits, axis=-1) == batch_array(batch, "next_sentence_label")).astype(jnp.float32)
