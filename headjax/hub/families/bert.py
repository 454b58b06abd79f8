"""BERT, RoBERTa (XLM-RoBERTa, CamemBERT), MPNet, ELECTRA, DistilBERT, ALBERT: post-norm encoders, learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headjax.hub import table
from headjax.hub.families import entries
from headjax.hub.family import Family, ModelClass
from headjax.hub.rules import Rules, affine, layers, norm, one, projection, projections
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import NoTask, Pretraining
from headjax.nn.embeddings import RelativeBuckets
from headjax.nn.norms import LayerNorm
from headjax.nn.projections import ActivationName

_WIDTH, _HEADS, _VOCABULARY = table.size("hidden_size"), table.size("num_attention_heads"), table.size("vocab_size")
_ACTIVATION = table.activation("hidden_act", "gelu")
_DROPOUT = table.number("hidden_dropout_prob", 0.1)
_NORM = table.record(LayerNorm, epsilon=table.number("layer_norm_eps", 1e-12))
_POOLER = table.Optional(table.Fixed("tanh"), when=table.has_tensor("pooler."))
_LENGTH = table.size("max_position_embeddings")


def encoder(stack: table.Layers | None = None, **parts: Any) -> table.Record:
    """Return the table of an encoder with the names of BERT's fields, but for these layers and parts."""
    fields = {
        "width": _WIDTH,
        "vocab_size": _VOCABULARY,
        "positions": "learned",
        "max_length": _LENGTH,
        "position_offset": 0,
        "segments": table.size("type_vocab_size", 2),
        "activation": _ACTIVATION,
        "norm": _NORM,
        "dropout": _DROPOUT,
        "attention_dropout": table.number("attention_probs_dropout_prob", 0.1),
        "pooler": _POOLER,
        "initializer": entries.INITIALIZER,
    }
    if stack is None:
        layer = {"attention": entries.heads(_WIDTH, _HEADS), "hidden": table.size("intermediate_size")}
        stack = table.Layers(table.size("num_hidden_layers"), layer)
    return table.record(EncoderConfig, stack, **fields | parts)


_EMBEDDINGS: Rules = (
    *one("embeddings.word_embeddings.weight", "embeddings/token"),
    *one("embeddings.position_embeddings.weight", "embeddings/position"),
    *one("embeddings.token_type_embeddings.weight", "embeddings/segment"),
    *norm("embeddings.LayerNorm", "embeddings/norm"),
)


def _rules(attention: str, attention_norm: str) -> Rules:
    """Return the rules of BERT, with these names of query, key, value and output, and of the norm behind them."""
    rules = layers(
        ("encoder.layer.{}.", "encoder/{}/"),
        projections("attention.", attention, "attention"),
        f"attention.{attention_norm} output.LayerNorm",
        "intermediate.dense output.dense",
    )
    return (*_EMBEDDINGS, *rules, *affine("pooler.dense", "pooler"))


_BERT_RULES = _rules("self.query self.key self.value output.dense", "output.LayerNorm")


def _pretraining(
    hidden_act: table.Field, dropout: table.Entry, tokens: str, head: str, transform: str, order: str
) -> tuple[ModelClass, ...]:
    """Return BERT's and ALBERT's classes with a task; `order` names the output about the order of two sentences."""
    names = f"{head}.{transform}dense", f"{head}.{transform}LayerNorm", f"{head}.decoder", f"{head}.bias"
    masked = entries.masked_class(tokens, *names, activation=hidden_act, norm=_NORM)
    return (
        masked,
        ModelClass(
            suffix="ForPreTraining",
            parts={"task": table.record(Pretraining, masked=masked.parts["task"]), "pooler": "tanh"},
            rules=(*entries.masked_rules(*names, "output/masked"), *affine(order, "output/next_sentence")),
            copies=masked.copies,
            instead_of="ForMaskedLM",  # bert-base-uncased calls itself so
            marked_by="seq_relationship|sop_classifier",
        ),
        entries.output(
            "ForSequenceClassification", entries.classifier(dropout), affine("classifier", "output"), pooler="tanh"
        ),
        *entries.tokens_and_spans(dropout, 0.0),
    )


