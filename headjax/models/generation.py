"""Generate text: prompts as batches, sampling, beam search, and the texts of the generated tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import jax
import numpy as np

from headjax.core.errors import DataError
from headjax.core.memory import check_memory, memory_of
from headjax.core.serialize import kind_of
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.config import Batch, ModelConfig
from headjax.models.decoding import (
    Beams,
    GenerativeConfig,
    GenerativeModel,
    Greedy,
    Loop,
    Sampler,
    Settings,
    best_beams,
    continue_until,
    read_prompts,
)
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.nn.block import Compute, ForwardOptions
from headjax.storage.files import check_characters
from headjax.tokenizers.tokenizer import Tokenizer

NEW_TOKENS = 64
"""Default greatest number of tokens of a continuation."""


SPELLED = re.compile(r"<\|[^|<>\s]+\|>")
"""Texts that are special tokens in most vocabularies, and hardly ever anything else."""


def prompt_batch(
    model: Model, texts: Sequence[str], *, max_length: int = 0, special: bool = False
) -> dict[str, np.ndarray]:
    """Return texts as a batch to generate from, padded to the longest.

    Sources are padded on the right, a decoder's prompts on the left, so that continuations begin in the same column.

    Special tokens are those of the tokenizer's template. Without one, the source of an encoder-decoder ends with the
    end-of-text token, as in training on translations. The prompt of a decoder never ends with it, and an empty prompt
    is that token alone, after which a document begins.
    """
    if not texts:
        raise DataError("prompts: expected at least one text")
    tokenizer, reads_source = tokenizer_of(model), isinstance(model.config, EncoderDecoderConfig)
    end, encoded = end_of_text(tokenizer), list[list[int]]()
    for number, text in enumerate(texts):
        check_characters(text, f"prompts[{number}]")
        unknown = [token for token in SPELLED.findall(text) if special and token not in tokenizer.special_tokens]
        if unknown:
            names = ", ".join(tokenizer.special_tokens) or "none"
            raise DataError(f"prompts[{number}]: {unknown[0]} is no special token of the model; it has {names}")
        ids = _ended(tokenizer.prompt_ids(text, spelled=special), end, reads_source)
        if not ids:
            raise DataError(f"prompts[{number}]: no token, and the tokenizer has no end-of-text token to begin with")
        if max_length and len(ids) > max_length:
            left = tokenizer.truncation_side == "left"
            ids = ids[-max_length:] if left else [*ids[: max_length - 1], ids[-1]]
        encoded.append(ids)
    shape = (len(encoded), max(map(len, encoded)))
    batch = {"input_ids": np.zeros(shape, np.int32), "attention_mask": np.zeros(shape, np.int32)}
    for row, ids in enumerate(encoded):
        place = slice(0, len(ids)) if reads_source else slice(shape[1] - len(ids), shape[1])
        batch["input_ids"][row, place] = ids
        batch["attention_mask"][row, place] = 1
    return batch


def _ended(ids: list[int], end: int | None, reads_source: bool) -> list[int]:
    """Return a text's tokens with the end-of-text token behind a source, without it behind a prompt."""
    if end is None:
        return ids
    if reads_source:
        return ids if ids and ids[-1] == end else [*ids, end]
    while len(ids) > 1 and ids[-1] == end:
        ids.pop()
    return ids or [end]


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the model's tokenizer."""
    if model.tokenizer is None:
        raise DataError("model: it has no tokenizer, so it cannot read text")
    tokenizer: Tokenizer = model.tokenizer
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that ends a text; None if the tokenizer has none."""
    return tokenizer.special_id("eos_token") if "eos_token" in dict(tokenizer.special) else None


def new_tokens(config: ModelConfig, batch: Batch) -> int:
    """Return the default greatest number of new tokens: `NEW_TOKENS`, or as many as the model's positions leave."""
    used, reach = prompt_length(config, batch), getattr(config, "max_length", None)
    if reach is None:
        return NEW_TOKENS
    if used >= reach:
        raise DataError(f"prompt: {used} tokens, but the model has {reach} positions; shorten the prompt")
    return min(NEW_TOKENS, reach - used)


def prompt_length(config: ModelConfig, batch: Batch) -> int:
    """Return the number of tokens that the decoder reads before the first new one, padding included."""
    name = "decoder_input_ids" if isinstance(config, EncoderDecoderConfig) else "input_ids"
    return int(np.shape(batch[name])[-1]) if name in batch else 1


def check_positions(config: ModelConfig, batch: Batch, new_tokens: int) -> None:
    """Raise `DataError` where prompts, or the positions that a batch gives them, leave too few for as many tokens."""
    name = "decoder_position_ids" if isinstance(config, EncoderDecoderConfig) else "position_ids"
    reach = getattr(config, "max_length", None)
    used = int(np.max(batch[name])) + 1 if name in batch else prompt_length(config, batch)
    if reach is not None and used + new_tokens > reach:
        raise DataError(f"prompt: {used} tokens and {new_tokens} new ones, but the model has {reach} positions")


def texts_of(
    model: Model, batch: Batch, tokens: np.ndarray, lengths: np.ndarray, end: int | None, count: int = 0
) -> list[str]:
    """Return generated tokens as text: the continuation without its prompt, or the translation."""
    tokenizer = tokenizer_of(model)
    texts = []
    for row in range(count or len(tokens)):
        ids = [int(token) for token in np.asarray(tokens[row])[: int(lengths[row])]]
        ids = ids[:-1] if end is not None and ids and ids[-1] == end else ids
        if isinstance(model.config, EncoderDecoderConfig):
            texts.append(tokenizer.for_targets.decode(np.asarray(ids)).strip())
        else:
            # Some vocabularies drop the space before the first token of a text, so that it is decoded in its place.
            prompt = np.asarray(batch["input_ids"][row])[np.asarray(batch["attention_mask"][row]) == 1]
            text, before = tokenizer.decode([*prompt, *ids]), tokenizer.decode(prompt)
            texts.append(text[len(before) :] if text.startswith(before) else tokenizer.decode(np.asarray(ids)))
    return texts


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
            which the model's tokenizer reads (`headjax.models.generation.prompt_batch`).
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
        """Generate up to `until` tokens, None for `max_new_tokens`; return all generated tokens."""
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
        return model.prompt(batch, ForwardOptions(), new_tokens)[3].layers

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
