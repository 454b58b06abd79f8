"""Generation token by token with a cache: one program reads the prompts, one continues them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import jax
import numpy as np

from headjax.core.errors import DataError
from headjax.core.memory import check_memory, memory_of
from headjax.core.serialize import kind_of
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.config import Batch, ModelConfig
from headjax.models.decode_loop import Beams, Greedy, Loop, Sampler, Settings, best_beams, continue_until, read_prompts
from headjax.models.decoding import GenerativeConfig, GenerativeModel
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
from headjax.nn.state import Compute, ForwardOptions


class Generated(NamedTuple):
    """Generated tokens."""

    tokens: jax.Array  # [batch, new tokens], the end token included; padding after it
    lengths: jax.Array  # [batch] tokens generated, the end token included
    log_probability: jax.Array  # [batch] sum of the tokens' log probabilities under the model, in nats


class Choices(TypedDict, total=False):
    """Keyword arguments of `generate`."""

    max_new_tokens: int
    end_token: int | None
    padding_token: int
    sampler: Sampler
    seed: int
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
        compute: how to compute.

    Returns:
        For a batch its tokens; for a text its continuation (without the text) or its translation; for a list of texts
        the list of these.

    Raises:
        DataError: the model does not generate, has not enough positions, or has no tokenizer to read texts with.
    """
    texts = None if isinstance(batch, Mapping) else [batch] if isinstance(batch, str) else list(batch)
    if texts is not None and end_token is None:
        end_token = end_of_text(tokenizer_of(model))
    inputs: Batch = batch if isinstance(batch, Mapping) else prompt_batch(model, texts or ())
    choices: dict[str, Any] = {"padding_token": padding_token, "sampler": sampler, "compute": compute}
    generated = begin(model, inputs, max_new_tokens, seed, end_token=end_token, **choices).advance()
    if texts is None:
        return generated
    continued = texts_of(model, inputs, np.asarray(generated.tokens), np.asarray(generated.lengths), end_token)
    return continued[0] if isinstance(batch, str) else continued


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
    if not isinstance(beams, int) or beams < 1:
        raise DataError(f"beams: must be an integer of at least 1, got {beams!r}")
    if length_penalty < 0:
        raise DataError(f"length_penalty: must not be negative, got {length_penalty}")
    choices: dict[str, Any] = {"end_token": end_token, "padding_token": padding_token, "compute": compute}
    run = begin(model, batch, max_new_tokens, beams=beams, length_penalty=length_penalty, **choices)
    run.advance()
    return best_beams(run.settings, run.loop)


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
    """A generation under way: the prompts have been read, and `advance` continues them."""

    def __init__(self, settings: Settings, model: Model, key: jax.Array, loop: Loop) -> None:
        self.settings, self.model, self.key, self.loop = settings, model, key, loop

    def advance(self, until: int | None = None) -> Generated:
        """Generate until there are so many tokens (None is all that are asked for) and return all so far."""
        until = self.settings.max_new_tokens if until is None else until
        self.loop = continue_until(self.settings, self.model, self.key, self.loop, until)
        generated = Generated(self.loop.tokens, self.loop.lengths, self.loop.log_probability)
        return jax.tree.map(jax.numpy.array, generated)  # the next call takes these arrays' memory


def begin(model: Model, batch: Batch, max_new_tokens: int, seed: int = 0, **choices: Any) -> Generation:
    """Read the prompts and choose each first token; the arguments are those of `generate` and `beam_search`."""
    settings = Settings(check_generative(model.config, max_new_tokens), max_new_tokens, **choices)
    check_positions(settings.config, batch, max_new_tokens)
    arrays = device_batch(settings.config, batch)
    model, key = model.unstacked(settings.compute), jax.random.key(seed)
    return Generation(settings, model, key, read_prompts(settings, model, arrays, key))


def cache_bytes(model: Model, batch: Batch, new_tokens: int) -> int:
    """Return the bytes of the keys and values in the cache of a batch and as many new tokens, of all layers."""

    def layers(model: GenerativeModel, batch: Batch) -> Any:
        return model.prompt(batch, ForwardOptions(), new_tokens).cache.layers

    arrays = jax.tree.leaves(jax.eval_shape(layers, model, dict(batch)))
    return sum(array.size * array.dtype.itemsize for array in arrays)


def check_room(field: str, model: Model, batch: Batch, texts: int, new_tokens: int) -> None:
    """Check that the caches of as many texts as long as that of the batch can fit into memory at a time."""
    there, length = memory_of(), prompt_length(model.config, batch) + new_tokens
    size = f"{texts:,} x {length:,} tokens"
    check_memory(field, texts * length * 4, there, size)  # larger ones have no shape that JAX could tell the bytes of
    try:
        check_positions(model.config, batch, new_tokens)
        check_memory(field, texts * cache_bytes(model, batch, new_tokens), there, f"the caches of {size}")
    except DataError as error:  # more than the model has positions
        raise DataError(f"{field}: {error}") from None
