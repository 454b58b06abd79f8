"""What models that generate have besides a forward pass: token by token, with a cache."""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple

import jax

from headjax.core.tensors import Params
from headjax.models.base import Batch, ModelConfig, Options
from headjax.models.cache import Cache


class DecodingState(NamedTuple):
    """Everything a model remembers of one batch between tokens.

    Attributes:
        cache: the decoder's cache.
        source: `[batch, key]` bool, False at the source's padding; None without cross-attention or padding.
    """

    cache: Cache
    source: jax.Array | None = None

    def take(self, rows: jax.Array) -> DecodingState:
        """The state of these examples, in this order; one may be taken several times."""
        return DecodingState(self.cache.take(rows), None if self.source is None else self.source[rows])

    def reorder(self, rows: jax.Array) -> DecodingState:
        """The state of these examples, each with the same source as the one whose row it takes."""
        return self._replace(cache=self.cache.reorder(rows))


class Prompt(NamedTuple):
    """What generation continues.

    Attributes:
        tokens: `[batch, length]`.
        present: `[batch, length]` bool, False at padding, on whichever side.
        state: a state that has seen none of them.
    """

    tokens: jax.Array
    present: jax.Array
    state: DecodingState


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerativeModel(ModelConfig):
    """A model that predicts the next token from those before it."""

    @abc.abstractmethod
    def prompt(self, params: Params, batch: Batch, options: Options, new_tokens: int) -> Prompt:
        """What the batch asks to continue, with room in the cache for this many new tokens.

        Raises:
            DataError: prompt and new tokens together are more than the model's positions reach.
        """

    @abc.abstractmethod
    def decode(
        self, params: Params, tokens: jax.Array, present: jax.Array, state: DecodingState, options: Options
    ) -> tuple[jax.Array, DecodingState]:
        """Logits `[batch, new, vocabulary]` after each new token, and the state that has seen them.

        They are those of one forward over all tokens seen so far.

        Args:
            params: the parameters.
            tokens: `[batch, new]` tokens that follow what the state has seen.
            present: `[batch, new]` bool, False at padding.
            state: what came before.
            options: gates and how to compute.
        """
