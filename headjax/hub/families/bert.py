"""BERT, RoBERTa (XLM-RoBERTa, CamemBERT), MPNet, ELECTRA, DistilBERT, ALBERT: post-norm encoders, learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headjax.hub.families.entries import BASE, INITIALIZER, TIED, classifier, masked_rules, output, tokens_and_spans
from headjax.hub.family import Family, ModelClass
from headjax.hub.rules import Rules, affine, norm, one, projection, projections, under
from headjax.hub.table import (
    Custom,
    Dropped,
    Entry,
    Field,
    Fixed,
    Layers,
    Optional,
    Record,
    activation,
    computed,
    has_tensor,
    integer,
    number,
    record,
    share,
    size,
)
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import MaskedLanguageModel, NoTask, Pretraining
from headjax.nn.embeddings import RelativeBuckets
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm
from headjax.nn.projections import ActivationName

_WIDTH, _HEADS, _VOCABULARY = size("hidden_size"), size("num_attention_heads"), size("vocab_size")
_ACTIVATION = activation("hidden_act", "gelu")
_DROPOUT = number("hidden_dropout_prob", 0.1)
_NORM = record(LayerNorm, epsilon=number("layer_norm_eps", 1e-12))
_POOLER = Optional(Fixed("tanh"), when=has_tensor("pooler."))
_LENGTH = size("max_position_embeddings")


def _layers(count: Field, width: Field, heads: Field, hidden: Field) -> Layers:
    attention = record(MultiHeadAttention, num_heads=heads, head_dim=share(width, heads))
    return Layers(count, {"attention": attention, "hidden": hidden})


def encoder(layers: Layers | None = None, **parts: Any) -> Record:
    """Return the table of an encoder with the names of BERT's fields, but for these layers and parts."""
    fields = {
        "width": _WIDTH,
        "vocab_size": _VOCABULARY,
        "positions": "learned",
        "max_length": _LENGTH,
        "position_offset": 0,
        "segments": size("type_vocab_size", 2),
        "activation": _ACTIVATION,
        "norm": _NORM,
        "dropout": _DROPOUT,
        "attention_dropout": number("attention_probs_dropout_prob", 0.1),
        "pooler": _POOLER,
        "initializer": INITIALIZER,
    }
    usual = _layers(size("num_hidden_layers"), _WIDTH, _HEADS, size("intermediate_size"))
    return record(EncoderConfig, layers or usual, **fields | parts)


_EMBEDDINGS: Rules = (
    *one("embeddings.word_embeddings.weight", "embeddings/token"),
    *one("embeddings.position_embeddings.weight", "embeddings/position"),
    *one("embeddings.token_type_embeddings.weight", "embeddings/segment"),
    *norm("embeddings.LayerNorm", "embeddings/norm"),
)


def _rules(attention: str, attention_norm: str) -> Rules:
    """Return the rules of BERT, with these names of query, key, value and output, and of the norm behind them."""
    layer = (
        *projections("attention.", attention, "attention"),
        *norm(f"attention.{attention_norm}", "attention_residual/norm"),
        *projection("intermediate.dense", "feed_forward/up"),
        *projection("output.dense", "feed_forward/down"),
        *norm("output.LayerNorm", "feed_forward_residual/norm"),
    )
    layers = under("encoder.layer.{}.", "encoder/{}/", layer)
    return (*_EMBEDDINGS, *layers, *affine("pooler.dense", "pooler"))


_BERT_RULES = _rules("self.query self.key self.value output.dense", "output.LayerNorm")


def _pretraining(
    hidden_act: Field, dropout: Entry, tokens: str, head: str, transform: str, order: str
) -> tuple[ModelClass, ...]:
    """Return BERT's and ALBERT's classes with a task; `order` names the output about the order of two sentences."""
    masked = record(MaskedLanguageModel, activation=hidden_act, norm=_NORM, tied=TIED)
    names = f"{head}.{transform}dense", f"{head}.{transform}LayerNorm", f"{head}.decoder", f"{head}.bias"
    copies = ((f"{head}.decoder.weight", tokens), (f"{head}.decoder.bias", f"{head}.bias"))
    return (
        output("ForMaskedLM", masked, masked_rules(*names), copies),
        ModelClass(
            suffix="ForPreTraining",
            parts={"task": record(Pretraining, masked=masked), "pooler": "tanh"},
            rules=(*masked_rules(*names, "output/masked"), *affine(order, "output/next_sentence")),
            copies=copies,
            instead_of="ForMaskedLM",  # bert-base-uncased calls itself so
            marked_by="seq_relationship|sop_classifier",
        ),
        output("ForSequenceClassification", classifier(dropout), affine("classifier", "output"), pooler="tanh"),
        *tokens_and_spans(dropout, 0.0),
    )


