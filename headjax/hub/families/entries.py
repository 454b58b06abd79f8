"""Entries of a `config.json` that families share: classes with their labels, padding, initialization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headjax.core.class_names import tell_nothing
from headjax.core.tensors import Normal
from headjax.hub.family import Copies, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import TRANSPOSED, Rules, affine, given, norm, one, projection
from headjax.hub.table import Choice, Custom, Entry, Field, Fixed, Record, TrainingOnly, flag, number, record, text
from headjax.models.tasks import Classification, MultiLabel, NoTask, Regression, Span, TokenClassification

INITIALIZER = TrainingOnly(record(Normal, stddev=number("initializer_range", 0.02)))

BASE = ModelClass(suffix="Model", parts={"task": record(NoTask)})
"""The class of an encoder without a task."""


def num_labels(fields: Fields) -> int:
    """Return the number of labels: those of `id2label`, else `num_labels`, else 2."""
    return len(fields.group("id2label")) or fields.size("num_labels", 2)


def label_names(fields: Fields) -> tuple[str, ...]:
    """Return the names of `id2label` in the order of their numbers; none where they only repeat them (`LABEL_0`)."""
    named = {str(number): str(name) for number, name in fields.group("id2label").items()}
    if set(named) != {str(number) for number in range(len(named))}:
        raise fields.error("id2label", f"expected the keys 0 to {len(named) - 1}, got {', '.join(sorted(named)[:8])}")
    names = tuple(named[str(number)] for number in range(len(named)))
    return () if tell_nothing(names) else names


def written_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields that name these labels."""
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


_COUNT = Custom(num_labels, lambda count: written_labels([f"LABEL_{i}" for i in range(count)]), name="id2label")
_NAMES = Custom(label_names, lambda names: written_labels(names) if names else {}, name="id2label")
_PROBLEM = text(
    "problem_type", lambda fields: "regression" if num_labels(fields) == 1 else "single_label_classification"
)


def labelled(kind: type, **parts: Entry | float) -> Record:
    """Return the entry of an output with classes, whose names come before the names that unnamed classes get."""
    return record(kind, names=_NAMES, classes=_COUNT, **parts)


def classifier(dropout: Entry | float) -> Choice:
    """Return the entry of a classifier of texts or images, by default a regression where there is one label."""
    return Choice(
        _PROBLEM,
        {
            "regression": record(Regression, outputs=_COUNT, dropout=dropout),
            "single_label_classification": labelled(Classification, dropout=dropout),
            "multi_label_classification": labelled(MultiLabel, dropout=dropout),
        },
    )


def output(suffix: str, task: Entry, rules: Rules, copies: Copies = (), **parts: Any) -> ModelClass:
    """Return an encoder's class with a task."""
    return ModelClass(suffix=suffix, parts={"task": task, **parts}, rules=rules, copies=copies)


TIED = flag("tie_word_embeddings", True)
"""Whether the logits of masked tokens have the token embeddings as weights."""


def masked_rules(dense: str, normed: str, decoder: str, bias: str | None = None, ours: str = "output") -> Rules:
    """Return the rules of the head of a masked language model: its map, its norm, the logits' weights and biases.

    `bias` is the name of the biases in files with tied logits. Files with untied logits hold `bias` too, which no model
    reads, beside `DECODER.bias`: the value of the latter counts, and is written under both names.
    """
    kernel, biases = f"{ours}/kernel", one(f"{decoder}.bias", f"{ours}/bias")
    biases = biases if bias is None else (*one(bias, f"{ours}/bias"), *given(kernel, biases))
    weights = one(f"{decoder}.weight", kernel, TRANSPOSED)
    return (*projection(dense, f"{ours}/transform"), *norm(normed, f"{ours}/norm"), *weights, *biases)


def tokens_and_spans(dropout: Entry, span_dropout: Entry | float) -> tuple[ModelClass, ModelClass]:
    """Return the classes whose output is a map of each token."""
    tokens = labelled(TokenClassification, dropout=dropout)
    return (
        output("ForTokenClassification", tokens, affine("classifier", "output")),
        output("ForQuestionAnswering", record(Span, dropout=span_dropout), affine("qa_outputs", "output")),
    )


def padding_token(default: int = -1) -> Custom:
    """Return the entry of the padding token; a negative number means no token."""

    def read(fields: Fields) -> int | None:
        token = fields.integer("pad_token_id", default)
        return None if token < 0 else token

    return Custom(read, lambda token: {} if token is None else {"pad_token_id": token}, name="pad_token_id")


def text_classes(
    tied: Field,
    *,
    logits: str = "ForCausalLM",
    head: str = "lm_head",
    base: str = "Model",
    padding: int = -1,
    **output: Entry,
) -> tuple[ModelClass, ...]:
    """Return a decoder's classes: the language model, the base model, and the classifier of a text's last token."""
    # The base model has the logits of the language model where embeddings are tied.
    no_logits = Choice(tied, {True: Fixed(None), False: record(NoTask)})
    last = {"task": classifier(TrainingOnly(Fixed(0.0))), "padding_token": padding_token(padding)}
    return (
        ModelClass(
            suffix=logits,
            parts={"tied": tied, "task": None, **output},
            rules=one(f"{head}.weight", "output/kernel", TRANSPOSED),
        ),
        ModelClass(suffix=base, parts={"tied": True, "task": no_logits, **output}),
        ModelClass(
            suffix=f"{base.removesuffix('Model')}ForSequenceClassification",
            parts={"tied": True, **last},
            rules=one("score.weight", "output/kernel", TRANSPOSED),
        ),
    )
