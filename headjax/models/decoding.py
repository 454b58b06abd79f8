"""Decoding token by token: the base of generative models with its KV cache, samplers, and the loop of a generation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked, Count
from headjax.models.config import Batch
from headjax.models.inputs import TokenConfig
from headjax.models.model import Model
from headjax.nn.block import CACHE, Compute, ForwardOptions, State
from headjax.nn.operands import AttentionCache, Cache, KeyValues, Mask, with_units, without_units
from headjax.nn.stack import Stack

Prompt = tuple[jax.Array, jax.Array, jax.Array, Cache]
"""Input of generation: tokens, mask (False at padding, on either side), positions, and a cache without these tokens.

The arrays are `[batch, length]`, positions also `[1, length]`.
"""


def empty_cache(
    stack: Stack,
    batch: int,
    capacity: int,
    dtype: Any,
    memory: jax.Array | None = None,
    source: jax.Array | None = None,
) -> Cache:
    """Return an empty cache, with the cross-attention's keys and values of an encoder's output in it."""
    layers = list[dict[str, KeyValues]]()
    for layer in stack.layers():
        empty = layer.attention.empty_cache(batch, capacity, dtype).entries
        cross = {} if memory is None else {"cross_attention": layer.cross_attention.key_values(memory, None)}
        layers.append({"attention": empty} | cross)
    return Cache(layers, jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), bool), 0, source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerativeConfig(TokenConfig):
    """A family that predicts the next token from those before it."""


class GenerativeModel(Model):
    """A model that predicts the next token from those before it, by its stack `decoder`.

    The methods of decoding take the model in the type to compute in, see `headjax.Model.unstacked`.
    """

    decoder: Stack

    def prompt(self, batch: Batch, options: ForwardOptions, new_tokens: int) -> Prompt:
        """Return the arguments of `decode` for the prompts of a batch, with room for this many new tokens."""
        raise NotImplementedError

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return what enters the decoder, `[batch, length, width]`, of tokens `[batch, length]` at these positions."""
        raise NotImplementedError

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return the logits `[batch, length, vocabulary]` of the decoder's output."""
        raise NotImplementedError

    def decode(
        self,
        tokens: jax.Array,
        present: jax.Array,
        positions: jax.Array,
        cache: Cache,
        options: ForwardOptions,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Return logits `[batch, new, vocabulary]` after each new token, or the one `at [batch]`, and the new cache."""
        length = tokens.shape[1]
        x = self.embed_tokens(tokens, positions)
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=cache.used, axis=1)
        positions = jnp.broadcast_to(positions, present.shape).astype(cache.positions.dtype)
        cache = cache._replace(positions=write(cache.positions, positions), present=write(cache.present, present))
        # Windows count tokens, without padding, whatever positions a batch gives them.
        keys = jnp.maximum(jnp.cumsum(cache.present, axis=1) - 1, 0)
        queries = jax.lax.dynamic_slice_in_dim(keys, cache.used, length, axis=1)
        if isinstance(cache.used, int):  # known to be empty
            seen, mask = positions, Mask(causal=True, keys=present, query_positions=queries, key_positions=queries)
        else:
            seen, offset = cache.positions, jnp.asarray(cache.used)
            mask = Mask(True, keys=cache.present, query_offset=offset, query_positions=queries, key_positions=keys)
        state = State(x, mask=mask, positions=positions, memory_mask=Mask(keys=cache.source))
        before = [layer | {"attention": AttentionCache(layer["attention"], cache.used)} for layer in cache.layers]
        state, reports = self.decoder(self.decoder.biased(state, seen), options, before)
        layers = [old | {"attention": new[CACHE]} for old, new in zip(cache.layers, reports, strict=True)]
        hidden = self.decoder.end(state.x)
        hidden = hidden if at is None else jnp.take_along_axis(hidden, at[:, None, None], axis=1)
        return self.logits(hidden), cache._replace(layers=layers, used=jnp.asarray(cache.used, jnp.int32) + length)


Sampler = Callable[[jax.Array, jax.Array], jax.Array]
"""Chooses tokens `[batch]` from logits `[batch, vocabulary]` with a PRNG key."""


@dataclasses.dataclass(frozen=True)
class Greedy(Checked):
    """The most likely token.

    >>> headjax.generate(headjax.demo_model(), "for name in", sampler=headjax.Greedy(), max_new_tokens=4)
    ' the name of the'
    """

    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Checked):
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
        positive = f"must be positive (greedy is its own sampler), got {self.temperature}"
        require(self.temperature > 0, "temperature", positive)
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


NEVER = -1e30
"""Score of a hypothesis that does not exist."""


class Beams(NamedTuple):
    """The best hypotheses of every example, best first.

    Attributes:
        tokens: `[batch, beams, new tokens]`, the end token included; padding after it.
        lengths: `[batch, beams]` tokens generated, the end token included.
        scores: `[batch, beams]` log probability / length^length_penalty, in nats.
    """

    tokens: jax.Array
    lengths: jax.Array
    scores: jax.Array

    def best(self, other: Beams, count: int) -> Beams:
        both = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), self, other)
        scores, index = jax.lax.top_k(both.scores, count)
        tokens = jnp.take_along_axis(both.tokens, index[:, :, None], axis=1)
        return Beams(tokens, jnp.take_along_axis(both.lengths, index, axis=1), scores)


class Settings(NamedTuple):
    """Static arguments of a generation; `generate` and `beam_search` describe them."""

    config: GenerativeConfig
    max_new_tokens: int
    end_token: int | None = None
    padding_token: int = 0
    sampler: Sampler = Greedy()
    compute: Compute = Compute()
    beams: int = 0
    length_penalty: float = 1.0

    def score(self, log_probability: jax.Array, length: jax.Array | int) -> jax.Array:
        return log_probability / jnp.asarray(length, jnp.float32) ** self.length_penalty


class Loop(NamedTuple):
    """Continuations so far, one a row; the beams of an example are rows one after another, best first.

    `step` counts the tokens of the longest; the newest ones, at `step` - 1, are not in the cache yet. An example is
    finished when its continuation has ended, or when no row can beat the worst of its `best` hypotheses that ended.
    """

    step: jax.Array
    cache: Cache
    tokens: jax.Array
    lengths: jax.Array
    log_probability: jax.Array
    finished: jax.Array
    best: Beams | None = None

    def with_caches(self, layers: Any) -> Loop:
        return self._replace(cache=self.cache._replace(layers=layers))


@functools.partial(jax.jit, static_argnums=0)
def read_prompts(settings: Settings, model: GenerativeModel, batch: Batch, key: jax.Array) -> Loop:
    """Read the prompts and choose the first token of each continuation."""
    options, new = ForwardOptions(compute=settings.compute), settings.max_new_tokens
    tokens, present, positions, cache = model.prompt(batch, options, new)
    last = tokens.shape[1] - 1 - jnp.argmax(present[:, ::-1], axis=1)
    logits, cache = model.decode(tokens, present, positions, cache, options, at=last)
    examples, beams = logits.shape[0], settings.beams or 1
    loop = Loop(
        step=jnp.zeros((), jnp.int32),
        cache=cache.repeat(beams),
        tokens=jnp.full((examples * beams, new), settings.padding_token, jnp.int32),
        lengths=jnp.zeros(examples * beams, jnp.int32),
        log_probability=jnp.zeros(examples * beams),
        finished=jnp.zeros(examples, bool),
    )
    if settings.beams:
        tokens = loop.tokens.reshape(examples, beams, new)
        none = Beams(tokens, jnp.zeros((examples, beams), jnp.int32), jnp.full((examples, beams), NEVER))
        # All beams start from the same prompt, so only the first may be extended.
        alone = jnp.tile(jnp.where(jnp.arange(beams) == 0, 0.0, NEVER), examples)
        loop = loop._replace(log_probability=alone, best=none)
    return _chosen(settings, loop, jnp.repeat(logits[:, 0], beams, axis=0), key)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def continue_until(settings: Settings, model: GenerativeModel, key: jax.Array, loop: Loop, until: int) -> Loop:
    """Generate until there are `until` tokens or every example is finished; the loop's arrays are used up."""
    options, caches = ForwardOptions(compute=settings.compute), loop.cache.layers

    def unfinished(loop: Loop) -> jax.Array:
        return (loop.step < until) & ~loop.finished.all()

    def advance(loop: Loop) -> Loop:
        loop = loop.with_caches(with_units(loop.cache.layers, caches))
        token = jax.lax.dynamic_slice_in_dim(loop.tokens, loop.step - 1, 1, axis=1)
        present = (loop.lengths == loop.step)[:, None]  # those that have ended grow no longer
        places = loop.cache.next_positions(present)
        logits, cache = model.decode(token, present, places, loop.cache, options)
        loop = _chosen(settings, loop._replace(cache=cache), logits[:, 0], key)
        return loop.with_caches(without_units(loop.cache.layers))

    last = jax.lax.while_loop(unfinished, advance, loop.with_caches(without_units(caches)))
    return last.with_caches(with_units(last.cache.layers, caches))


@functools.partial(jax.jit, static_argnums=0)
def best_beams(settings: Settings, loop: Loop) -> Beams:
    """Return the best hypotheses of a beam search that is over."""
    best = cast(Beams, loop.best)
    examples, beams, longest = best.tokens.shape
    # Those still alive at the end are as long as allowed; those alive when the search stopped early cannot win.
    scores = jnp.where(loop.step == longest, settings.score(loop.log_probability, longest), NEVER)
    alive = Beams(loop.tokens, loop.lengths, scores)
    alive = jax.tree.map(lambda array: array.reshape(examples, beams, *array.shape[1:]), alive)
    return best.best(alive, beams)


def _chosen(settings: Settings, loop: Loop, logits: jax.Array, key: jax.Array) -> Loop:
    """Return the loop with a token more of each continuation that has not ended; logits are `[rows, vocabulary]`."""
    if loop.best is not None:
        return _extended(settings, loop, loop.best, logits)
    token = settings.sampler(logits, jax.random.fold_in(key, loop.step)).astype(jnp.int32)
    logit = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
    running = ~loop.finished
    token = jnp.where(running, token, settings.padding_token)
    ended = jnp.zeros_like(running) if settings.end_token is None else token == settings.end_token
    return loop._replace(
        step=loop.step + 1,
        tokens=jax.lax.dynamic_update_slice_in_dim(loop.tokens, token[:, None], loop.step, axis=1),
        lengths=loop.lengths + running.astype(jnp.int32),
        log_probability=loop.log_probability + jnp.where(running, logit - jax.nn.logsumexp(logits, axis=-1), 0.0),
        finished=loop.finished | ended,
    )


def _extended(settings: Settings, loop: Loop, best: Beams, logits: jax.Array) -> Loop:
    """Return the loop with the best extensions of all beams by a token; those that end compete with the `best`."""
    examples, beams, longest = best.tokens.shape
    vocabulary, length = logits.shape[-1], loop.step + 1
    extended = loop.log_probability[:, None] + jax.nn.log_softmax(logits, axis=-1)
    # Of twice as many candidates as beams, at least as many as beams do not end.
    top, flat = jax.lax.top_k(extended.reshape(examples, -1), min(2 * beams, beams * vocabulary))
    parent, token = flat // vocabulary, (flat % vocabulary).astype(jnp.int32)  # [examples, candidates]
    tokens = jnp.take_along_axis(loop.tokens.reshape(examples, beams, longest), parent[:, :, None], axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, :, None], loop.step, axis=2)

    ended = token == settings.end_token
    scores = jnp.where(ended & (top > NEVER / 2), settings.score(top, length), NEVER)
    best = best.best(Beams(tokens, jnp.full(top.shape, length, jnp.int32), scores), beams)
    live, kept = jax.lax.top_k(jnp.where(ended, NEVER, top), beams)
    rows = jnp.take_along_axis(parent, kept, axis=1) + beams * jnp.arange(examples)[:, None]
    return Loop(
        step=length,
        cache=loop.cache.reorder(rows.reshape(-1)),
        tokens=jnp.take_along_axis(tokens, kept[:, :, None], axis=1).reshape(examples * beams, longest),
        lengths=jnp.full(examples * beams, length, jnp.int32),
        log_probability=live.reshape(-1),
        # Log probabilities only fall, and dividing by a longer length is the best that can happen to them.
        finished=settings.score(live[:, 0], longest) <= best.scores[:, -1],
        best=best,
    )
