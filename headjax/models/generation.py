"""Generation token by token with a cache, compiled as one loop, and the samplers that choose tokens."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count
from headjax.core.tensors import Params
from headjax.models.cache import DecodingState
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, GenerativeModel, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.prompts import NEW_TOKENS, end_of_text, prompt_batch, texts_of, tokenizer_of


class Sampler(Checked, abc.ABC):
    """Chooses a token from logits."""

    @abc.abstractmethod
    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        """`[batch, vocabulary]` to `[batch]` tokens."""


@dataclasses.dataclass(frozen=True)
class Greedy(Sampler):
    """The most likely token."""

    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Sampler):
    """A token drawn from softmax(logits / temperature), cut to the likely ones and scaled up again.

    Attributes:
        temperature: below 1 sharpens, above 1 flattens.
        top_k: how many of the likeliest tokens may be drawn; 0 is all.
        top_p: draws from the smallest set of likeliest tokens whose probabilities, after the cut to top_k, sum to at
            least this (Holtzman et al. 2020, section 3.1).
    """

    temperature: float = 1.0
    top_k: Count = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.temperature > 0, "temperature", f"must be positive (greedy is its own sampler), got {self.temperature}"
        )
        require(0.0 < self.top_p <= 1.0, "top_p", f"must be above 0 and at most 1, got {self.top_p}")

    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, self.cut(logits), axis=-1)

    def cut(self, logits: jax.Array) -> jax.Array:
        """The scaled logits, -inf for tokens that cannot be drawn."""
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            lowest = jax.lax.top_k(logits, self.top_k)[0][..., -1:]
            logits = jnp.where(logits >= lowest, logits, -jnp.inf)
        if self.top_p < 1.0:
            order = jnp.argsort(logits, axis=-1, descending=True)
            sorted_probabilities = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
            # A token stays while those likelier than it sum to less than top_p, so the likeliest always does.
            before = jnp.cumsum(sorted_probabilities, axis=-1) - sorted_probabilities
            kept = jnp.zeros(logits.shape, bool)
            kept = jnp.put_along_axis(kept, order, before < self.top_p, axis=-1, inplace=False)
            logits = jnp.where(kept, logits, -jnp.inf)
        return logits


class Generated(NamedTuple):
    """Generated tokens.

    Attributes:
        tokens: `[batch, new tokens]`, the end token included; padding after it.
        lengths: `[batch]` tokens generated, the end token included.
        log_probability: `[batch]` sum of the tokens' log probabilities under the model, in nats.
    """

    tokens: jax.Array
    lengths: jax.Array
    log_probability: jax.Array


class Choices(TypedDict, total=False):
    """Keyword arguments of `generate`."""

    max_new_tokens: int
    end_token: int | None
    padding_token: int
    sampler: Sampler
    seed: int
    gates: Gates | None
    compute: Compute


@overload
def generate(model: Model, batch: Batch, **choices: Unpack[Choices]) -> Generated: ...


@overload
def generate(model: Model, batch: str, **choices: Unpack[Choices]) -> str: ...


@overload
def generate(model: Model, batch: list[str] | tuple[str, ...], **choices: Unpack[Choices]) -> list[str]: ...


def generate(
    model: Model,
    batch: Batch | str | Sequence[str],
    *,
    max_new_tokens: int = NEW_TOKENS,
    end_token: int | None = None,
    padding_token: int = 0,
    sampler: Sampler = Greedy(),
    seed: int = 0,
    gates: Gates | None = None,
    compute: Compute = Compute(),
) -> Generated | str | list[str]:
    """Continue every prompt, or translate every source, until its end token or `max_new_tokens`.

    Prompts may differ in length, with padding on either side.

    Args:
        model: a decoder or an encoder-decoder.
        batch: arrays by Hugging Face's names, where `attention_mask` marks padding; or a text, or a list of texts,
            which the model's tokenizer reads (`headjax.models.prompts.prompt_batch`).
        max_new_tokens: longest continuation.
        end_token: ends a continuation; None never ends one, or for texts is the tokenizer's end-of-text token.
        padding_token: token after an end token in the result.
        sampler: how tokens are chosen.
        seed: of the sampler.
        gates: head gates, `[layers, max_heads]` each.
        compute: how to compute.

    Returns:
        For a batch its tokens; for a text its continuation (without the text) or its translation; for a list of texts
        the list of these.

    Raises:
        DataError: the model does not generate, has not enough positions, or has no tokenizer to read texts with.
    """
    config = check_generative(model.config, max_new_tokens, gates)
    texts = None if isinstance(batch, Mapping) else [batch] if isinstance(batch, str) else list(batch)
    if texts is not None and end_token is None:
        end_token = end_of_text(tokenizer_of(model))
    inputs: Batch = batch if isinstance(batch, Mapping) else prompt_batch(model, texts or ())
    arrays = device_batch(config, inputs)
    settings = _Settings(config, max_new_tokens, end_token, padding_token, sampler, compute)
    found = _generate(settings, model.params, arrays, gates, jax.random.key(seed))
    if texts is None:
        return found
    continued = texts_of(model, inputs, np.asarray(found.tokens), np.asarray(found.lengths), end_token)
    return continued[0] if isinstance(batch, str) else continued


def check_generative(config: ModelConfig, max_new_tokens: int, gates: Gates | None) -> GenerativeModel:
    """Return the config if it can generate with these gates.

    Raises:
        DataError: it cannot.
    """
    if not isinstance(config, GenerativeModel):
        raise DataError("model: it has no decoder, so it does not generate")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise DataError(f"max_new_tokens: must be an integer of at least 1, got {max_new_tokens!r}")
    for name, array in (gates or {}).items():
        if array.ndim != 2:
            raise DataError(f"gates: {name} has shape {list(array.shape)}; generation takes [layers, max_heads]")
    return config


def start(
    config: GenerativeModel, params: Params, batch: Batch, options: Options, new_tokens: int
) -> tuple[jax.Array, DecodingState]:
    """Return logits `[batch, vocabulary]` after each prompt's last token before padding, and the state after it."""
    prompt = config.prompt(params, batch, options, new_tokens)
    logits, state = config.decode(params, prompt.tokens, prompt.present, prompt.state, options)
    length = prompt.tokens.shape[1]
    last = length - 1 - jnp.argmax(prompt.present[:, ::-1], axis=1)
    return jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0], state


