"""Generation token by token with a cache: one program reads the prompts, one continues them; and the samplers."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count
from headjax.core.limits import check_memory
from headjax.core.tensors import Params
from headjax.mesh.memory import memory_of
from headjax.models.cache import DecodingState, with_units, without_units
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, GenerativeModel, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.prompts import (
    NEW_TOKENS,
    check_positions,
    end_of_text,
    prompt_batch,
    prompt_length,
    texts_of,
    tokenizer_of,
)


class Sampler(Checked, abc.ABC):
    """Chooses a token from logits."""

    @abc.abstractmethod
    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        """`[batch, vocabulary]` to `[batch]` tokens."""


@dataclasses.dataclass(frozen=True)
class Greedy(Sampler):
    """The most likely token.

    >>> headjax.generate(headjax.demo_model(), "for name in", sampler=headjax.Greedy(), max_new_tokens=4)
    ' the name of the'
    """

    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Sampler):
    """A token drawn from softmax(logits / temperature), cut to the likely ones and scaled up again.

        >>> sampler = headjax.Sample(temperature=0.8, top_k=50)
        >>> headjax.generate(headjax.demo_model(), "for name in", sampler=sampler, seed=1, max_new_tokens=4)
        ' name.children:'

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
    cache: int | None
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
    cache: int | None = None,
    gates: Gates | None = None,
    compute: Compute = Compute(),
) -> Generated | str | list[str]:
    """Continue every prompt, or translate every source, until its end token or `max_new_tokens`.

    Prompts may differ in length, with padding on either side. Positions are counted without padding; where the batch
    gives `position_ids` (`decoder_position_ids`), the continuation counts on from the last of them.

        >>> headjax.generate(headjax.demo_model(), ["for name in", "if not"], max_new_tokens=4)
        [' the name of the', ' self.debug():']

    Args:
        model: a decoder or an encoder-decoder.
        batch: arrays by Hugging Face's names, where `attention_mask` marks padding; or a text, or a list of texts,
            which the model's tokenizer reads (`headjax.models.prompts.prompt_batch`).
        max_new_tokens: longest continuation.
        end_token: ends a continuation; None never ends one, or for texts is the tokenizer's end-of-text token.
        padding_token: token after an end token in the result.
        sampler: how tokens are chosen.
        seed: of the sampler.
        cache: number of tokens that the cache has room for, so that requests of several lengths share one compilation;
            None is as many as prompt and continuation need.
        gates: head gates, `[layers, max_heads]` each.
        compute: how to compute.

    Returns:
        For a batch its tokens; for a text its continuation (without the text) or its translation; for a list of texts
        the list of these.

    Raises:
        DataError: the model does not generate, has not enough positions, or has no tokenizer to read texts with; or the
            cache is too small.
    """
    texts = None if isinstance(batch, Mapping) else [batch] if isinstance(batch, str) else list(batch)
    if texts is not None and end_token is None:
        end_token = end_of_text(tokenizer_of(model))
    inputs: Batch = batch if isinstance(batch, Mapping) else prompt_batch(model, texts or ())
    found = begin(
        model,
        inputs,
        max_new_tokens=max_new_tokens,
        end_token=end_token,
        padding_token=padding_token,
        sampler=sampler,
        seed=seed,
        cache=cache,
        gates=gates,
        compute=compute,
    ).advance()
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


class Generation:
    """A generation under way: the prompts have been read, and `advance` continues them.

    Attributes:
        limit: greatest number of tokens of a continuation.
        step: number of tokens that have been generated, those of the longest continuation.
        finished: whether every continuation has ended.
    """

    def __init__(self, settings: _Settings, params: Params, gates: Gates | None, key: jax.Array, loop: _Loop) -> None:
        self._settings, self._params, self._gates, self._key, self._loop = settings, params, gates, key, loop
        self.limit = settings.max_new_tokens
        self.step, self.finished = 1, self.limit == 1

    def advance(self, tokens: int | None = None) -> Generated:
        """Generate up to `tokens` more (all that are left if None) and return all tokens so far.

        Arrays of an earlier result stay as they are.
        """
        if self.finished:
            return self._found()
        until = self.limit if tokens is None else min(self.step + tokens, self.limit)
        self._loop = _continue(self._settings, self._params, self._gates, self._key, self._loop, until)
        if tokens is not None:  # only then does anyone ask before the end
            self.step = int(self._loop.step)
            self.finished = self.step >= self.limit or bool(self._loop.finished.all())
            # The next call takes these arrays' memory.
            return Generated(*(jnp.array(array) for array in self._found()))
        self.step, self.finished = self.limit, True
        return self._found()

    def _found(self) -> Generated:
        return Generated(self._loop.tokens, self._loop.lengths, self._loop.log_probability)

    def block_until_ready(self) -> Generation:
        """Wait until all arrays are computed."""
        jax.block_until_ready(self._loop.tokens)
        return self


