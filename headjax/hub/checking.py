"""Results of exports, and their checks: headjax reads the directory again, and so does `transformers` if installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.hub.companions import CARRIED
from headjax.hub.family import Family
from headjax.hub.importing import from_huggingface
from headjax.hub.safetensors_files import SINGLE
from headjax.models.decoder import DecoderModel
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.generation import generate
from headjax.models.model import Model
from headjax.models.prompts import prompt_batch
from headjax.models.vision import VisionModel
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import transformers

ONNX = "model.onnx"
EXPORTED = frozenset({"config.json", SINGLE, ONNX, f"{ONNX}.data", "inputs.json", *CARRIED})
"""Names of the files and folders that an export may have."""

LENGTH = 16
"""Largest number of tokens of the sequences on which an export is checked."""

NEW_TOKENS = 16
"""Largest number of tokens that are generated for a check."""

TIE = 1e-4
"""Difference of two logits, as a share of the largest one, below which either token may be the likeliest."""

PROMPT = "Once upon a time"

TEXTS = (
    f"{PROMPT}, there were 12 red apples; don't you'd say 3,141.59?",
    "  Two  spaces,\ta tab\nand lines\n\n  def f(x): return x**2  # done",
    "Na\u00efve fa\u00e7ade \u2014 \u201cquotes\u201d, e\u0301, \u6f22\u5b57, \u0434\u0430, \U0001f642 \ufb01n",
    "A_b-C/d@e.fg <b>UPPER lower</b> ``x'' 1,2,3 ...",
)
"""Texts whose tokens are compared: cases, accents, numbers, white space, code and other scripts."""


class Padding(NamedTuple):
    """Difference between the shapes that the layout `padded` writes and those of the model.

    Attributes:
        bytes: bytes of weights.
        flops: FLOPs of one forward pass of one example, as a share of the model's own.
        cache_bytes_per_token: bytes that a float32 decoding cache holds for each token.
        length: tokens of the example.
    """

    bytes: int
    flops: float
    cache_bytes_per_token: int
    length: int


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        family: `model_type` of the config; the kind of model for ONNX.
        layout: the layout taken.
        tensors: number of tensors in the file.
        bytes: size of the weights in bytes.
        max_difference: largest difference of outputs, where they were compared.
        padding: cost of the family's larger shapes, where the layout is `padded`.
        notes: sentences about what a reader of the directory may not expect, such as another family than before.
    """

    family: str
    layout: str
    tensors: int
    bytes: int
    max_difference: float | None = None
    padding: Padding | None = None
    notes: tuple[str, ...] = ()


class Peer(NamedTuple):
    """Results of `transformers` on an export.

    Attributes:
        texts: number of texts that gave the same tokens; None where there is no tokenizer.
        generated: the continuation of `PROMPT`, the same here and there; None where the model generates no text.
    """

    texts: int | None
    generated: str | None


def max_difference(model: Model, directory: str | Path, *, family: Family | None = None) -> float:
    """Return the largest absolute difference between the outputs of a model and of the directory written from it.

    The directory is read again. The outputs are the hidden states and, where there are any, the logits of two random
    examples, the second of which is padded.

    Args:
        model: the model.
        directory: the directory that `to_huggingface` wrote.
        family: as of `from_huggingface`.
    """
    batch = example_batch(model)
    ours, theirs = model(batch), from_huggingface(directory, family=family)(batch)
    pairs = [(ours.hidden, theirs.hidden), (ours.logits, theirs.logits)]
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs if a is not None)


def read_by_transformers(model: Model, directory: str | Path) -> Peer | None:
    """Compare tokens, and text generated from a prompt, with those of `transformers` on the directory of a model.

    Returns:
        The comparison; None where `transformers` or PyTorch is not installed.

    Raises:
        HeadjaxError: `transformers` cannot read the directory, or tokens or texts differ; the message starts with it.
    """
    if model.tokenizer is None:
        return Peer(None, None)
    if any(importlib.util.find_spec(name) is None for name in ("transformers", "torch")):
        return None
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        for text in TEXTS:
            _compare_tokens(model.tokenizer, tokenizer, text)
        return Peer(len(TEXTS), _generated(model, directory, tokenizer))
    except HeadjaxError as error:
        raise HeadjaxError(f"{directory}: {error}") from None
    except Exception as error:  # of any type, from libraries that a user may have in any version
        raise HeadjaxError(f"{directory}: transformers cannot read it ({type(error).__name__}: {error})") from None


