"""Beam search, compiled as one loop."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.errors import DataError
from headjax.mesh.explicit import on_automatic_axes
from headjax.models.config import Batch, GenerativeConfig
from headjax.models.decode_loop import start
from headjax.models.generation import check_generative, for_decoding
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.prompts import check_positions
from headjax.nn.cache import DecodingState
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass

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


@on_automatic_axes
def beam_search(
    model: Model,
    batch: Batch,
    *,
    beams: int,
    max_new_tokens: int,
    end_token: int,
    padding_token: int = 0,
    length_penalty: float = 1.0,
    compute: Compute = Compute(),
) -> Beams:
    """The likeliest continuations or translations that `beams` hypotheses at a time can find.

    Every step extends each live hypothesis by every token. Those that end compete for a place among the finished, the
    best others live on. The search stops when no live hypothesis can beat the worst finished one any more, or at
    `max_new_tokens`, where live hypotheses count as finished.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> beams = headjax.beam_search(model, batch, beams=2, max_new_tokens=4, end_token=0)
        >>> beams.tokens.shape
        (1, 2, 4)

    Args:
        model: a decoder or an encoder-decoder.
        batch: arrays by Hugging Face's names; `attention_mask` marks padding.
        beams: how many hypotheses live at a time, and are returned.
        max_new_tokens: longest hypothesis.
        end_token: ends a hypothesis.
        padding_token: token after an end token in the result.
        length_penalty: exponent of the length that scores are divided by; 0 prefers short ones, as probabilities do.
        compute: how to compute.

    Raises:
        DataError: the model does not generate, or has not enough positions.
    """
    config = check_generative(model.config, max_new_tokens)
    if not isinstance(beams, int) or beams < 1:
        raise DataError(f"beams: must be an integer of at least 1, got {beams!r}")
    if length_penalty < 0:
        raise DataError(f"length_penalty: must not be negative, got {length_penalty}")
    check_positions(config, batch, max_new_tokens)
    arrays = device_batch(config, batch)
    search = _Search(config, beams, max_new_tokens, end_token, padding_token, length_penalty)
    return _beam_search(search, for_decoding(model, compute), arrays, compute)


class _Search(NamedTuple):
    config: GenerativeConfig
    beams: int
    max_new_tokens: int
    end_token: int
    padding_token: int
    length_penalty: float

    def score(self, log_probability: jax.Array, length: jax.Array | int) -> jax.Array:
        return log_probability / jnp.asarray(length, jnp.float32) ** self.length_penalty


class _Loop(NamedTuple):
    """Live hypotheses by summed log probability, finished ones by score; both best first."""

    step: jax.Array
    logits: jax.Array
    state: DecodingState
    live: jax.Array
    live_tokens: jax.Array
    finished: Beams


@functools.partial(jax.jit, static_argnums=(0, 3))
def _beam_search(search: _Search, model: Model, batch: Batch, compute: Compute) -> Beams:
    call = Pass(compute=compute)
    logits, state = start(search.config, model, batch, call, search.max_new_tokens)
    examples, beams = logits.shape[0], search.beams
    rows = jnp.repeat(jnp.arange(examples), beams)
    shape = (examples, beams, search.max_new_tokens)
    nothing = jnp.full(shape, search.padding_token, jnp.int32)
    # All beams start from the same prompt, so only the first may be extended.
    alone = jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, NEVER)[None], shape[:2])
    first = _Loop(
        step=jnp.zeros((), jnp.int32),
        logits=logits[rows],
        state=state.take(rows),
        live=alone,
        live_tokens=nothing,
        finished=Beams(nothing, jnp.zeros(shape[:2], jnp.int32), jnp.full(shape[:2], NEVER)),
    )

    def unfinished(loop: _Loop) -> jax.Array:
        # Log probabilities only fall, and dividing by a longer length is the best that can happen to them.
        best = search.score(loop.live[:, 0], search.max_new_tokens)
        return (loop.step < search.max_new_tokens) & (best > loop.finished.scores[:, -1]).any()

    last = jax.lax.while_loop(unfinished, lambda loop: _advance(search, model, call, loop), first)
    # Those still alive at the end are as long as allowed; those alive when the search stopped early cannot win.
    cut = jnp.where(last.step == search.max_new_tokens, search.score(last.live, search.max_new_tokens), NEVER)
    lengths = jnp.full(shape[:2], search.max_new_tokens, jnp.int32)
    return _best(last.finished, Beams(last.live_tokens, lengths, cut), beams)


def _advance(search: _Search, model: Model, call: Pass, loop: _Loop) -> _Loop:
    examples, beams = loop.live.shape
    vocabulary = loop.logits.shape[-1]
    extended = loop.live[:, :, None] + jax.nn.log_softmax(loop.logits, axis=-1).reshape(examples, beams, vocabulary)
    # Of twice as many candidates as beams, at least as many as beams do not end.
    top, flat = jax.lax.top_k(extended.reshape(examples, -1), min(2 * beams, beams * vocabulary))
    parent, token = flat // vocabulary, (flat % vocabulary).astype(jnp.int32)
    tokens = jnp.take_along_axis(loop.live_tokens, parent[:, :, None], axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, :, None], loop.step, axis=2)
    ended, length = token == search.end_token, loop.step + 1

    scores = jnp.where(ended & (top > NEVER / 2), search.score(top, length), NEVER)
    candidates = Beams(tokens, jnp.full(top.shape, length, jnp.int32), scores)
    finished = _best(loop.finished, candidates, beams)

    live, kept = jax.lax.top_k(jnp.where(ended, NEVER, top), beams)
    parents = jnp.take_along_axis(parent, kept, axis=1)
    chosen = jnp.take_along_axis(token, kept, axis=1)
    rows = (parents + beams * jnp.arange(examples)[:, None]).reshape(-1)
    present = jnp.ones((examples * beams, 1), bool)
    logits, state = search.config.decode(model, chosen.reshape(-1, 1), present, loop.state.reorder(rows), call)
    return _Loop(
        step=length,
        logits=logits[:, 0],
        state=state,
        live=live,
        live_tokens=jnp.take_along_axis(tokens, kept[:, :, None], axis=1),
        finished=finished,
    )


def _best(first: Beams, second: Beams, count: int) -> Beams:
    """The best of both, by score."""
    both = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), first, second)
    scores, index = jax.lax.top_k(both.scores, count)
    tokens = jnp.take_along_axis(both.tokens, index[:, :, None], axis=1)
    return Beams(tokens, jnp.take_along_axis(both.lengths, index, axis=1), scores)