_CLASSIFIER_DROPOUT = table.number("classifier_dropout", _DROPOUT)

BERT = Family(  # Devlin et al. 2019
    model_type="bert",
    class_prefix="Bert",
    prefix="bert.",
    config=encoder(),
    classes=(
        entries.BASE,
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
_PADDING = table.integer("pad_token_id", 1)
_LENGTH_PRESENT = table.computed(lambda fields: _LENGTH.read(fields) - _PADDING.read(fields) - 1, _LENGTH.name)
_OFFSET = table.Custom(
    lambda fields: _PADDING.read(fields) + 1, lambda offset: {_PADDING.name: offset - 1}, name=_PADDING.name
)


def _head_in_two(dense: str, activation: ActivationName, dropout: table.Entry) -> ModelClass:
    """Return ForSequenceClassification whose output is BERT's pooler, with this activation, and a map to labels."""
    rules = (*affine(dense, "pooler"), *affine("classifier.out_proj", "output"))
    task = entries.classifier(dropout)
    return entries.output("ForSequenceClassification", task, rules, pooler=activation, pooler_dropout=dropout)


def roberta(
    model_type: str,
    class_prefix: str,
    config: table.Record | None = None,
    *,
    prefix: str = "roberta.",
    rules: Rules = _BERT_RULES,
    dropout: table.Entry = _CLASSIFIER_DROPOUT,
    supported: Mapping[str, tuple[Any, ...]] | None = None,
) -> Family:
    """Return a family like RoBERTa (Liu et al. 2019): BERT whose positions skip padding, with other task outputs."""
    usual = encoder(positions="learned_present", max_length=_LENGTH_PRESENT, position_offset=_OFFSET)
    names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    return Family(
        model_type=model_type,
        class_prefix=class_prefix,
        prefix=prefix,
        config=(config or usual).writing(lambda config: {_LENGTH.name: config.max_length + config.position_offset}),
        classes=(
            entries.BASE,
            entries.masked_class(f"{prefix}embeddings.word_embeddings.weight", *names, activation="gelu", norm=_NORM),
            _head_in_two("classifier.dense", "tanh", dropout),
            *entries.tokens_and_spans(dropout, 0.0),
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
        max_length=table.computed(lambda fields: _LENGTH.read(fields) - 2, _LENGTH.name),
        position_offset=2,
        segments=0,
        position_bias=table.record(RelativeBuckets, num_heads=_HEADS, buckets=32, max_distance=128),
    ),
    prefix="mpnet.",
    rules=(
        *_rules("attn.q attn.k attn.v attn.o", "LayerNorm"),
        *one("encoder.relative_attention_bias.weight", "encoder/position_bias/table"),
    ),
    dropout=_DROPOUT,
    supported={"pad_token_id": (1,), "relative_attention_num_buckets": (32,)},  # transformers computes no others
)

_ELECTRA_SIZE = table.size("embedding_size", 128)

ELECTRA = Family(  # Clark et al. 2020: BERT with small token embeddings, without a pooler
    model_type="electra",
    class_prefix="Electra",
    prefix="electra.",
    config=encoder(
        pooler=None,
        embedding_size=table.computed(  # without a map where it is the width
            lambda fields: None if (rows := _ELECTRA_SIZE.read(fields)) == _WIDTH.read(fields) else rows,
            _ELECTRA_SIZE.name,
        ),
    ).writing(lambda config: {_ELECTRA_SIZE.name: config.embedding_size or config.width}),
    classes=(
        entries.BASE,
        entries.masked_class(
            "electra.embeddings.word_embeddings.weight",
            *("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
            activation="gelu",
            norm=_NORM,
        ),
        _head_in_two("classifier.dense", "gelu", _CLASSIFIER_DROPOUT),
        *entries.tokens_and_spans(_CLASSIFIER_DROPOUT, 0.0),
        ModelClass(suffix="ForPreTraining", parts={"task": table.Dropped(NoTask())}),
    ),
    rules=(*_BERT_RULES, *projection("embeddings_project", "embeddings/projection")),
    ignored=(r"discriminator_predictions\..*",),  # which token was replaced: of pretraining alone
)


_DISTIL_WIDTH, _DISTIL_DROPOUT = table.size("dim"), table.number("dropout", 0.1)
_DISTIL_ACTIVATION, _DISTIL_NORM = table.activation("activation", "gelu"), LayerNorm(1e-12)

DISTILBERT = Family(  # Sanh et al. 2019: BERT without segments, whose pooler is part of the classifier
    model_type="distilbert",
    class_prefix="DistilBert",
    prefix="distilbert.",
    config=encoder(
        table.Layers(
            table.size("n_layers"),
            {"attention": entries.heads(_DISTIL_WIDTH, table.size("n_heads")), "hidden": table.size("hidden_dim")},
        ),
        width=_DISTIL_WIDTH,
        segments=0,
        activation=_DISTIL_ACTIVATION,
        norm=_DISTIL_NORM,
        dropout=_DISTIL_DROPOUT,
        attention_dropout=table.number("attention_dropout", 0.1),
        pooler=None,
    ),
    classes=(
        entries.BASE,
        entries.masked_class(
            "distilbert.embeddings.word_embeddings.weight",
            *("vocab_transform", "vocab_layer_norm", "vocab_projector"),
            activation=_DISTIL_ACTIVATION,
            norm=_DISTIL_NORM,
        ),
        entries.output(
            "ForSequenceClassification",
            entries.classifier(table.number("seq_classif_dropout", 0.2)),
            (*affine("pre_classifier", "pooler"), *affine("classifier", "output")),
            pooler="relu",
        ),
        *entries.tokens_and_spans(_DISTIL_DROPOUT, table.number("qa_dropout", 0.1)),
    ),
    rules=(
        *_EMBEDDINGS,
        *layers(
            ("transformer.layer.{}.", "encoder/{}/"),
            projections("attention.", "q_lin k_lin v_lin out_lin", "attention"),
            "sa_layer_norm output_layer_norm",
            "ffn.lin1 ffn.lin2",
        ),
    ),
)


_ALBERT_ACTIVATION = table.activation("hidden_act", "gelu_new")

ALBERT = Family(  # Lan et al. 2020: one layer used again and again, and small token embeddings
    model_type="albert",
    class_prefix="Albert",
    prefix="albert.",
    config=encoder(
        activation=_ALBERT_ACTIVATION,
        embedding_size=table.size("embedding_size", 128),
        shared_layers=True,
        dropout=table.number("hidden_dropout_prob", 0.0),
        attention_dropout=table.number("attention_probs_dropout_prob", 0.0),
    ),
    classes=(
        entries.BASE,
        *_pretraining(
            _ALBERT_ACTIVATION,
            table.number("classifier_dropout_prob", 0.1),
            "albert.embeddings.word_embeddings.weight",
            "predictions",
            "",
            "sop_classifier.classifier",
        ),
    ),
    rules=(
        *_EMBEDDINGS,
        *projection("encoder.embedding_hidden_mapping_in", "embeddings/projection"),
        *layers(
            ("encoder.albert_layer_groups.0.albert_layers.0.", "encoder/0/"),
            projections("attention.", "query key value dense", "attention"),
            "attention.LayerNorm full_layer_layer_norm",
            "ffn ffn_output",
        ),
        *affine("pooler", "pooler"),
    ),
    supported={"num_hidden_groups": (1,), "inner_group_num": (1,)},
)
