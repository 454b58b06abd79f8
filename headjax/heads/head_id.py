"""Names of heads, which survive pruning."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from headjax.core.errors import HeadjaxError, require
from headjax.models.config import HEAD_STACKS, ModelConfig

_NUMBER = "(0|[1-9][0-9]{0,8})"
_PATTERN = re.compile(f"([a-z]+)/{_NUMBER}/{_NUMBER}")
_PLACE_PATTERN = re.compile(rf"([^/\s]*[^/\s0-9][^/\s]*)/{_NUMBER}")

ANY_LAYER = "*"
"""Stands for the layer's number in the path of a module, which is the head stack of a model that is not headjax's."""


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class HeadId:
    """Head by its head stack, layer and original number, both counted from 0; prints as `encoder/3/7`.

    In a Flax model that is not headjax's, the head stack is the path of the attention module with `*` in place of the
    layer's number. Such a head prints as path and number: `HeadId("layers.*.attn", 3, 5)` as `layers.3.attn/5`. A path
    without a number is a stack of one layer.

        >>> headjax.HeadId.parse("encoder/3/7")
        HeadId(stack='encoder', layer=3, head=7)

    Attributes:
        stack: Head stack: `encoder`, `decoder` or `cross`, or the path of modules.
        layer: Layer within the stack.
        head: Number of the head before anything was removed.
    """

    stack: str
    layer: int
    head: int

    def __str__(self) -> str:
        if self.stack in HEAD_STACKS:
            return f"{self.stack}/{self.layer}/{self.head}"
        return f"{self.stack.replace(ANY_LAYER, str(self.layer))}/{self.head}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """Return the head that `text` names.

        Raises:
            HeadjaxError: The text is not `stack/layer/head` with a known head stack, nor a module's path and a number.
        """
        place = _PLACE_PATTERN.fullmatch(text)
        if place is not None and place[1] not in HEAD_STACKS:
            return cls(*stack_of(place[1]), int(place[2]))
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise HeadjaxError(f"head {text!r}: expected stack/layer/head, such as encoder/3/7")
        if match[1] not in HEAD_STACKS:
            raise HeadjaxError(f"head {text!r}: unknown head stack {match[1]!r}; known: {', '.join(HEAD_STACKS)}")
        return cls(match[1], int(match[2]), int(match[3]))


def named_heads(heads: Iterable[HeadId | str]) -> tuple[HeadId, ...]:
    """Return heads that are given as `HeadId`s or as text."""
    require(not isinstance(heads, str), "heads", f"expected a list of heads, got the text {heads!r}")
    return tuple(HeadId.parse(head) if isinstance(head, str) else head for head in heads)


Values = Mapping[HeadId, float]
"""One number per head."""

HeadLayer = tuple[str, int]
"""A head stack and a layer in it."""


def stack_of(path: str) -> tuple[str, int]:
    """Return the head stack and the layer, its last number, of a path: `("layers.*.attn", 3)` of `layers.3.attn`."""
    parts = path.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    if not numbers:
        return path, 0
    layer = int(parts[numbers[-1]])
    parts[numbers[-1]] = ANY_LAYER
    return ".".join(parts), layer


def all_heads(config: ModelConfig, stacks: Iterable[str] | None = None) -> tuple[HeadId, ...]:
    """Return every head of a model's head stacks (None is all of them), by stack, layer and position.

        >>> heads = headjax.all_heads(headjax.demo_model().config)
        >>> len(heads), str(heads[0]), str(heads[-1])
        (32, 'decoder/0/0', 'decoder/3/7')

    Raises:
        HeadjaxError: the model has no such head stack.
    """
    attentions, heads = config.attentions(), list[HeadId]()
    for stack in attentions if stacks is None else stacks:
        require_stack(config, stack)
        for layer, attention in enumerate(attentions[stack]):
            heads += (HeadId(stack, layer, head) for head in attention.ids)
    return tuple(heads)


def position(config: ModelConfig, head: HeadId) -> int:
    """Return the present position of a head in its layer: the column of its gate and its index along head axes."""
    require_stack(config, head.stack, f"head {head}")
    layers = config.attentions()[head.stack]
    if head.layer >= len(layers):
        raise HeadjaxError(f"head {head}: {head.stack} has {len(layers)} layers, counted from 0")
    ids = layers[head.layer].ids
    if head.head not in ids:
        there = f"heads {', '.join(map(str, ids))}" if ids else "no heads left"
        raise HeadjaxError(f"head {head}: layer {head.layer} of {head.stack} has {there}")
    return ids.index(head.head)


def require_stack(config: ModelConfig, stack: str, where: str = "head stack") -> None:
    """Raise `HeadjaxError` unless the model has this head stack."""
    if stack not in config.attentions():
        raise HeadjaxError(f"{where}: the model has no head stack {stack!r}; it has {', '.join(config.attentions())}")
