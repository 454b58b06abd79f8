"""What every family of Hugging Face models is: its config fields, its name rules and how it sizes heads."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from headjax.attention.base import Attention
from headjax.attention.multi_head import MultiHead
from headjax.core.errors import HeadjaxError
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules
from headjax.models.base import ModelConfig

T = TypeVar("T")


class InexpressibleError(HeadjaxError):
    """A family's config or tensors cannot say what a model is; the message says what."""


class HeadShape(NamedTuple):
    """Number and size of the heads of a layer, as a family's config gives them.

    Attributes:
        num_heads: number of query heads.
        head_dim: size of queries, keys and values.
        kv_heads: number of key and value heads.
    """

    num_heads: int
    head_dim: int
    kv_heads: int


@dataclasses.dataclass(frozen=True)
class Family(abc.ABC):
    """A family of Hugging Face models.

    Attributes:
        model_type: of its `config.json`.
        class_prefix: what the names of its classes begin with.
    """

    model_type: str
    class_prefix: str

    prefix: ClassVar[str] = ""
    """What names of the base model's tensors begin with in the files of models with a task."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Patterns (of whole names) of buffers that hold nothing learned and that older files have."""
    config_type: ClassVar[type[ModelConfig]]
    """The architecture here."""
    head_groups: ClassVar[tuple[tuple[str, ...], ...]]
    """Head stacks whose head counts are one field of the config."""
    prunable: ClassVar[str | None] = None
    """The head stack whose layers transformers 4 numbers in `pruned_heads`, if it can remove heads of this family."""

    @abc.abstractmethod
    def read(self, fields: Fields, names: Collection[str]) -> ModelConfig:
        """The architecture that a `config.json` describes.

        Args:
            fields: the config.
            names: names of the tensors in the file, for what the config leaves open (whether there is a pooler).

        Raises:
            ConfigError: a field that is missing, malformed or of a value that is not supported.
        """

    @abc.abstractmethod
    def write(self, config: Any) -> dict[str, Any]:
        """The fields of a `config.json` that says as much of an architecture as the family can say.

        `read` of them is the architecture if, and only if, the family can express it.

        Raises:
            InexpressibleError: a part is of a kind that the family does not have.
        """

    @abc.abstractmethod
    def rules(self, config: Any) -> Rules:
        """Names of the tensors, as a model with a task has them."""

    @abc.abstractmethod
    def classes(self, config: Any) -> tuple[str, ...]:
        """Names of the classes that have this architecture, the usual one first."""

    def copies(self, config: Any) -> Mapping[str, str]:
        """Tensors that some files repeat: by name, that of the original they must equal."""
        return {}

    def is_base(self, class_name: str) -> bool:
        """Whether the tensors of a class are named without `prefix`."""
        return class_name == f"{self.class_prefix}Model"

    def standard(self, shape: HeadShape, like: Attention) -> Attention:
        """The family's attention with heads of this shape; what else it has is taken from `like`."""
        return MultiHead(num_heads=shape.num_heads, head_dim=shape.head_dim)

    def head_shape(self, num_heads: int, head_dim: int, width: int) -> HeadShape | None:
        """The smallest shape the family can give heads that holds so many heads of this size; None if none does.

        Here: heads times head size is the width, and the head size at least the one asked for.
        """
        fitting = [n for n in range(num_heads, width + 1) if width % n == 0 and width // n >= head_dim]
        return HeadShape(fitting[-1], width // fitting[-1], fitting[-1]) if fitting else None


def head_dim(fields: Fields, width: int, num_heads: int, name: str) -> int:
    """The size of heads that together are as wide as the model.

    Raises:
        ConfigError: it does not divide; the message names the field `name` of the number of heads.
    """
    if width % num_heads:
        raise fields.error(name, f"{num_heads} heads do not divide a width of {width}")
    return width // num_heads


def expect(value: Any, kind: type[T], path: str, family: Family) -> T:
    """The value, if it is exactly of this type.

    Raises:
        InexpressibleError: it is not.
    """
    if type(value) is not kind:
        raise InexpressibleError(f"{path} is {type(value).__name__}, {family.model_type} has {kind.__name__}")
    return value
