"""Entries of a `config.json` that families share: classes with their labels, padding, initialization, positions.

Rotary positions are `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of 4. Layers differ by
`layer_types` and sliding windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.core.class_names import tell_nothing
from headjax.core.tensors import Normal
from headjax.hub import table
from headjax.hub.family import Copies, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import TRANSPOSED, Rules, affine, given, norm, one, projection
from headjax.models import tasks
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.rotary import LinearScaling, Llama3Scaling, RotaryHalves, YarnScaling

INITIALIZER = table.TrainingOnly(table.record(Normal, stddev=table.number("initializer_range", 0.02)))

BASE = ModelClass(suffix="Model", parts={"task": table.record(tasks.NoTask)})
"""The class of an encoder without a task."""


def heads(width: table.Field, count: table.Field, **options: Any) -> table.Record:
    """Return the entry of multi-head attention whose heads are together as wide as the model."""
    return table.record(MultiHeadAttention, num_heads=count, head_dim=table.share(width, count), **options)


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


_COUNT = table.Custom(num_labels, lambda count: written_labels([f"LABEL_{i}" for i in range(count)]), name="id2label")
_NAMES = table.Custom(label_names, lambda names: written_labels(names) if names else {}, name="id2label")
_PROBLEM = table.text(
    "problem_type", lambda fields: "regression" if num_labels(fields) == 1 else "single_label_classification"
)


def labelled(kind: type, **parts: table.Entry | float) -> table.Record:
    """Return the entry of an output with classes, whose names come before the names that unnamed classes get."""
    return table.record(kind, names=_NAMES, classes=_COUNT, **parts)


def classifier(dropout: table.Entry | float) -> table.Choice:
    """Return the entry of a classifier of texts or images, by default a regression where there is one label."""
    return table.Choice(
        _PROBLEM,
        {
            "regression": table.record(tasks.Regression, outputs=_COUNT, dropout=dropout),
            "single_label_classification": labelled(tasks.Classification, dropout=dropout),
            "multi_label_classification": labelled(tasks.MultiLabel, dropout=dropout),
        },
    )


def output(suffix: str, task: table.Entry, rules: Rules, copies: Copies = (), **parts: Any) -> ModelClass:
    """Return an encoder's class with a task."""
    return ModelClass(suffix=suffix, parts={"task": task, **parts}, rules=rules, copies=copies)


TIED = table.flag("tie_word_embeddings", True)
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


def masked_class(
    tokens: str, dense: str, normed: str, decoder: str, biases: str | None = None, **parts: Any
) -> ModelClass:
    """Return the class of a masked language model, which may share the tensor `tokens`; see `masked_rules`."""
    copies = ((f"{decoder}.weight", tokens), *(() if biases is None else ((f"{decoder}.bias", biases),)))
    task = table.record(tasks.MaskedLanguageModel, **parts, tied=TIED)
    return output("ForMaskedLM", task, masked_rules(dense, normed, decoder, biases), copies)


def tokens_and_spans(dropout: table.Entry, span_dropout: table.Entry | float) -> tuple[ModelClass, ModelClass]:
    """Return the classes whose output is a map of each token."""
    tokens = labelled(tasks.TokenClassification, dropout=dropout)
    return (
        output("ForTokenClassification", tokens, affine("classifier", "output")),
        output("ForQuestionAnswering", table.record(tasks.Span, dropout=span_dropout), affine("qa_outputs", "output")),
    )


def padding_token(default: int = -1) -> table.Custom:
    """Return the entry of the padding token; a negative number means no token."""

    def read(fields: Fields) -> int | None:
        token = fields.integer("pad_token_id", default)
        return None if token < 0 else token

    return table.Custom(read, lambda token: {} if token is None else {"pad_token_id": token}, name="pad_token_id")


def text_classes(
    tied: table.Field,
    *,
    logits: str = "ForCausalLM",
    head: str = "lm_head",
    base: str = "Model",
    padding: int = -1,
    **output: table.Entry,
) -> tuple[ModelClass, ...]:
    """Return a decoder's classes: the language model, the base model, and the classifier of a text's last token."""
    # The base model has the logits of the language model where embeddings are tied.
    no_logits = table.Choice(tied, {True: table.Fixed(None), False: table.record(tasks.NoTask)})
    last = {"task": classifier(table.TrainingOnly(table.Fixed(0.0))), "padding_token": padding_token(padding)}
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


