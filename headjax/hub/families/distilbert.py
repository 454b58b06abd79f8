"""DistilBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from headjax.hub.families.bert import EMBEDDINGS
from headjax.hub.families.encoders import EncoderFamily, Names, TaskClass
from headjax.hub.family import expect
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules, affine, norm, one, projection, under
from headjax.models.embeddings import Learned
from headjax.models.encoder import EncoderModel
from headjax.models.pooler import Pooler
from headjax.models.tasks import Classification, MaskedLanguageModel, Regression, Span, TaskOutput, TokenClassification

_LAYER: Rules = (
    *projection("attention.q_lin", "attention/query"),
    *projection("attention.k_lin", "attention/key"),
    *projection("attention.v_lin", "attention/value"),
    *projection("attention.out_lin", "attention/output"),
    *norm("sa_layer_norm", "attention_residual/norm"),
    *projection("ffn.lin1", "feed_forward/up"),
    *projection("ffn.lin2", "feed_forward/down"),
    *norm("output_layer_norm", "feed_forward_residual/norm"),
)


@dataclasses.dataclass(frozen=True)
class DistilBertFamily(EncoderFamily):
    """DistilBERT (Sanh et al. 2019): BERT without segments; its pooler is part of the classifier."""

    prefix: ClassVar[str] = "distilbert."
    ignored: ClassVar[tuple[str, ...]] = (r"(distilbert\.)?embeddings\.position_ids",)
    names: ClassVar[Names] = Names(
        "dim", "n_layers", "n_heads", "hidden_dim", "activation", "dropout", "attention_dropout"
    )
    base: ClassVar[Rules] = (*EMBEDDINGS, *under("transformer.layer.{}.", "encoder/{}/", _LAYER))
    tasks: ClassVar[tuple[TaskClass, ...]] = (
        TaskClass(
            "ForMaskedLM",
            (MaskedLanguageModel,),
            (
                *projection("vocab_transform", "output/transform"),
                *norm("vocab_layer_norm", "output/norm"),
                *one("vocab_projector.bias", "output/bias"),
            ),
        ),
        TaskClass(
            "ForSequenceClassification",
            (Classification, Regression),
            (*affine("pre_classifier", "pooler"), *affine("classifier", "output")),
        ),
        TaskClass("ForTokenClassification", (TokenClassification,), affine("classifier", "output")),
        TaskClass("ForQuestionAnswering", (Span,), affine("qa_outputs", "output")),
    )

    def epsilon(self, fields: Fields) -> float:
        return 1e-12

    def segments(self, fields: Fields) -> int:
        return 0

    def pooler(self, fields: Fields, names: Collection[str], output: TaskOutput) -> Pooler | None:
        return Pooler(activation="relu") if output.needs_pooler else None

    def output_dropout(self, fields: Fields, suffix: str) -> float:
        if suffix == "ForQuestionAnswering":
            return fields.number("qa_dropout", 0.1)
        if suffix == "ForSequenceClassification":
            return fields.number("seq_classif_dropout", 0.2)
        return fields.number("dropout", 0.1)

    def write_more(self, config: EncoderModel) -> dict[str, Any]:
        positions = expect(config.embeddings.positions, Learned, "embeddings.positions", self)
        fields: dict[str, Any] = {"max_position_embeddings": positions.max_length}
        if isinstance(config.output, Span):
            fields["qa_dropout"] = config.output.dropout
        if isinstance(config.output, Classification | Regression):
            fields["seq_classif_dropout"] = config.output.dropout
        return fields

    def copies(self, config: EncoderModel) -> Mapping[str, str]:
        if not isinstance(config.output, MaskedLanguageModel):
            return {}
        return {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