def begin(
    model: Model,
    batch: Batch,
    *,
    max_new_tokens: int = NEW_TOKENS,
    end_token: int | None = None,
    padding_token: int = 0,
    sampler: Sampler = Greedy(),
    seed: int = 0,
    cache: int | None = None,
    gates: Gates | None = None,
    compute: Compute = Compute(),
) -> Generation:
    """Read the prompts of a batch and choose the first token of each continuation; the arguments are `generate`'s.

    Raises:
        DataError: as `generate`.
    """
    config = check_generative(model.config, max_new_tokens, gates)
    check_positions(config, batch, max_new_tokens)
    arrays = device_batch(config, batch)
    settings = _Settings(config, max_new_tokens, end_token, padding_token, sampler, compute, cache)
    params = for_decoding(config, model.params, compute)
    key = jax.random.key(seed)
    return Generation(settings, params, gates, key, _begin(settings, params, arrays, gates, key))


UNROLLED = 64
"""Greatest number of layers that are computed one by one; deeper stacks are scanned, which compiles faster."""


def for_decoding(config: GenerativeModel, params: Params, compute: Compute = Compute()) -> Params:
    """Return the parameters as generation reads them: in the type to compute in, each layer's arrays by themselves.

    Parameters that are so already are not copied; a program that generates often converts them once.
    """
    if any(array.dtype != compute.type for array in jax.tree.leaves(params)):
        params = jax.jit(compute.cast)(params)
    shallow = {name: stack for name, stack in config.stacks().items() if len(stack.layers) <= UNROLLED}
    return params | {name: stack.by_layer(params[name]) for name, stack in shallow.items()}


def cache_bytes(
    config: GenerativeModel, params: Params, batch: Batch, new_tokens: int, compute: Compute = Compute()
) -> int:
    """Return the bytes of the keys and values in the cache of a batch and as many new tokens, of all layers."""

    def layers(params: Params, batch: Batch) -> Any:
        return config.prompt(params, batch, Options(compute=compute), new_tokens).state.cache.layers

    arrays = jax.tree.leaves(jax.eval_shape(layers, params, dict(batch)))
    return sum(array.size * array.dtype.itemsize for array in arrays)


class Programs(NamedTuple):
    """Compiled programs of one generation (`jax.stages.Compiled`), which report their memory.

    Attributes:
        prompt: reads the prompts and chooses each first token.
        continuation: adds tokens until there are as many as it is told.
    """

    prompt: Any
    continuation: Any


def programs(model: Model, batch: Batch, *, max_new_tokens: int = NEW_TOKENS, compute: Compute = Compute()) -> Programs:
    """Compile what `generate` runs on a batch of these shapes, greedily and without an end token.

    Raises:
        DataError: as `generate`.
    """
    config = check_generative(model.config, max_new_tokens, None)
    settings = _Settings(config, max_new_tokens, None, 0, Greedy(), compute)
    params, key = for_decoding(config, model.params, compute), jax.random.key(0)
    prompt = _begin.lower(settings, params, device_batch(config, batch), None, key)
    loop = jax.tree.map(lambda made: jax.ShapeDtypeStruct(made.shape, made.dtype), prompt.out_info)
    continuation = _continue.lower(settings, params, None, key, loop, 1)
    return Programs(prompt.compile(), continuation.compile())


def check_room(field: str, config: GenerativeModel, params: Params, batch: Batch, texts: int, new_tokens: int) -> int:
    """Check that texts that are generated at a time can fit into memory; return the bytes of their caches.

    Args:
        field: the option or argument that asks for them.
        config: the architecture.
        params: parameters as generation reads them.
        batch: one prompt.
        texts: number of texts, those of all beams.
        new_tokens: number of new tokens that each has room for.

    Raises:
        ConfigError: they take more memory than there is.
        DataError: they are longer than the model's positions reach.
    """
    there, length = memory_of(), prompt_length(config, batch) + new_tokens
    asked = f"{texts:,} x {length:,} tokens"
    # Larger ones have no shape that JAX could tell the bytes of.
    check_memory(field, texts * length * _TOKEN, there, asked)
    try:
        needed = texts * cache_bytes(config, params, batch, new_tokens)
    except DataError as error:  # more than the model has positions
        raise DataError(f"{field}: {error}") from None
    check_memory(field, needed, there, f"the caches of {asked}")
    return needed


_TOKEN = 4
"""Bytes of a token, an int32."""