_ORIGINAL = table.size("original_max_position_embeddings")


_TYPE = table.text("rope_type", table.text("type", "default"))
_SCALING = table.Choice(
    _TYPE,
    {
        "default": table.Fixed(None),
        "linear": table.record(LinearScaling, factor=table.number("factor")),
        "llama3": table.record(
            Llama3Scaling,
            factor=table.number("factor"),
            low_frequency=table.number("low_freq_factor"),
            high_frequency=table.number("high_freq_factor"),
            original_length=_ORIGINAL,
        ),
        "yarn": table.record(
            YarnScaling,
            factor=table.number("factor"),
            original_length=_ORIGINAL,
            fast=table.number("beta_fast", 32.0),
            slow=table.number("beta_slow", 1.0),
            whole_pairs=table.flag("truncate", True),
            attention_factor=table.nullable("attention_factor", None, Fields.number),
        ),
    },
)
_ROPE = table.record(RotaryHalves, base=table.number("rope_theta"), scaling=_SCALING)


def read_rotary(
    fields: Fields, name: str, parameters: Mapping[str, Any], base: float, head_dim: int | None = None
) -> RotaryHalves:
    """Read one object of rotary parameters; without the size of heads all of their dimensions have to turn."""
    rope = _object(fields, name, {"rope_theta": base} | _without_nulls(parameters))
    rope.only("mscale", [None], None)
    if head_dim is None:
        rope.only(_PART, [1.0], 1.0)
    rotary: RotaryHalves = _ROPE.read(rope)
    part = rope.number(_PART, 1.0)
    if head_dim is None or part == 1.0:
        return rotary
    dim = int(head_dim * part)
    if dim % 2 or not 0 < dim <= head_dim:
        raise rope.error(_PART, f"{dim} of the {head_dim} dimensions of a head cannot turn in pairs")
    return dataclasses.replace(rotary, dim=dim)


def _object(fields: Fields, name: str, parameters: Mapping[str, Any]) -> Fields:
    """Return rotary parameters as fields, with `max_position_embeddings` as their original length if they lack it."""
    length = _without_nulls({_ORIGINAL.name: fields.data.get("max_position_embeddings")})
    return Fields(length | _without_nulls(parameters), f"{fields.file}: {name}")


def _shared(fields: Fields, name: str) -> dict[str, Any]:
    """Return the rotary parameters of all layers; Phi-3 has their original length beside them."""
    return _without_nulls(fields.group(name)) | _without_nulls({_ORIGINAL.name: fields.data.get(_ORIGINAL.name)})


