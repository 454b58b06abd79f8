"""The layout `remote`: a model of any sizes and formulations, and the PyTorch code that computes it.

`headjax_layers` of the `config.json` has an entry for each layer: its attention as `to_data` gives it, with all that
follows from other fields written out, and what else it has of its own. `headjax` holds what all layers share, but for
what PyTorch code may change: the task, its labels and the vocabulary are read from `architectures`, `problem_type`,
`id2label`, `vocab_size`, `tie_word_embeddings` and `pad_token_id`, as `save_pretrained` writes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.kind import Kind
from headjax.core.serialize import foreign_modules, from_data, kind_of, to_data
from headjax.hub.families.entries import TIED, classifier, labelled, padding_token
from headjax.hub.family import Copies, Family, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import FLAT, LAST_FIRST, SAME, TRANSPOSED, Rule, Rules, places
from headjax.hub.table import Entry, Fixed, InexpressibleError, Record, TrainingOnly, record
from headjax.models import tasks
from headjax.models.config import BY_LAYER, ModelConfig
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.vision import VisionConfig
from headjax.nn.latent import LatentAttention
from headjax.nn.multi_head import GroupedAttention

FOLDER = Path(__file__).resolve().parents[1] / "remote"
SHARED = ("layers_headjax.py", "parts_headjax.py")
MODULE = "modeling_headjax"
MODELING = f"{MODULE}.py"
CODE = frozenset({*SHARED, MODELING})
"""Files of code of an export."""

_AUTO = {
    kind: {"AutoConfig": "HeadjaxConfig", "AutoModel": "HeadjaxModel"}
    | {f"AutoModelFor{task}": f"HeadjaxFor{task}" for task in tasks}
    for kind, tasks in {
        "encoder": ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"),
        "vision": ("ImageClassification",),
        "decoder": ("CausalLM", "SequenceClassification"),
    }.items()
}
"""The class of the code for each class of `transformers` that loads it, by the kind of the model."""

_OF_TEXTS = tasks.Classification | tasks.MultiLabel | tasks.Regression
_TASKS: Mapping[type, str] = {
    tasks.Classification: "SequenceClassification",
    tasks.MultiLabel: "SequenceClassification",
    tasks.Regression: "SequenceClassification",
    tasks.TokenClassification: "TokenClassification",
    tasks.MaskedLanguageModel: "MaskedLM",
    tasks.Pretraining: "MaskedLM",
    tasks.Span: "QuestionAnswering",
    tasks.DistilledClassification: "ImageClassification",
}
_ANY_DROPOUT = TrainingOnly(Fixed(0.0))  # that of the exported task, see `_task`
_ENTRIES: Mapping[str, Entry] = {
    "SequenceClassification": classifier(_ANY_DROPOUT),
    "ImageClassification": classifier(_ANY_DROPOUT),
    "TokenClassification": labelled(tasks.TokenClassification),
    "MaskedLM": record(tasks.MaskedLanguageModel, tied=TIED),
    "QuestionAnswering": record(tasks.Span),
}
"""The task of each class."""
_ENTRIES_IF_EXPORTED: Mapping[tuple[str, str], Entry] = {
    ("ImageClassification", "distilled_classification"): labelled(tasks.DistilledClassification),
    ("MaskedLM", "pretraining"): record(tasks.Pretraining, masked=record(tasks.MaskedLanguageModel, tied=TIED)),
}
"""The task of a class where a model with that task was exported."""

_CHANGEABLE = ("vocab_size", "tied", "names", "classes", "outputs")
"""Fields that are not in `headjax`, since code in PyTorch may change them."""

_TOKENS = tuple(f"{role}_token_id" for role in ("bos", "eos", "pad", "sep", "cls", "mask"))
_INNER = {"pooler": "dense", "patches": "projection"}
_PLAIN = ("bias", "mixing", "shortcut", "branch", "class_token", "distillation_token", "table")
"""Tensors that have no `weight` behind their name in PyTorch."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RemoteFamily(Family):
    """Models of these architectures in a `config.json` of our own, and the file of code that reads it."""

    architectures: tuple[type, ...]
    modeling: str
    class_prefix: str = "Headjax"
    classes: tuple[ModelClass, ...] = ()
    config: Record = record(ModelConfig)
    rules: Rules = ()
    prefix: str = "model."
    carried: tuple[str, ...] = (*_TOKENS, "id2label", "label2id")

    @property
    def kinds(self) -> tuple[type, ...]:
        return self.architectures

    def read(self, fields: Fields) -> ModelConfig:
        shared, layers = fields.group("headjax"), fields.data.get("headjax_layers")
        if not shared or not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
            raise fields.error("headjax_layers", "expected a list of objects, beside the object headjax")
        by_layer = [name for name in BY_LAYER if name != "attention" and any(name in layer for layer in layers)]
        data = {name: [layer.get(name) for layer in layers] for name in by_layer}
        attention = [{name: value for name, value in layer.items() if name not in by_layer} for layer in layers]
        everything = dict(shared) | data | {"attention": attention} | self._changeable(fields, shared)
        config: ModelConfig = from_data(ModelConfig, everything, f"{fields.file}: headjax")  # type: ignore[type-abstract]
        if not isinstance(config, self.kinds):
            raise fields.error("headjax", f"kind is {kind_of(config)}, which is not that of {self.model_type}")
        return config

    def _changeable(self, fields: Fields, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Return what PyTorch code may have changed: the vocabulary, what is padding, the task."""
        named, kind = fields.data.get("architectures"), shared.get("kind")
        known = [name for name in _AUTO[kind].values() if name != "HeadjaxConfig"] if kind in _AUTO else []
        if not isinstance(named, list) or not named or named[0] not in known:
            raise fields.error("architectures", f"expected one of {', '.join(known)}, got {named!r}")
        name = str(named[0]).removeprefix("HeadjaxFor")
        changed: dict[str, Any] = {} if kind == "vision" else {"vocab_size": fields.size("vocab_size")}
        if kind == "decoder":
            changed["tied"] = fields.flag("tie_word_embeddings", True)
        if kind == "decoder" and name == "SequenceClassification":
            changed["padding_token"] = padding_token().read(fields)
        return changed | {"task": _task(fields, dict(shared) | changed, name)}

    def write(self, config: Any) -> dict[str, Any]:
        foreign = foreign_modules(config)
        if foreign:
            raise InexpressibleError(f"its code does not know what {', '.join(sorted(foreign))} defines")
        if isinstance(config, DecoderConfig) and not isinstance(config.task, _OF_TEXTS | tasks.NoTask | None):
            raise InexpressibleError(f"its code for decoders has no {kind_of(config.task)}")
        config = dataclasses.replace(config, attention=tuple(map(spelled_out, config.attention)))
        names = [name for name in BY_LAYER if hasattr(config, name) and name != "attention"]
        layers = [
            to_data(config.attention[number]) | {name: getattr(config, name)[number] for name in names}
            for number in range(config.num_layers)
        ]
        data = {name: value for name, value in to_data(config).items() if name not in (*BY_LAYER, *_CHANGEABLE)}
        if data["task"] is not None:
            data["task"] = {name: value for name, value in data["task"].items() if name not in _CHANGEABLE}
        written: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": list(self.class_names(config)[:1]),
            "auto_map": {auto: f"{MODULE}.{name}" for auto, name in _AUTO[kind_of(config)].items()},
            "headjax": data,
            "headjax_layers": layers,
            "hidden_size": config.width,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": max(attention.num_heads for attention in config.attention),
        }
        if not isinstance(config, VisionConfig):
            written["vocab_size"] = config.vocab_size
            if config.max_length is not None:
                written["max_position_embeddings"] = config.max_length + config.position_offset
        if isinstance(config, DecoderConfig):
            written["tie_word_embeddings"] = config.tied
            if isinstance(config.task, _OF_TEXTS):
                written["pad_token_id"] = config.padding_token
        name = self.class_names(config)[0].removeprefix("HeadjaxFor")
        if name in _ENTRIES:
            entry = _ENTRIES_IF_EXPORTED.get((name, kind_of(config.task)), _ENTRIES[name])
            written |= entry.write(config.task, "task")
        if isinstance(config.task, tasks.Classification) and config.task.classes > 1:
            del written["problem_type"]  # which PyTorch infers, from another number of labels too
        return written

    def class_names(self, config: Any) -> tuple[str, ...]:
        if isinstance(config, DecoderConfig) and config.task is None:
            of_embeddings = config.tied and not config.output_bias
            return ("HeadjaxForCausalLM", *(["HeadjaxModel"] if of_embeddings else []))
        task = _TASKS.get(type(config.task))
        if isinstance(config, VisionConfig) and task is not None:
            task = "ImageClassification"
        return ("HeadjaxModel" if task is None else f"HeadjaxFor{task}",)

    def tensor_rules(self, config: Any) -> Rules:
        of_tokens = config.task is None or isinstance(config.task, tasks.MaskedLanguageModel | tasks.Pretraining)
        head, tensors = "lm_head" if of_tokens else "classifier", places(config)
        return tuple(_rule(path, tensors, head) for path in tensors)

    def repeated(self, config: ModelConfig) -> Copies:
        return tuple((f"lm_head.{name}weight", "model.embeddings.token.weight") for name in ("", "decoder."))

    def files(self) -> dict[str, str]:
        sources = {MODELING: self.modeling, **{name: name for name in SHARED}}
        return {name: (FOLDER / source).read_text(encoding="utf-8") for name, source in sources.items()}


REMOTE = (
    RemoteFamily(
        model_type="headjax_encoder", modeling="modeling_encoder.py", architectures=(EncoderConfig, VisionConfig)
    ),
    RemoteFamily(model_type="headjax_decoder", modeling="modeling_decoder.py", architectures=(DecoderConfig,)),
)
"""The families of the layout `remote`."""


def _task(fields: Fields, shared: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the task of the class of this name, with those options of the exported one that it has too."""
    exported = shared.get("task")
    if name == "CausalLM":
        return None
    if name == "HeadjaxModel":
        logits = exported is None and shared.get("tied") and not shared.get("output_bias")  # those of the embeddings
        return None if logits else to_data(tasks.NoTask())
    exported = exported if isinstance(exported, dict) else {}
    kind = str(exported.get("kind"))
    if kind == "pretraining" and fields.tensors and not any("next_sentence" in tensor for tensor in fields.tensors):
        kind, exported = "masked_language_model", exported.get("masked", {})
    task = to_data(_ENTRIES_IF_EXPORTED.get((name, kind), _ENTRIES[name]).read(fields))
    options = {"dropout": shared.get("dropout", 0.0)} | exported
    return task | {name: options[name] for name in task if name in options and name not in ("kind", *_CHANGEABLE)}


def spelled_out(attention: Kind) -> Kind:
    """Return the attention with those defaults written out that follow from other fields."""
    if "inner" in attention.options:
        return attention.replace(inner=spelled_out(attention.inner))
    if issubclass(attention.of, GroupedAttention | LatentAttention):
        attention = attention.replace(value_dim=attention.values, scale=attention.logit_scale)
    if attention.of is GroupedAttention:
        attention = attention.replace(kv_index=attention.groups)
    return attention.replace(head_ids=attention.ids) if "head_ids" in attention.options else attention


def _rule(path: str, known: Mapping[str, Any], head: str) -> Rule:
    """Return the rule of a tensor: its path here with points, behind `model.`, of the map to logits behind `head`."""
    place, _, last = path.rpartition("/")
    if last == "kernel":
        name, form = f"{place}/weight", LAST_FIRST if place == "patches" else TRANSPOSED
    elif last == "scale":
        name, form = f"{place}/weight", SAME
    elif last.endswith("_bias") and path.removesuffix("_bias") in known:
        name, form = f"{path.removesuffix('_bias')}/bias", FLAT
    elif last in _PLAIN or path == "patches/position":
        name, form = path, SAME
    elif place == "embeddings" and last in ("token", "position", "segment"):
        name, form = f"{path}/weight", SAME
    else:
        name, form = f"{path}/weight", TRANSPOSED
    name = re.sub("^(pooler|patches)/(?=(weight|bias)$)", lambda match: f"{match[1]}/{_INNER[match[1]]}/", name)
    name = re.sub("^(encoder|decoder)/", "", re.sub("^(encoder|decoder)/(?=[0-9])", "layers/", name))
    name = re.sub("^output/(masked/)?", f"{head}/", name) if name.startswith("output/") else f"model/{name}"
    if name in ("lm_head/weight", "lm_head/bias") and known.keys() & {"output/transform", "output/masked/transform"}:
        name = name.replace("/", "/decoder/")
    return Rule(name.replace("/", "."), (path,), form)
