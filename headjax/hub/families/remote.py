"""The layout `remote`: a model of any sizes and formulations, and the PyTorch code that computes it.

`headjax_layers` of the `config.json` has an entry for each layer: its attention as `to_data` gives it, with all that
follows from other fields written out, and what else it has of its own. `headjax` holds what all layers share.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.kind import Kind
from headjax.core.serialize import foreign_modules, from_data, kind_of, to_data
from headjax.hub.families.entries import written_labels
from headjax.hub.family import Copies, Family, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import FLAT, LAST_FIRST, SAME, TRANSPOSED, Rule, Rules, places
from headjax.hub.table import InexpressibleError, Record, record
from headjax.models.config import BY_LAYER, ModelConfig
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import (
    Classification,
    DistilledClassification,
    MaskedLanguageModel,
    NoTask,
    Pretraining,
    Regression,
    Span,
    TokenClassification,
)
from headjax.models.vision import VisionConfig
from headjax.nn.latent import LatentAttention
from headjax.nn.multi_head import GroupedAttention

FOLDER = Path(__file__).resolve().parents[1] / "remote"
SHARED, IMAGES = ("layers_headjax.py", "parts_headjax.py"), "images_headjax.py"
MODELING = "modeling_headjax.py"
CODE = frozenset({*SHARED, IMAGES, MODELING})
"""Files of code of an export."""

_BASE = {"AutoConfig": "HeadjaxConfig", "AutoModel": "HeadjaxModel"}
_DECODERS = {f"AutoModelFor{task}": f"HeadjaxFor{task}" for task in ("CausalLM", "SequenceClassification")}
_IMAGES = {"AutoModelForImageClassification": "HeadjaxForImageClassification"}
_TEXTS = {
    f"AutoModelFor{task}": f"HeadjaxFor{task}"
    for task in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
}
_TASKS: Mapping[type, str] = {
    Classification: "SequenceClassification",
    Regression: "SequenceClassification",
    TokenClassification: "TokenClassification",
    MaskedLanguageModel: "MaskedLM",
    Pretraining: "MaskedLM",
    Span: "QuestionAnswering",
    DistilledClassification: "ImageClassification",
}
_TOKENS = tuple(f"{role}_token_id" for role in ("bos", "eos", "pad", "sep", "cls", "mask"))
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
        if not shared or not isinstance(layers, list) or not all(isinstance(own, dict) for own in layers):
            raise fields.error("headjax_layers", "expected a list of objects, beside the object headjax")
        by_layer = [name for name in BY_LAYER if name != "attention" and any(name in own for own in layers)]
        data = {name: [own.get(name) for own in layers] for name in by_layer}
        attention = [{name: value for name, value in own.items() if name not in by_layer} for own in layers]
        everything = dict(shared) | data | {"attention": attention}
        config: ModelConfig = from_data(ModelConfig, everything, f"{fields.file}: headjax")  # type: ignore[type-abstract]
        if not isinstance(config, self.kinds):
            raise fields.error("headjax", f"kind is {kind_of(config)}, which is not that of {self.model_type}")
        return config

    def write(self, config: Any) -> dict[str, Any]:
        foreign = foreign_modules(config)
        if foreign:
            raise InexpressibleError(f"its code does not know what {', '.join(sorted(foreign))} defines")
        if isinstance(config, DecoderConfig) and not isinstance(
            config.task, Classification | Regression | NoTask | None
        ):
            raise InexpressibleError(f"its code for decoders has no {kind_of(config.task)}")
        config = dataclasses.replace(config, attention=tuple(map(spelled_out, config.attention)))
        names = [name for name in BY_LAYER if hasattr(config, name) and name != "attention"]
        layers = [
            to_data(config.attention[number]) | {name: getattr(config, name)[number] for name in names}
            for number in range(config.num_layers)
        ]
        data = {name: value for name, value in to_data(config).items() if name not in BY_LAYER}
        found: dict[str, Any] = {
            "model_type": self.model_type,
            "auto_map": {auto: f"{MODELING.removesuffix('.py')}.{name}" for auto, name in _auto(config).items()},
            "headjax": data,
            "headjax_layers": layers,
            "hidden_size": config.width,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": max(attention.num_heads for attention in config.attention),
        }
        return found | _usual(config)

    def class_names(self, config: Any) -> tuple[str, ...]:
        if isinstance(config, DecoderConfig) and config.task is None:
            return ("HeadjaxForCausalLM",)
        task = _TASKS.get(type(config.task))
        if isinstance(config, VisionConfig) and task is not None:
            task = "ImageClassification"
        return ("HeadjaxModel" if task is None else f"HeadjaxFor{task}",)

    def tensor_rules(self, config: ModelConfig) -> Rules:
        found = places(config)
        return tuple(_rule(path, found, _head(config)) for path in found)

    def repeated(self, config: ModelConfig) -> Copies:
        return (("lm_head.weight", "model.embeddings.token.weight"),)

    def files(self) -> dict[str, str]:
        """Return the texts of the files of code."""
        shared = SHARED if DecoderConfig in self.architectures else (*SHARED, IMAGES)
        sources = {MODELING: self.modeling, **{name: name for name in shared}}
        return {name: (FOLDER / source).read_text(encoding="utf-8") for name, source in sources.items()}


REMOTE = (
    RemoteFamily(
        model_type="headjax_encoder", modeling="modeling_encoder.py", architectures=(EncoderConfig, VisionConfig)
    ),
    RemoteFamily(model_type="headjax_decoder", modeling="modeling_decoder.py", architectures=(DecoderConfig,)),
)
"""The families of the layout `remote`."""


def _auto(config: ModelConfig) -> dict[str, str]:
    """Return the class of the code for each class of `transformers` that loads it."""
    if isinstance(config, EncoderConfig):
        return _BASE | _TEXTS
    return _BASE | (_IMAGES if isinstance(config, VisionConfig) else _DECODERS)


def spelled_out(attention: Kind) -> Kind:
    """Return the attention with those defaults written out that follow from other fields."""
    if "inner" in attention.options:
        return attention.replace(inner=spelled_out(attention.inner))
    if issubclass(attention.of, GroupedAttention | LatentAttention):
        attention = attention.replace(value_dim=attention.values, scale=attention.logit_scale)
    if attention.of is GroupedAttention:
        attention = attention.replace(kv_index=attention.groups)
    return attention.replace(head_ids=attention.ids) if "head_ids" in attention.options else attention


def _usual(config: Any) -> dict[str, Any]:
    """Return what other programs look for under the usual names."""
    found: dict[str, Any] = {}
    if not isinstance(config, VisionConfig):
        found["vocab_size"] = config.vocab_size
        if config.max_length is not None:
            found["max_position_embeddings"] = config.max_length + config.position_offset
    if isinstance(config, DecoderConfig):
        found["tie_word_embeddings"] = config.tied
    task = config.task
    if isinstance(task, Regression):
        return found | written_labels([f"LABEL_{i}" for i in range(task.outputs)]) | {"problem_type": "regression"}
    if isinstance(task, Classification | TokenClassification | DistilledClassification):
        found |= written_labels(task.names or [f"LABEL_{i}" for i in range(task.classes)])
    return found


def _head(config: Any) -> str:
    """Return the name in PyTorch of the map to logits."""
    of_tokens = config.task is None or isinstance(config.task, MaskedLanguageModel | Pretraining)
    return "lm_head" if of_tokens else "classifier"


def _rule(path: str, known: Mapping[str, Any], head: str) -> Rule:
    """Return the rule of a tensor: its path here with points, behind `model.` but for the map to logits."""
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
    name = re.sub("^(encoder|decoder)/", "", re.sub("^(encoder|decoder)/(?=[0-9])", "layers/", name))
    name = re.sub("^output/(masked/)?", f"{head}/", name) if name.startswith("output/") else f"model/{name}"
    return Rule(name.replace("/", "."), (path,), form)