class _Settings(NamedTuple):
    config: GenerativeModel
    max_new_tokens: int
    end_token: int | None
    padding_token: int
    sampler: Sampler
    compute: Compute


class _Loop(NamedTuple):
    step: jax.Array
    logits: jax.Array
    state: DecodingState
    tokens: jax.Array
    lengths: jax.Array
    log_probability: jax.Array
    finished: jax.Array


@functools.partial(jax.jit, static_argnums=0)
def _generate(settings: _Settings, params: Params, batch: Batch, gates: Gates | None, key: jax.Array) -> Generated:
    config, limit, padding_token = settings.config, settings.max_new_tokens, settings.padding_token
    options = Options(gates=gates, compute=settings.compute)
    logits, state = start(config, params, batch, options, limit)
    count = logits.shape[0]
    first = _Loop(
        step=jnp.zeros((), jnp.int32),
        logits=logits,
        state=state,
        tokens=jnp.full((count, limit), padding_token, jnp.int32),
        lengths=jnp.zeros(count, jnp.int32),
        log_probability=jnp.zeros(count),
        finished=jnp.zeros(count, bool),
    )

    def unfinished(loop: _Loop) -> jax.Array:
        return (loop.step < limit) & ~loop.finished.all()

    def advance(loop: _Loop) -> _Loop:
        token = settings.sampler(loop.logits, jax.random.fold_in(key, loop.step)).astype(jnp.int32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(loop.logits, axis=-1), token[:, None], axis=1)[:, 0]
        running = ~loop.finished
        token = jnp.where(running, token, padding_token)
        logits, state = config.decode(params, token[:, None], running[:, None], loop.state, options)
        ended = jnp.zeros_like(running) if settings.end_token is None else token == settings.end_token
        return _Loop(
            step=loop.step + 1,
            logits=logits[:, 0],
            state=state,
            tokens=jax.lax.dynamic_update_slice_in_dim(loop.tokens, token[:, None], loop.step, axis=1),
            lengths=loop.lengths + running,
            log_probability=loop.log_probability + jnp.where(running, chosen, 0.0),
            finished=loop.finished | ended,
        )

    last = jax.lax.while_loop(unfinished, advance, first)
    return Generated(last.tokens, last.lengths, last.log_probability)
