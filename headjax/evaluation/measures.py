"""Measures: outcomes per example, read off a model's outputs, and the metrics computed from them.

JAX can trace outcomes, so that they are computed on the device, batched over ablations (`headjax.ablate`) and sharded.
Metrics are NumPy functions of the outcomes of all examples, so that the metric of any ablation, resample or pruned
model follows from outcomes that were computed once.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.class_names import same_classes
from headjax.core.errors import HeadjaxError
from headjax.core.serialize import kind_of
from headjax.data import metrics as formulas
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
            "perplexity": formulas.perplexity(loss),
            "word_perplexity": formulas.perplexity(loss, self.words_per_token),
            "bits_per_byte": formulas.bits_per_byte(loss, self.bytes_per_token),
        }


@dataclasses.dataclass(frozen=True)
class Classes(Measure):
    """Metrics of a classification, those `chosen` of `headjax.data.metrics`; `f1` is that of the class `positive`."""

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
        values = {name: getattr(formulas, name)(predicted, gold, **options.get(name, {})) for name in self.chosen}
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
        return {name: getattr(formulas, name)(outcomes["prediction"], outcomes["label"]) for name in self.chosen}


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
