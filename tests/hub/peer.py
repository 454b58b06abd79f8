"""Tokens and generated text of exports, compared with those of `transformers`."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from headjax.hub.checking import longest
from headjax.models.decoder import DecoderConfig
from headjax.models.generation import generate
from headjax.models.prompts import prompt_batch

PROMPT = "Once upon a time"
TEXTS = (
    f"{PROMPT}, there were 12 red apples; don't you'd say 3,141.59?",
    "  Two  spaces,\ta tab\nand lines\n\n  def f(x): return x**2  # done",
    "Na\u00efve fa\u00e7ade \u2014 \u201cquotes\u201d, e\u0301, \u6f22\u5b57, \u0434\u0430, \U0001f642 \ufb01n",
    "A_b-C/d@e.fg <b>UPPER lower</b> ``x'' 1,2,3 ...",
)
"""Texts whose tokens are compared: cases, accents, numbers, white space, code and other scripts."""
LENGTH = NEW_TOKENS = 16
TIE = 1e-4
"""Difference of two logits, as a share of the largest one, below which either token may be the likeliest."""


def assert_tokens(model, folder):
    """Asserts that `AutoTokenizer` reads every text as the model's tokenizer does, and returns it."""
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        for special in (False, True):
            expected = model.tokenizer.prompt_ids(text, template=special)
            assert theirs(text, add_special_tokens=special)["input_ids"] == expected, text
    return theirs


def assert_text(model, folder):
    """Asserts equal tokens, and the same likeliest continuation of `PROMPT` by a decoder up to ties."""
    import torch
    import transformers

    tokenizer = assert_tokens(model, folder)
    assert isinstance(model.config, DecoderConfig)
    peer_class = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    wide = model.replace(params=jax.tree.map(lambda array: array.astype(jnp.float32), model.params))
    limit = longest(model) or LENGTH + NEW_TOKENS
    batch = prompt_batch(wide, [PROMPT], max_length=min(LENGTH, limit // 2))
    count = min(NEW_TOKENS, limit - batch["input_ids"].shape[1])
    ours = np.asarray(generate(wide, batch, max_new_tokens=count).tokens)[0]
    peer = peer_class.from_pretrained(folder, dtype=torch.float32).eval()
    peer.generation_config = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
    tensors = {name: torch.from_numpy(array).long() for name, array in batch.items()}
    with torch.no_grad():
        theirs = peer.generate(**tensors)[0, -count:].numpy()
    same = count if np.array_equal(ours, theirs) else int(np.argmax(ours != theirs))
    if same < count:
        tokens = np.append(batch["input_ids"], ours[:same])[None].astype(np.int32)
        logits = np.asarray(wide({"input_ids": tokens}).logits)[0, -1]
        assert abs(logits[ours[same]] - logits[theirs[same]]) <= TIE * np.max(np.abs(logits))
    assert tokenizer.decode(ours[:same]) == wide.tokenizer.decode(ours[:same])