_CLASSIFIER_DROPOUT = number("classifier_dropout", _DROPOUT)

BERT = Family(  # Devlin et al. 2019
    model_type="bert",
    class_prefix="Bert",
    prefix="bert.",
    config=encoder(),
    classes=(
        BASE,
        *_pretraining(
            _ACTIVATION,
            _CLASSIFIER_DROPOUT,
            "bert.embeddings.word_embeddings.weight",
            "cls.predictions",
            "transform.",
            "cls.seq_relationship",
        ),
    ),
    rules=_BERT_RULES,
)


# RoBERTa's positions skip padding. They start behind the row of the padding token, which the table holds too.
_PADDING = integer("pad_token_id", 1)
_LENGTH_PRESENT = computed(lambda fields: _LENGTH.read(fields) - _PADDING.read(fields) - 1, _LENGTH.name)
_OFFSET = Custom(
    lambda fields: _PADDING.read(fields) + 1, lambda offset: {_PADDING.name: offset - 1}, name=_PADDING.name
)


def _head_in_two(dense: str, activation: ActivationName, dropout: Entry) -> ModelClass:
    """Return ForSequenceClassification whose output is BERT's pooler, with this activation, and a map to labels."""
    rules = (*affine(dense, "pooler"), *affine("classifier.out_proj", "output"))
    task = classifier(dropout)
    return output("ForSequenceClassification", task, rules, pooler=activation, pooler_dropout=dropout)