def start(
    config: GenerativeModel, params: Params, batch: Batch, options: Options, new_tokens: int
) -> tuple[jax.Array, DecodingState]:
    """Return logits `[batch, vocabulary]` after each prompt's last token before padding, and the state after it."""
    prompt = config.prompt(params, batch, options, new_tokens)
    last = prompt.tokens.shape[1] - 1 - jnp.argmax(prompt.present[:, ::-1], axis=1)
    logits, state = config.decode(
        params, prompt.tokens, prompt.present, prompt.state, options, at=last, positions=prompt.positions
    )
    return logits[:, 0], state


class _Settings(NamedTuple):
    config: GenerativeModel
    max_new_tokens: int
    end_token: int | None
    padding_token: int
    sampler: Sampler
    compute: Compute
    cache: int | None = None

    def room(self, batch: Batch) -> int:
        """Return the number of new tokens that the cache has room for.

        Raises:
            DataError: the continuation would not fit.
        """
        if self.cache is None:
            return self.max_new_tokens
        tokens = prompt_length(self.config, batch)
        if tokens + self.max_new_tokens > self.cache:
            asked = f"the prompt of {tokens} and {self.max_new_tokens} new ones need {tokens + self.max_new_tokens}"
            raise DataError(f"cache: it has room for {self.cache} tokens, but {asked}")
        return self.cache - tokens


class _Loop(NamedTuple):
    """Continuations so far.

    `step` counts the tokens of the longest; the newest ones, at `step` - 1, are not in the cache yet.
    """

    step: jax.Array
    state: DecodingState
    tokens: jax.Array
    lengths: jax.Array
    log_probability: jax.Array
    finished: jax.Array

    def with_caches(self, layers: Any) -> _Loop:
        """Return the loop with these caches of the layer groups."""
        return self._replace(state=self.state._replace(cache=self.state.cache._replace(layers=layers)))


@functools.partial(jax.jit, static_argnums=0)
def _begin(settings: _Settings, params: Params, batch: Batch, gates: Gates | None, key: jax.Array) -> _Loop:
    options = Options(gates=gates, compute=settings.compute)
    logits, state = start(settings.config, params, batch, options, settings.room(batch))
    count = logits.shape[0]
    nothing = _Loop(
        step=jnp.zeros((), jnp.int32),
        state=state,
        tokens=jnp.full((count, settings.max_new_tokens), settings.padding_token, jnp.int32),
        lengths=jnp.zeros(count, jnp.int32),
        log_probability=jnp.zeros(count),
        finished=jnp.zeros(count, bool),
    )
    return _chosen(settings, nothing, logits, key)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def _continue(
    settings: _Settings, params: Params, gates: Gates | None, key: jax.Array, loop: _Loop, until: int
) -> _Loop:
    """Generate until there are `until` tokens or every continuation has ended; the loop's arrays are used up."""
    options = Options(gates=gates, compute=settings.compute)

    caches = loop.state.cache.layers

    def unfinished(loop: _Loop) -> jax.Array:
        return (loop.step < until) & ~loop.finished.all()

    def advance(loop: _Loop) -> _Loop:
        loop = loop.with_caches(with_units(loop.state.cache.layers, caches))
        token = jax.lax.dynamic_slice_in_dim(loop.tokens, loop.step - 1, 1, axis=1)
        present = (loop.lengths == loop.step)[:, None]  # those that have ended grow no longer
        logits, state = settings.config.decode(params, token, present, loop.state, options)
        loop = _chosen(settings, loop._replace(state=state), logits[:, 0], key)
        return loop.with_caches(without_units(state.cache.layers))

    last = jax.lax.while_loop(unfinished, advance, loop.with_caches(without_units(caches)))
    return last.with_caches(with_units(last.state.cache.layers, caches))


def _chosen(settings: _Settings, loop: _Loop, logits: jax.Array, key: jax.Array) -> _Loop:
    """Return the loop with a token more of each continuation that has not ended."""
    token = settings.sampler(logits, jax.random.fold_in(key, loop.step)).astype(jnp.int32)
    logit = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
    running = ~loop.finished
    token = jnp.where(running, token, settings.padding_token)
    ended = jnp.zeros_like(running) if settings.end_token is None else token == settings.end_token
    return loop._replace(
        step=loop.step + 1,
        tokens=jax.lax.dynamic_update_slice_in_dim(loop.tokens, token[:, None], loop.step, axis=1),
        lengths=loop.lengths + running,
        log_probability=loop.log_probability + jnp.where(running, logit - jax.nn.logsumexp(logits, axis=-1), 0.0),
        finished=loop.finished | ended,
    )
