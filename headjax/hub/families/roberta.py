"""RoBERTa, XLM-RoBERTa and CamemBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from headjax.hub.families.bert import BertFamily, classifier_dropout
from headjax.hub.families.encoders import TaskClass
from headjax.hub.family import expect
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules, affine, norm, one, projection
from headjax.models.embeddings import LearnedPresent, Positions
from headjax.models.encoder import EncoderModel
from headjax.models.norms import LayerNorm
from headjax.models.pooler import Pooler
from headjax.models.tasks import Classification, MaskedLanguageModel, Regression, Span, TaskOutput, TokenClassification

_DENSE: Rules = affine("classifier.dense", "pooler")


@dataclasses.dataclass(frozen=True)
class RobertaFamily(BertFamily):
    """RoBERTa (Liu et al. 2019): BERT whose positions skip padding, with other task outputs."""

    prefix: ClassVar[str] = "roberta."
    ignored: ClassVar[tuple[str, ...]] = (r"(roberta\.)?embeddings\.position_ids",)
    tasks: ClassVar[tuple[TaskClass, ...]] = (
        TaskClass(
            "ForMaskedLM",
            (MaskedLanguageModel,),
            (
                *projection("lm_head.dense", "output/transform"),
                *norm("lm_head.layer_norm", "output/norm"),
                *one("lm_head.bias", "output/bias"),
            ),
        ),
        TaskClass("ForSequenceClassification", (Classification, Regression), affine("classifier.out_proj", "output")),
        TaskClass("ForTokenClassification", (TokenClassification,), affine("classifier", "output")),
        TaskClass("ForQuestionAnswering", (Span,), affine("qa_outputs", "output")),
    )

    def positions(self, fields: Fields) -> Positions:
        offset = fields.integer("pad_token_id", 1) + 1
        return LearnedPresent(fields.size("max_position_embeddings") - offset, offset)

    def pooler(self, fields: Fields, names: Collection[str], output: TaskOutput) -> Pooler | None:
        """The first layer of the classifier is a pooler with dropout."""
        if output.needs_pooler:
            return Pooler(dropout=self.output_dropout(fields, "ForSequenceClassification"))
        return super().pooler(fields, names, output)

    def masked(self, fields: Fields) -> MaskedLanguageModel:
        return MaskedLanguageModel(activation="gelu", norm=LayerNorm(self.epsilon(fields)))

    def write_more(self, config: EncoderModel) -> dict[str, Any]:
        positions = expect(config.embeddings.positions, LearnedPresent, "embeddings.positions", self)
        norm = expect(config.embeddings.norm, LayerNorm, "embeddings.norm", self)
        fields: dict[str, Any] = {
            "max_position_embeddings": positions.max_length + positions.offset,
            "pad_token_id": positions.offset - 1,
            "type_vocab_size": config.embeddings.segments,
            "layer_norm_eps": norm.epsilon,
        }
        return fields | classifier_dropout(config.output)

    def rules(self, config: EncoderModel) -> Rules:
        if not config.output.needs_pooler:
            return super().rules(config)
        theirs = [rule for rule in super().rules(config) if not rule.ours[0].startswith("pooler/")]
        return (*theirs, *_DENSE)

    def copies(self, config: EncoderModel) -> Mapping[str, str]:
        if not isinstance(config.output, MaskedLanguageModel):
            return {}
        return {
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        }
