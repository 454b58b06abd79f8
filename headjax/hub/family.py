"""Families of Hugging Face models: a table of config fields, name rules of tensors, and how heads are sized."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headjax.core.kind import Kind
from headjax.core.serialize import kind_of
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules, under
from headjax.hub.table import InexpressibleError, Record, record
from headjax.models.config import ModelConfig
from headjax.nn.multi_head import MultiHeadAttention

Copies = tuple[tuple[str, str], ...]
"""Pairs (copy, original) of tensors that some files hold twice."""


class HeadShape(NamedTuple):
    """Number and size of the heads of a layer, as a family's config gives them."""

    num_heads: int
    head_dim: int
    kv_heads: int


def dividing(num_heads: int, head_dim: int, width: int) -> HeadShape | None:
    """Return the most heads of at least this size, if they are at least `num_heads`; heads times size is the width."""
    fitting = [n for n in range(num_heads, width + 1) if width % n == 0 and width // n >= head_dim]
    return HeadShape(fitting[-1], width // fitting[-1], fitting[-1]) if fitting else None


def any_size(num_heads: int, head_dim: int, width: int) -> HeadShape | None:
    """Return heads of exactly this number and size, where the config has a field for the size."""
    return HeadShape(num_heads, head_dim, num_heads)


def multi_head(shape: HeadShape, like: Kind, **options: Any) -> Kind:
    """Return multi-head attention of this shape with all biases, but for these options."""
    return Kind(MultiHeadAttention, num_heads=shape.num_heads, head_dim=shape.head_dim, **options)


_USUAL: Mapping[str, Any] = {
    **dict.fromkeys(("is_causal", "scale_attn_weights"), True),
    **dict.fromkeys(("is_decoder", "add_cross_attention", "use_bidirectional_attention"), False),
    "scale_attn_by_inverse_layer_idx": False,
    "position_embedding_type": "absolute",
    "per_layer_config": {},
    "pruned_heads": {},
    "quantization_config": {},
}
"""Fields of any family by which `transformers` computes something else, and the only value that is supported."""

BUFFERS = r"(.*\.)?(position_ids|inv_freq|(attn|attention)\.(masked_)?bias|version)"
"""Names of tensors in older files that no model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelClass:
    """A class of a family: the base model, or the model with one task."""

    suffix: str
    parts: Mapping[str, Any]
    rules: Rules = ()
    copies: Copies = ()
    instead_of: str | None = None
    marked_by: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """A family of Hugging Face models, both directions in one table."""

    model_type: str
    class_prefix: str
    classes: tuple[ModelClass, ...]
    config: Record
    rules: Rules
    head_groups: tuple[tuple[str, ...], ...] = (("encoder",), ("decoder", "cross"))
    prefix: str = ""
    base: str = "Model"
    copies: Copies = ()
    ignored: tuple[str, ...] = ()
    supported: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    head_shape: Callable[[int, int, int], HeadShape | None] = dividing
    standard: Callable[[HeadShape, Kind], Kind] = multi_head
    carried: tuple[str, ...] = ()
    inside: tuple[str, str] | None = None
    """`model_type` of a model that holds one of this family, and the field of its config that describes it."""

    @property
    def kinds(self) -> tuple[type, ...]:
        return (self.config.kind,)

    def files(self) -> Mapping[str, str]:
        """Return the texts of files that are written beside the weights."""
        return {}

    def own(self, fields: Fields) -> Fields:
        """Return the fields of this family's model, which may be a part of another one."""
        if self.inside is None or fields.data.get("model_type") != self.inside[0]:
            return fields
        return Fields(fields.group(self.inside[1]), f"{fields.file}: {self.inside[1]}", fields.tensors)

    def read(self, fields: Fields) -> ModelConfig:
        """Return the architecture that a `config.json` describes."""
        for name, values in ({name: (value,) for name, value in _USUAL.items()} | dict(self.supported)).items():
            fields.only(name, values, values[0])
        return self.config.having(**self._named(fields).parts).read(fields)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of a `config.json`; the family expresses an architecture if `read` of them returns it."""
        chosen = self._classes_of(config)
        if not chosen:
            raise InexpressibleError(
                f"{self.model_type} has no class of a {kind_of(config)}{config.output_description()}"
            )
        fields = {"model_type": self.model_type, "architectures": [self.class_prefix + chosen[0].suffix]}
        return fields | dict(self.constants) | self.config.having(**chosen[0].parts).write(config, "")

    def class_names(self, config: ModelConfig) -> tuple[str, ...]:
        """Return the names of the classes that have this architecture, the usual one first."""
        return tuple(self.class_prefix + entry.suffix for entry in self._classes_of(config))

    def tensor_rules(self, config: ModelConfig) -> Rules:
        """Return the names of the tensors, as a model with a task has them."""
        of_class = tuple(rule for entry in self._classes_of(config)[:1] for rule in entry.rules)
        replaced = {path for rule in of_class for path in rule.ours}
        return (*(rule for rule in under(self.prefix, "", self.rules) if replaced.isdisjoint(rule.ours)), *of_class)

    def repeated(self, config: ModelConfig) -> Copies:
        """Return the tensors that files of this architecture may repeat."""
        return self.copies + tuple(pair for entry in self._classes_of(config)[:1] for pair in entry.copies)

    def _classes_of(self, config: Any) -> list[ModelClass]:
        """Return the classes that have a config's output."""
        names = ("task", "tied", "output_bias")

        def has_output(entry: ModelClass) -> bool:
            parts = {name: part for name, part in record(object, **entry.parts).parts.items() if name in names}
            return all(part.accepts(getattr(config, name)) for name, part in parts.items())

        return [entry for entry in self.classes if has_output(entry)]

    def _named(self, fields: Fields) -> ModelClass:
        """Return the class that `architectures` names, or the base model where the file holds nothing of its output."""
        # Directories of sentence-transformers name the class of the model that theirs was made of (all-mpnet-base-v2).
        known = {self.class_prefix + entry.suffix: entry for entry in self.classes}
        named = fields.data.get("architectures") or list(known)[:1]
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise fields.error("architectures", f"expected a list of class names, got {named!r}")
        for name in named:
            if name not in known:
                raise fields.error("architectures", f"{name} is not supported; supported: {', '.join(known)}")
        chosen = known[named[0]]
        for entry in self.classes:
            marked = entry.instead_of == chosen.suffix and any(re.search(entry.marked_by, t) for t in fields.tensors)
            chosen = entry if marked else chosen
        outputs = {rule.theirs for rule in chosen.rules}
        is_base = self.prefix and self.rules[0].theirs in fields.tensors
        lacks_outputs = outputs and outputs.isdisjoint(fields.tensors)
        return known[self.class_prefix + self.base] if lacks_outputs and is_base else chosen
