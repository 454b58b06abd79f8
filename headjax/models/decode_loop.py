"""The loop of generation, jitted: prompts are read once, then tokens are chosen one by one."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.errors import DataError
from headjax.models.config import Batch, GenerativeConfig
from headjax.models.prompts import prompt_length
from headjax.models.sampling import Sampler
from headjax.nn.cache import DecodingState, with_units, without_units
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass


def start(
    config: GenerativeConfig, model: Any, batch: Batch, call: Pass, new_tokens: int
) -> tuple[jax.Array, DecodingState]:
    """Return logits `[batch, vocabulary]` after each prompt's last token before padding, and the state after it."""
    prompt = config.prompt(model, batch, call, new_tokens)
    last = prompt.tokens.shape[1] - 1 - jnp.argmax(prompt.present[:, ::-1], axis=1)
    logits, state = config.decode(
        model, prompt.tokens, prompt.present, prompt.state, call, at=last, positions=prompt.positions
    )
    return logits[:, 0], state


class Settings(NamedTuple):
    """Static arguments of a generation; `generate` describes them."""

    config: GenerativeConfig
    max_new_tokens: int
    end_token: int | None
    padding_token: int
    sampler: Sampler
    compute: Compute
    cache: int | None = None

    def room(self, batch: Batch) -> int:
        """Return the number of new tokens that the cache has room for."""
        if self.cache is None:
            return self.max_new_tokens
        tokens = prompt_length(self.config, batch)
        if tokens + self.max_new_tokens > self.cache:
            asked = f"the prompt of {tokens} and {self.max_new_tokens} new ones need {tokens + self.max_new_tokens}"
            raise DataError(f"cache: it has room for {self.cache} tokens, but {asked}")
        return self.cache - tokens


class Loop(NamedTuple):
    """Continuations so far.

    `step` counts the tokens of the longest; the newest ones, at `step` - 1, are not in the cache yet.
    """

    step: jax.Array
    state: DecodingState
    tokens: jax.Array
    lengths: jax.Array
    log_probability: jax.Array
    finished: jax.Array

    def with_caches(self, layers: Any) -> Loop:
        """Return the loop with these caches of the layer groups."""
        return self._replace(state=self.state._replace(cache=self.state.cache._replace(layers=layers)))


@functools.partial(jax.jit, static_argnums=0)
def read_prompts(settings: Settings, model: Any, batch: Batch, key: jax.Array) -> Loop:
    """Read the prompts and choose the first token of each continuation."""
    call = Pass(compute=settings.compute)
    logits, state = start(settings.config, model, batch, call, settings.room(batch))
    count = logits.shape[0]
    nothing = Loop(
        step=jnp.zeros((), jnp.int32),
        state=state,
        tokens=jnp.full((count, settings.max_new_tokens), settings.padding_token, jnp.int32),
        lengths=jnp.zeros(count, jnp.int32),
        log_probability=jnp.zeros(count),
        finished=jnp.zeros(count, bool),
    )
    return _chosen(settings, nothing, logits, key)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def continue_until(settings: Settings, model: Any, key: jax.Array, loop: Loop, until: int) -> Loop:
    """Generate until there are `until` tokens or every continuation has ended; the loop's arrays are used up."""
    call = Pass(compute=settings.compute)

    caches = loop.state.cache.layers

    def unfinished(loop: Loop) -> jax.Array:
        return (loop.step < until) & ~loop.finished.all()

    def advance(loop: Loop) -> Loop:
        loop = loop.with_caches(with_units(loop.state.cache.layers, caches))
        token = jax.lax.dynamic_slice_in_dim(loop.tokens, loop.step - 1, 1, axis=1)
        present = (loop.lengths == loop.step)[:, None]  # those that have ended grow no longer
        logits, state = settings.config.decode(model, token, present, loop.state, call)
        loop = _chosen(settings, loop._replace(state=state), logits[:, 0], key)
        return loop.with_caches(without_units(state.cache.layers))

    last = jax.lax.while_loop(unfinished, advance, loop.with_caches(without_units(caches)))
    return last.with_caches(with_units(last.state.cache.layers, caches))


def _chosen(settings: Settings, loop: Loop, logits: jax.Array, key: jax.Array) -> Loop:
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
