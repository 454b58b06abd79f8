"""Generation token by token with a cache: one program reads the prompts, one continues them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import DataError
from headjax.core.limits import check_memory
from headjax.core.serialize import kind_of
from headjax.mesh.explicit import on_automatic_axes
from headjax.mesh.memory import memory_of
from headjax.models.config import Batch, GenerativeConfig, ModelConfig
from headjax.models.decode_loop import Loop, Settings, continue_until, read_prompts
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
from headjax.models.sampling import Greedy, Sampler
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass


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
    compute: Compute


@overload
def generate(model: Model, batch: Batch, **choices: Unpack[Choices]) -> Generated: ...


@overload
def generate(model: Model, batch: str, **choices: Unpack[Choices]) -> str: ...


@overload
def generate(model: Model, batch: list[str] | tuple[str, ...], **choices: Unpack[Choices]) -> list[str]: ...


@on_automatic_axes
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
        compute=compute,
    ).advance()
    if texts is None:
        return found
    continued = texts_of(model, inputs, np.asarray(found.tokens), np.asarray(found.lengths), end_token)
    return continued[0] if isinstance(batch, str) else continued


def check_generative(config: ModelConfig, max_new_tokens: int) -> GenerativeConfig:
    """Return the config if it can generate."""
    if not isinstance(config, GenerativeConfig):
        raise DataError("model: it has no decoder, so it does not generate")
    task = getattr(config, "task", None)
    if task is not None:
        raise DataError(f"model: its task is {kind_of(task)}, so it does not generate")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise DataError(f"max_new_tokens: must be an integer of at least 1, got {max_new_tokens!r}")
    return config


class Generation:
    """A generation under way: the prompts have been read, and `advance` continues them.

    Attributes:
        limit: greatest number of tokens of a continuation.
        step: number of tokens that have been generated, those of the longest continuation.
        finished: whether every continuation has ended.
    """

    def __init__(self, settings: Settings, model: Model, key: jax.Array, loop: Loop) -> None:
        self._settings, self._model, self._key, self._loop = settings, model, key, loop
        self.limit = settings.max_new_tokens
        self.step, self.finished = 1, self.limit == 1

    def advance(self, tokens: int | None = None) -> Generated:
        """Generate up to `tokens` more (all that are left if None) and return all tokens so far.

        Arrays of an earlier result stay as they are.
        """
        if self.finished:
            return self._found()
        until = self.limit if tokens is None else min(self.step + tokens, self.limit)
        self._loop = continue_until(self._settings, self._model, self._key, self._loop, until)
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
    compute: Compute = Compute(),
) -> Generation:
    """Read the prompts of a batch and choose the first token of each continuation; the arguments are `generate`'s."""
    config = check_generative(model.config, max_new_tokens)
    check_positions(config, batch, max_new_tokens)
    arrays = device_batch(config, batch)
    settings = Settings(config, max_new_tokens, end_token, padding_token, sampler, compute, cache)
    model, key = for_decoding(model, compute), jax.random.key(seed)
    return Generation(settings, model, key, read_prompts(settings, model, arrays, key))


UNROLLED = 64
"""Greatest number of layers that are computed one by one; deeper stacks are scanned, which compiles faster."""


def for_decoding(model: Model, compute: Compute = Compute()) -> Model:
    """Return a model as generation reads it: in the type to compute in, each layer's arrays by themselves.

    What is so already is not copied; a program that generates often converts a model once. On CPUs layers by themselves
    save a copy: a scan, and a slice of stacked arrays, copy a layer's weights before they are used.
    """
    if any(array.dtype != compute.type for array in jax.tree.leaves(nnx.state(model, nnx.Param))):
        model = _cast(model, compute)
    model = jax.tree.map(lambda array: array, model)
    for name, stack in model.config.stacks().items():
        module = getattr(model, name)
        for group in stack.groups if len(stack.layers) <= UNROLLED else ():
            layers = getattr(module, group.name)
            if not isinstance(layers, nnx.List):
                setattr(module, group.name, nnx.List(group.unstacked(layers)))
    return model


@functools.partial(jax.jit, static_argnames="compute")
def _cast(model: Model, compute: Compute) -> Model:
    cast: Model = compute.cast(model)
    return cast


def cache_bytes(model: Model, batch: Batch, new_tokens: int, compute: Compute = Compute()) -> int:
    """Return the bytes of the keys and values in the cache of a batch and as many new tokens, of all layers."""

    def layers(model: Model, batch: Batch) -> Any:
        config: Any = model.config
        return config.prompt(compute.cast(model), batch, Pass(compute=compute), new_tokens).state.cache.layers

    arrays = jax.tree.leaves(jax.eval_shape(layers, model, dict(batch)))
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
    """Compile the programs of `generate` for a batch of these shapes, greedily and without an end token."""
    config = check_generative(model.config, max_new_tokens)
    settings = Settings(config, max_new_tokens, None, 0, Greedy(), compute)
    model, key = for_decoding(model, compute), jax.random.key(0)
    prompt = read_prompts.lower(settings, model, device_batch(config, batch), key)
    loop = jax.tree.map(lambda made: jax.ShapeDtypeStruct(made.shape, made.dtype), prompt.out_info)
    continuation = continue_until.lower(settings, model, key, loop, 1)
    return Programs(prompt.compile(), continuation.compile())


def check_room(field: str, model: Model, batch: Batch, texts: int, new_tokens: int) -> int:
    """Check that texts that are generated at a time can fit into memory; return the bytes of their caches."""
    there, length = memory_of(), prompt_length(model.config, batch) + new_tokens
    asked = f"{texts:,} x {length:,} tokens"
    # Larger ones have no shape that JAX could tell the bytes of.
    check_memory(field, texts * length * _TOKEN, there, asked)
    try:
        needed = texts * cache_bytes(model, batch, new_tokens)
    except DataError as error:  # more than the model has positions
        raise DataError(f"{field}: {error}") from None
    check_memory(field, needed, there, f"the caches of {asked}")
    return needed


_TOKEN = 4
"""Bytes of a token, an int32."""
