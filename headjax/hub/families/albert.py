"""ALBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from headjax.hub.families.bert import EMBEDDINGS, BertFamily, classifier_dropout
from headjax.hub.families.encoders import TaskClass
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules, affine, norm, one, projection, under
from headjax.models.encoder import EncoderModel
from headjax.models.layer import Layer
from headjax.models.stack import SharedStack, Stack
from headjax.models.tasks import (
    Classification,
    MaskedLanguageModel,
    Pretraining,
    Regression,
    Span,
    TokenClassification,
)

_LAYER: Rules = (
    *projection("attention.query", "attention/query"),
    *projection("attention.key", "attention/key"),
    *projection("attention.value", "attention/value"),
    *projection("attention.dense", "attention/output"),
    *norm("attention.LayerNorm", "attention_residual/norm"),
    *projection("ffn", "feed_forward/up"),
    *projection("ffn_output", "feed_forward/down"),
    *norm("full_layer_layer_norm", "feed_forward_residual/norm"),
)
_MASKED: Rules = (
    *projection("predictions.dense", "transform"),
    *norm("predictions.LayerNorm", "norm"),
    *one("predictions.bias", "bias"),
)


@dataclasses.dataclass(frozen=True)
class AlbertFamily(BertFamily):
    """ALBERT (Lan et al. 2020): one layer used again and again, and small token embeddings."""

    prefix: ClassVar[str] = "albert."
    ignored: ClassVar[tuple[str, ...]] = (r"(albert\.)?embeddings\.position_ids",)
    default_activation: ClassVar[str] = "gelu_new"
    base: ClassVar[Rules] = (
        *EMBEDDINGS,
        *projection("encoder.embedding_hidden_mapping_in", "embeddings/projection"),
        *under("encoder.albert_layer_groups.0.albert_layers.0.", "encoder/0/", _LAYER),
        *affine("pooler", "pooler"),
    )
    tasks: ClassVar[tuple[TaskClass, ...]] = (
        TaskClass("ForMaskedLM", (MaskedLanguageModel,), under("", "output/", _MASKED)),
        TaskClass(
            "ForPreTraining",
            (Pretraining,),
            (*under("", "output/masked/", _MASKED), *affine("sop_classifier.classifier", "output/next_sentence")),
        ),
        TaskClass("ForSequenceClassification", (Classification, Regression), affine("classifier", "output")),
        TaskClass("ForTokenClassification", (TokenClassification,), affine("classifier", "output")),
        TaskClass("ForQuestionAnswering", (Span,), affine("qa_outputs", "output")),
    )

    def check(self, fields: Fields) -> None:
        super().check(fields)
        fields.only("num_hidden_groups", [1], 1)
        fields.only("inner_group_num", [1], 1)

    def embedding_size(self, fields: Fields) -> int | None:
        return fields.size("embedding_size", 128)

    def stack(self, layers: tuple[Layer, ...]) -> Stack:
        return SharedStack(layers=layers)

    def output_dropout(self, fields: Fields, suffix: str) -> float:
        return 0.0 if suffix == "ForQuestionAnswering" else fields.number("classifier_dropout_prob", 0.1)

    def write_more(self, config: EncoderModel) -> dict[str, Any]:
        fields = super().write_more(config)
        fields.pop("classifier_dropout", None)
        if config.embeddings.size is not None:
            fields["embedding_size"] = config.embeddings.size
        return fields | classifier_dropout(config.output, "classifier_dropout_prob")

    def copies(self, config: EncoderModel) -> Mapping[str, str]:
        if not isinstance(config.output, MaskedLanguageModel | Pretraining):
            return {}
        return {
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        }