def _compare_tokens(ours: Tokenizer, theirs: transformers.PreTrainedTokenizerBase, text: str) -> None:
    for special in (False, True):
        expected = ours.prompt_ids(text, template=special)
        found = theirs(text, add_special_tokens=special)["input_ids"]
        if found != expected:
            raise HeadjaxError(
                f"{type(theirs).__name__} of transformers reads {text!r} as tokens {found}, the model as {expected}"
            )


def _generated(model: Model, directory: str | Path, tokenizer: Any) -> str | None:
    """Return the likeliest continuation of `PROMPT`, which must be the same here and there; None without a decoder."""
    import torch
    import transformers

    fields = json.loads((path_of(directory) / "config.json").read_text(encoding="utf-8"))
    peer_class = getattr(transformers, fields["architectures"][0])
    if not isinstance(model.config, DecoderModel) or not hasattr(peer_class, "generate"):
        return None
    wide = model.replace(params=jax.tree.map(lambda array: array.astype(jnp.float32), model.params))
    limit = longest(model) or LENGTH + NEW_TOKENS
    batch = prompt_batch(wide, [PROMPT], max_length=min(LENGTH, limit // 2))
    count = min(NEW_TOKENS, limit - batch["input_ids"].shape[1])
    ours = np.asarray(generate(wide, batch, max_new_tokens=count).tokens)[0]
    peer = peer_class.from_pretrained(directory, dtype=torch.float32).eval()
    peer.generation_config = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
    tensors = {name: torch.from_numpy(array).long() for name, array in batch.items()}
    with torch.no_grad():
        theirs = peer.generate(**tensors)[0, -count:].numpy()
    same = count if np.array_equal(ours, theirs) else int(np.argmax(ours != theirs))
    if same < count and not _tied(wide, np.append(batch["input_ids"], ours[:same]), ours[same], theirs[same]):
        texts = [tokenizer.decode(tokens) for tokens in (theirs, ours)]
        raise HeadjaxError(f"transformers continues {PROMPT!r} with {texts[0]!r}, the model with {texts[1]!r}")
    text, read = (each.decode(ours[:same]) for each in (wide.tokenizer, tokenizer))
    if read != text:
        raise HeadjaxError(f"transformers decodes tokens {ours[:same].tolist()} as {read!r}, the model as {text!r}")
    return str(text)


def _tied(model: Model, tokens: np.ndarray, one: int, other: int) -> bool:
    """Return whether two tokens are equally likely behind others, up to rounding."""
    logits = np.asarray(model({"input_ids": tokens[None].astype(np.int32)}).logits)[0, -1]
    return bool(abs(logits[one] - logits[other]) <= TIE * np.max(np.abs(logits)))


def example_batch(model: Model, length: int | None = None) -> dict[str, np.ndarray]:
    """Return a batch of two random examples for the model, the second padded.

    Args:
        model: the model.
        length: number of tokens; None is `LENGTH`, or the model's longest if that is less.
    """
    generator, config = np.random.default_rng(0), model.config
    if isinstance(config, VisionModel):
        size = (2, config.patches.channels, config.patches.image_size, config.patches.image_size)
        return {"pixel_values": generator.standard_normal(size, dtype=np.float32)}
    embeddings = config.embeddings  # type: ignore[attr-defined]
    length = min(LENGTH, longest(model) or LENGTH) if length is None else length
    mask = np.ones((2, length), np.int32)
    mask[1, length // 2 :] = 0
    batch = {"input_ids": _tokens(generator, embeddings.vocab_size, length), "attention_mask": mask}
    if embeddings.segments > 1:
        batch["token_type_ids"] = _tokens(generator, embeddings.segments, length)
    if isinstance(config, EncoderDecoderModel):
        batch["decoder_input_ids"] = _tokens(generator, config.target_embeddings.vocab_size, length)
    return batch


def longest(model: Model) -> int | None:
    """Return the length in tokens of the longest sequence that the model reads; None where there is no limit."""
    embeddings = getattr(model.config, "embeddings", None)
    return None if embeddings is None else getattr(embeddings.positions, "max_length", None)


def _tokens(generator: np.random.Generator, vocab_size: int, length: int) -> np.ndarray:
    return generator.integers(0, vocab_size, (2, length), dtype=np.int32)