def _without_nulls(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def write_rotary(rotary: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the object of rotary parameters, and its scaling alone as transformers 4 reads it."""
    parameters = _ROPE.write(rotary, "rotary")
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    return parameters, None if rotary.scaling is None else scaling


def rotary(
    base: float = 10000.0,
    *,
    theta: str = "rope_theta",
    part: table.Field | None = None,
    head_dim: table.Entry | None = None,
) -> table.Custom:
    """Return the entry of rotary positions that layers share: `part` is the share of `head_dim` that turns."""

    def read(fields: Fields) -> RotaryHalves:
        whole = None if head_dim is None else head_dim.read(fields)
        name = next((name for name in _OBJECTS if fields.group(name)), _OBJECTS[0])  # in the order of transformers
        turning = {} if part is None else {_PART: part.read(fields)}
        return read_rotary(fields, name, turning | _shared(fields, name), fields.number(theta, base), whole)

    def write(rotary: Any) -> Mapping[str, Any]:
        parameters, scaling = write_rotary(rotary)
        return {theta: rotary.base, "rope_scaling": scaling, "rope_parameters": parameters}

    return table.Custom(read, write)


def written_part(attention: Any, part: table.Field) -> dict[str, Any]:
    """Return the fields of an attention's rotary positions with the share of dimensions that turn."""
    (parameters, _), dim = write_rotary(attention.rotary), attention.rotary.dim
    share = 1.0 if dim is None else dim / attention.head_dim
    return {"rope_parameters": parameters | {_PART: share}, part.name: share}


_OBJECTS, _PART = ("rope_scaling", "rope_parameters"), "partial_rotary_factor"


def _read_positions(fields: Fields) -> int | None:
    """Read the number of positions; configs that YaRN was added to may still give the one before."""
    if not fields.has("max_position_embeddings"):
        return None
    longest = fields.size("max_position_embeddings")
    for name in _OBJECTS:
        rope = _object(fields, name, _shared(fields, name))
        if _TYPE.read(rope) == "yarn":
            longest = max(longest, int(rope.number("factor", 1.0) * _ORIGINAL.read(rope)))
    return longest


POSITIONS = table.Custom(
    _read_positions,
    lambda longest: {} if longest is None else {"max_position_embeddings": longest},
    name="max_position_embeddings",
)
"""Length of the longest sequence; None where the config does not say."""

FULL, SLIDING = "full_attention", "sliding_attention"


def window(default: int | None = None) -> table.Custom:
    """Return the entry of a layer's window."""
    return table.nullable("sliding_window", default, Fields.size)


def of_layer(name: str) -> table.Custom:
    """Return the entry of a value that a layer alone has, under a name that no file has."""
    return table.Custom(lambda fields: fields.data[name], lambda value: {name: value})


TURNING = of_layer("rotary")
"""The rotary positions of a layer, where they follow from its type."""


@dataclasses.dataclass(frozen=True)
class LayerTypes:
    """Layers of two types, by `layer_types`: some have a window, and with `bases` rotary positions of their own."""

    slides: Callable[[Fields, int], bool]  # of a layer's number, where no types are listed
    width: table.Entry  # the window, which any layer may have
    bases: Mapping[str, table.Field] = dataclasses.field(default_factory=dict)  # fields of transformers 4 by type

    def spread(self, fields: Fields, count: int) -> list[dict[str, Any]]:
        """Return each layer's own fields."""
        width, types = self.width.read(fields), fields.data.get("layer_types")
        if types is None:
            types = [SLIDING if self.slides(fields, number) else FULL for number in range(count)]
        if not isinstance(types, list) or len(types) != count:
            raise fields.error("layer_types", f"expected a list of {count} types, one per layer, got {types!r}")
        for kind in types:
            if kind not in (FULL, SLIDING):
                raise fields.unsupported("layer_types", kind, (FULL, SLIDING))
        if width is None and SLIDING in types:
            raise fields.error("sliding_window", f"missing, but layer {types.index(SLIDING)} is {SLIDING!r}")
        turning = {kind: {"rotary": self._rotary(fields, kind)} for kind in {*types}} if self.bases else {}
        return [{"sliding_window": width if kind == SLIDING else None, **turning.get(kind, {})} for kind in types]

    def gather(self, written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the config's fields; of those that layers have in common the first one's value."""
        values = {name: value for fields in reversed(written) for name, value in fields.items()}
        windows = [layer["sliding_window"] for layer in written]
        types = [FULL if window is None else SLIDING for window in windows]
        del values["sliding_window"]
        values |= self.width.write(next((window for window in windows if window is not None), None), "window")
        if self.bases:
            del values["rotary"]
            values |= {"rope_parameters": {}, "rope_scaling": None}
        for kind in sorted({*types}) if self.bases else ():
            parameters, scaling = write_rotary(written[types.index(kind)]["rotary"])
            values["rope_parameters"][kind] = parameters
            values[self.bases[kind].name] = parameters["rope_theta"]
            if kind == FULL:
                values["rope_scaling"] = scaling
        return values | {"layer_types": types}

    def _rotary(self, fields: Fields, kind: str) -> RotaryHalves:
        """Read the rotary positions of a type of layer: its object in `rope_parameters`, or transformers 4's fields."""
        nested = fields.group("rope_parameters")
        if nested and not {*nested} <= {*self.bases}:
            known = " and ".join(self.bases)
            raise fields.error("rope_parameters", f"expected one object for each of {known}, got {sorted(nested)}")
        parameters = Fields(nested, f"{fields.file}: rope_parameters").group(kind)
        old = fields.group("rope_scaling") if kind == FULL else {}
        return read_rotary(fields, f"rope_parameters: {kind}", {**parameters, **old}, self.bases[kind].read(fields))
