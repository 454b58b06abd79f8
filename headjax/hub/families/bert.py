"""BERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from headjax.hub.families.encoders import EncoderFamily, TaskClass
from headjax.hub.family import expect
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules, affine, norm, one, projection, under
from headjax.models.embeddings import Learned
from headjax.models.encoder import EncoderModel
from headjax.models.norms import LayerNorm
from headjax.models.pooler import Pooler
from headjax.models.tasks import (
    Classification,
    MaskedLanguageModel,
    NoTask,
    Pretraining,
    Regression,
    Span,
    TaskOutput,
    TokenClassification,
)

EMBEDDINGS: Rules = (
    *one("embeddings.word_embeddings.weight", "embeddings/token"),
    *one("embeddings.position_embeddings.weight", "embeddings/position"),
    *one("embeddings.token_type_embeddings.weight", "embeddings/segment"),
    *norm("embeddings.LayerNorm", "embeddings/norm"),
)
LAYER: Rules = (
    *projection("attention.self.query", "attention/query"),
    *projection("attention.self.key", "attention/key"),
    *projection("attention.self.value", "attention/value"),
    *projection("attention.output.dense", "attention/output"),
    *norm("attention.output.LayerNorm", "attention_residual/norm"),
    *projection("intermediate.dense", "feed_forward/up"),
    *projection("output.dense", "feed_forward/down"),
    *norm("output.LayerNorm", "feed_forward_residual/norm"),
)
POOLER: Rules = affine("pooler.dense", "pooler")
_MASKED: Rules = (
    *projection("cls.predictions.transform.dense", "transform"),
    *norm("cls.predictions.transform.LayerNorm", "norm"),
    *one("cls.predictions.bias", "bias"),
)


@dataclasses.dataclass(frozen=True)
class BertFamily(EncoderFamily):
    """BERT (Devlin et al. 2019)."""

    prefix: ClassVar[str] = "bert."
    ignored: ClassVar[tuple[str, ...]] = (r"(bert\.)?embeddings\.position_ids",)
    base: ClassVar[Rules] = (*EMBEDDINGS, *under("encoder.layer.{}.", "encoder/{}/", LAYER), *POOLER)
    tasks: ClassVar[tuple[TaskClass, ...]] = (
        TaskClass("ForMaskedLM", (MaskedLanguageModel,), under("", "output/", _MASKED)),
        TaskClass(
            "ForPreTraining",
            (Pretraining,),
            (*under("", "output/masked/", _MASKED), *affine("cls.seq_relationship", "output/next_sentence")),
        ),
        TaskClass("ForSequenceClassification", (Classification, Regression), affine("classifier", "output")),
        TaskClass("ForTokenClassification", (TokenClassification,), affine("classifier", "output")),
        TaskClass("ForQuestionAnswering", (Span,), affine("qa_outputs", "output")),
    )

    def epsilon(self, fields: Fields) -> float:
        return fields.number("layer_norm_eps", 1e-12)

    def pooler(self, fields: Fields, names: Collection[str], output: TaskOutput) -> Pooler | None:
        """Present where the task reads it, and elsewhere where the file has one."""
        return Pooler() if output.needs_pooler or any("pooler." in name for name in names) else None

    def suffix(self, fields: Fields, names: Collection[str]) -> str:
        """Files of both pretraining tasks may name the class of one; then the tensors decide."""
        suffix = super().suffix(fields, names)
        both = suffix == "ForMaskedLM" and any("seq_relationship" in n or "sop_classifier" in n for n in names)
        return "ForPreTraining" if both else suffix

    def output_dropout(self, fields: Fields, suffix: str) -> float:
        return 0.0 if suffix == "ForQuestionAnswering" else super().output_dropout(fields, suffix)

    def write_more(self, config: EncoderModel) -> dict[str, Any]:
        positions = expect(config.embeddings.positions, Learned, "embeddings.positions", self)
        norm = expect(config.embeddings.norm, LayerNorm, "embeddings.norm", self)
        fields: dict[str, Any] = {
            "max_position_embeddings": positions.max_length,
            "type_vocab_size": config.embeddings.segments,
            "layer_norm_eps": norm.epsilon,
        }
        return fields | classifier_dropout(config.output)

    def copies(self, config: EncoderModel) -> Mapping[str, str]:
        if not isinstance(config.output, MaskedLanguageModel | Pretraining):
            return {}
        return {
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }


def classifier_dropout(output: TaskOutput, name: str = "classifier_dropout") -> dict[str, Any]:
    """The field of the dropout before a task's logits."""
    if isinstance(output, NoTask | MaskedLanguageModel | Pretraining | Span):
        return {}
    return {name: output.dropout}  # type: ignore[attr-defined]