def roberta(
    model_type: str,
    class_prefix: str,
    config: Record | None = None,
    *,
    prefix: str = "roberta.",
    rules: Rules = _BERT_RULES,
    dropout: Entry = _CLASSIFIER_DROPOUT,
    supported: Mapping[str, tuple[Any, ...]] | None = None,
) -> Family:
    """Return a family like RoBERTa (Liu et al. 2019): BERT whose positions skip padding, with other task outputs."""
    usual = encoder(positions="learned_present", max_length=_LENGTH_PRESENT, position_offset=_OFFSET)
    tokens = f"{prefix}embeddings.word_embeddings.weight"
    return Family(
        model_type=model_type,
        class_prefix=class_prefix,
        prefix=prefix,
        config=(config or usual).writing(lambda config: {_LENGTH.name: config.max_length + config.position_offset}),
        classes=(
            BASE,
            output(
                "ForMaskedLM",
                record(MaskedLanguageModel, activation="gelu", norm=_NORM, tied=TIED),
                masked_rules("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
                (("lm_head.decoder.weight", tokens), ("lm_head.decoder.bias", "lm_head.bias")),
            ),
            _head_in_two("classifier.dense", "tanh", dropout),
            *tokens_and_spans(dropout, 0.0),
        ),
        rules=rules,
        supported=supported or {},
    )


ROBERTA = roberta("roberta", "Roberta")
XLM_ROBERTA = roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = roberta("camembert", "Camembert")

MPNET = roberta(  # Song et al. 2020: RoBERTa without segments, whose layers share T5's bias of relative positions
    "mpnet",
    "MPNet",
    encoder(
        positions="learned_present",
        max_length=computed(lambda fields: _LENGTH.read(fields) - 2, _LENGTH.name),
        position_offset=2,
        segments=0,
        position_bias=record(RelativeBuckets, num_heads=_HEADS, buckets=32, max_distance=128),
    ),
    prefix="mpnet.",
    rules=(
        *_rules("attn.q attn.k attn.v attn.o", "LayerNorm"),
        *one("encoder.relative_attention_bias.weight", "encoder/position_bias/table"),
    ),
    dropout=_DROPOUT,
    supported={"pad_token_id": (1,), "relative_attention_num_buckets": (32,)},  # transformers computes no others
)

_ELECTRA_SIZE = size("embedding_size", 128)

ELECTRA = Family(  # Clark et al. 2020: BERT with small token embeddings, without a pooler
    model_type="electra",
    class_prefix="Electra",
    prefix="electra.",
    config=encoder(
        pooler=None,
        embedding_size=computed(  # without a map where it is the width
            lambda fields: None if (size := _ELECTRA_SIZE.read(fields)) == _WIDTH.read(fields) else size,
            _ELECTRA_SIZE.name,
        ),
    ).writing(lambda config: {_ELECTRA_SIZE.name: config.embedding_size or config.width}),
    classes=(
        BASE,
        output(
            "ForMaskedLM",
            record(MaskedLanguageModel, activation="gelu", norm=_NORM, tied=TIED),
            masked_rules("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
            (("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
        ),
        _head_in_two("classifier.dense", "gelu", _CLASSIFIER_DROPOUT),
        *tokens_and_spans(_CLASSIFIER_DROPOUT, 0.0),
        ModelClass(suffix="ForPreTraining", parts={"task": Dropped(NoTask())}),
    ),
    rules=(*_BERT_RULES, *projection("embeddings_project", "embeddings/projection")),
    ignored=(r"discriminator_predictions\..*",),  # which token was replaced: of pretraining alone
)


_DISTIL_WIDTH, _DISTIL_HEADS, _DISTIL_DROPOUT = size("dim"), size("n_heads"), number("dropout", 0.1)
_DISTIL_ACTIVATION, _DISTIL_NORM = activation("activation", "gelu"), LayerNorm(1e-12)

DISTILBERT = Family(  # Sanh et al. 2019: BERT without segments, whose pooler is part of the classifier
    model_type="distilbert",
    class_prefix="DistilBert",
    prefix="distilbert.",
    config=encoder(
        _layers(size("n_layers"), _DISTIL_WIDTH, _DISTIL_HEADS, size("hidden_dim")),
        width=_DISTIL_WIDTH,
        segments=0,
        activation=_DISTIL_ACTIVATION,
        norm=_DISTIL_NORM,
        dropout=_DISTIL_DROPOUT,
        attention_dropout=number("attention_dropout", 0.1),
        pooler=None,
    ),
    classes=(
        BASE,
        output(
            "ForMaskedLM",
            record(MaskedLanguageModel, activation=_DISTIL_ACTIVATION, norm=_DISTIL_NORM, tied=TIED),
            masked_rules("vocab_transform", "vocab_layer_norm", "vocab_projector"),
            (("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
        ),
        output(
            "ForSequenceClassification",
            classifier(number("seq_classif_dropout", 0.2)),
            (*affine("pre_classifier", "pooler"), *affine("classifier", "output")),
            pooler="relu",
        ),
        *tokens_and_spans(_DISTIL_DROPOUT, number("qa_dropout", 0.1)),
    ),
    rules=(
        *_EMBEDDINGS,
        *under(
            "transformer.layer.{}.",
            "encoder/{}/",
            (
                *projections("attention.", "q_lin k_lin v_lin out_lin", "attention"),
                *norm("sa_layer_norm", "attention_residual/norm"),
                *projection("ffn.lin1", "feed_forward/up"),
                *projection("ffn.lin2", "feed_forward/down"),
                *norm("output_layer_norm", "feed_forward_residual/norm"),
            ),
        ),
    ),
)


_ALBERT_ACTIVATION = activation("hidden_act", "gelu_new")

ALBERT = Family(  # Lan et al. 2020: one layer used again and again, and small token embeddings
    model_type="albert",
    class_prefix="Albert",
    prefix="albert.",
    config=encoder(
        activation=_ALBERT_ACTIVATION,
        embedding_size=size("embedding_size", 128),
        shared_layers=True,
        dropout=number("hidden_dropout_prob", 0.0),
        attention_dropout=number("attention_probs_dropout_prob", 0.0),
    ),
    classes=(
        BASE,
        *_pretraining(
            _ALBERT_ACTIVATION,
            number("classifier_dropout_prob", 0.1),
            "albert.embeddings.word_embeddings.weight",
            "predictions",
            "",
            "sop_classifier.classifier",
        ),
    ),
    rules=(
        *_EMBEDDINGS,
        *projection("encoder.embedding_hidden_mapping_in", "embeddings/projection"),
        *under(
            "encoder.albert_layer_groups.0.albert_layers.0.",
            "encoder/0/",
            (
                *projections("attention.", "query key value dense", "attention"),
                *norm("attention.LayerNorm", "attention_residual/norm"),
                *projection("ffn", "feed_forward/up"),
                *projection("ffn_output", "feed_forward/down"),
                *norm("full_layer_layer_norm", "feed_forward_residual/norm"),
            ),
        ),
        *affine("pooler", "pooler"),
    ),
    supported={"num_hidden_groups": (1,), "inner_group_num": (1,)},
)
