"""What the encoder families share: the table of task classes, and configs that name the same few numbers."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple

from headjax.attention.multi_head import MultiHead
from headjax.core.tensors import Normal
from headjax.hub.families.labels import classifier, label_fields, label_names, num_labels
from headjax.hub.family import Family, expect, head_dim
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.rules import Rules
from headjax.models.base import ModelConfig
from headjax.models.embeddings import Embeddings, Learned, Positions
from headjax.models.encoder import EncoderModel
from headjax.models.feed_forward import ActivationName, Dense
from headjax.models.layer import Layer
from headjax.models.norms import LayerNorm
from headjax.models.pooler import Pooler
from headjax.models.residual import PostNorm
from headjax.models.stack import Stack
from headjax.models.tasks import MaskedLanguageModel, NoTask, Pretraining, Span, TaskOutput, TokenClassification


class TaskClass(NamedTuple):
    """A class of the family for one task.

    Attributes:
        suffix: what its name ends with.
        outputs: our outputs that it computes.
        rules: names of the output's tensors.
    """

    suffix: str
    outputs: tuple[type[TaskOutput], ...]
    rules: Rules


class Names(NamedTuple):
    """A family's names of the fields that all encoders have."""

    width: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    hidden: str = "intermediate_size"
    activation: str = "hidden_act"
    dropout: str = "hidden_dropout_prob"
    attention_dropout: str = "attention_probs_dropout_prob"


@dataclasses.dataclass(frozen=True)
class EncoderFamily(Family):
    """An encoder: post-norm layers, learned positions, one of several tasks."""

    config_type: ClassVar[type[ModelConfig]] = EncoderModel
    head_groups: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",),)
    prunable: ClassVar[str | None] = "encoder"
    names: ClassVar[Names] = Names()
    tasks: ClassVar[tuple[TaskClass, ...]]
    base: ClassVar[Rules]
    """Names of the base model's tensors, without `prefix`."""
    default_activation: ClassVar[str] = "gelu"

    @abc.abstractmethod
    def epsilon(self, fields: Fields) -> float:
        """Of all normalisations."""

    @abc.abstractmethod
    def pooler(self, fields: Fields, names: Collection[str], output: TaskOutput) -> Pooler | None:
        """The pooler of a model with this output."""

    def positions(self, fields: Fields) -> Positions:
        """How positions enter."""
        return Learned(fields.size("max_position_embeddings"))

    def segments(self, fields: Fields) -> int:
        """Number of segment embeddings."""
        return fields.size("type_vocab_size", 2)

    def embedding_size(self, fields: Fields) -> int | None:
        """Size of the token embeddings if it is not the width."""
        return None

    def output_dropout(self, fields: Fields, suffix: str) -> float:
        """Dropout before a task's logits."""
        return fields.number("classifier_dropout", fields.number(self.names.dropout, 0.1))

    def masked(self, fields: Fields) -> MaskedLanguageModel:
        """The masked language model's output."""
        norm = LayerNorm(self.epsilon(fields))
        return MaskedLanguageModel(activation=self.activation(fields), norm=norm)

    def activation(self, fields: Fields) -> ActivationName:
        """Of the feed-forward layers."""
        return fields.activation(self.names.activation, self.default_activation)

    def check(self, fields: Fields) -> None:
        """Raises `ConfigError` for variants that are not supported."""
        fields.only("is_decoder", [False], False)
        fields.only("add_cross_attention", [False], False)
        fields.only("position_embedding_type", ["absolute"], "absolute")

    def read(self, fields: Fields, names: Collection[str]) -> EncoderModel:
        self.check(fields)
        norm, dropout = LayerNorm(self.epsilon(fields)), fields.number(self.names.dropout, 0.1)
        width, heads = fields.size(self.names.width), fields.size(self.names.num_heads)
        output = self.output(fields, names)
        layer = Layer(
            attention=MultiHead(num_heads=heads, head_dim=head_dim(fields, width, heads, self.names.num_heads)),
            feed_forward=Dense(fields.size(self.names.hidden), self.activation(fields)),
            residual=PostNorm(norm),
            dropout=dropout,
            attention_dropout=fields.number(self.names.attention_dropout, 0.1),
        )
        return EncoderModel(
            width=width,
            embeddings=Embeddings(
                vocab_size=fields.size("vocab_size"),
                positions=self.positions(fields),
                segments=self.segments(fields),
                norm=norm,
                dropout=dropout,
                size=self.embedding_size(fields),
            ),
            encoder=self.stack((layer,) * fields.size(self.names.num_layers)),
            pooler=self.pooler(fields, names, output),
            output=output,
            initializer=Normal(fields.number("initializer_range", 0.02)),
        )

    def stack(self, layers: tuple[Layer, ...]) -> Stack:
        """The layers as a stack."""
        return Stack(layers=layers)

    def output(self, fields: Fields, names: Collection[str]) -> TaskOutput:
        """The task's output."""
        suffix = self.suffix(fields, names)
        if suffix == "Model":
            return NoTask()
        if suffix == "ForMaskedLM":
            return self.masked(fields)
        if suffix == "ForPreTraining":
            return Pretraining(masked=self.masked(fields))
        dropout = self.output_dropout(fields, suffix)
        if suffix == "ForQuestionAnswering":
            return Span(dropout=dropout)
        if suffix == "ForTokenClassification":
            return TokenClassification(classes=num_labels(fields), dropout=dropout, names=label_names(fields))
        return classifier(fields, dropout)

    def suffix(self, fields: Fields, names: Collection[str]) -> str:
        """The task by the ending of its class."""
        named = fields.data.get("architectures") or [f"{self.class_prefix}Model"]
        suffix = str(named[0]).removeprefix(self.class_prefix)
        known = [task.suffix for task in self.tasks]
        if not str(named[0]).startswith(self.class_prefix) or suffix not in ("Model", *known):
            classes = ", ".join(self.class_prefix + suffix for suffix in ("Model", *known))
            raise fields.error("architectures", f"{named[0]} is not supported; supported: {classes}")
        return suffix

    def write(self, config: EncoderModel) -> dict[str, Any]:
        layer, names = config.encoder.layers[0], self.names
        attention = expect(layer.attention, MultiHead, "encoder.layers[0].attention", self)
        feed_forward = expect(layer.feed_forward, Dense, "encoder.layers[0].feed_forward", self)
        fields = {
            "model_type": self.model_type,
            "architectures": [self.classes(config)[0]],
            "vocab_size": config.embeddings.vocab_size,
            names.width: config.width,
            names.num_layers: len(config.encoder.layers),
            names.num_heads: attention.num_heads,
            names.hidden: feed_forward.hidden,
            names.activation: ACTIVATION_NAMES[feed_forward.activation],
            names.dropout: layer.dropout,
            names.attention_dropout: layer.attention_dropout,
        }
        return fields | self.write_more(config) | label_fields(config.output)

    @abc.abstractmethod
    def write_more(self, config: EncoderModel) -> dict[str, Any]:
        """The fields that are not every encoder's."""

    def task(self, config: EncoderModel) -> TaskClass | None:
        """The class of a model's task; None for the base model."""
        return next((task for task in self.tasks if type(config.output) in task.outputs), None)

    def rules(self, config: EncoderModel) -> Rules:
        task = self.task(config)
        base = tuple(rule.under(self.prefix, "") for rule in self.base)
        return base if task is None else base + task.rules

    def classes(self, config: EncoderModel) -> tuple[str, ...]:
        task = self.task(config)
        return (self.class_prefix + ("Model" if task is None else task.suffix),)
