"""Exports as a user of `transformers` reads them: the same tokens and the same text, of any family and conversion."""

import importlib.util
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.hub.onnx import longest
from headjax.models.generation import prompt_batch
from headjax.tokenizers.files import write_tokenizer
from headjax.tokenizers.vocabularies import train_bpe, wordpiece_of
from tests.hub.directories import CONFIGS, model_of
from tests.tokenizers.directories import ROBERTA, byte_pairs, spaced


def bytes_of_roberta(folder):
    """Its template of special tokens, in the two files of its vocabulary."""
    byte_pairs(folder, ROBERTA)


def wordpieces():
    letters = [chr(number) for number in range(33, 127)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    return wordpiece_of(pieces, "letters")


READERS = {"bert": None, "distilbert": None, "roberta": bytes_of_roberta, "bart": bytes_of_roberta}


pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra"),
]

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
    peer_class = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    wide = model.replace(params=jax.tree.map(lambda array: array.astype(jnp.float32), model.params))
    limit = longest(model) or LENGTH + NEW_TOKENS
    batch = prompt_batch(wide, [PROMPT], max_length=min(LENGTH, limit // 2))
    count = min(NEW_TOKENS, limit - batch["input_ids"].shape[1])
    ours = np.asarray(headjax.generate(wide, batch, max_new_tokens=count).tokens)[0]
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


def bytes_of_gpt2():
    return train_bpe(TEXTS, 300)


def words_of_llama():
    """Words begin with a mark, unknown characters are bytes, and a text begins with `<s>`."""
    with tempfile.TemporaryDirectory() as folder:
        spaced("llama", "LlamaTokenizer")(Path(folder))
        return headjax.read_tokenizer(folder)


def bytes_of_qwen():
    """As `Qwen2Tokenizer` cuts text."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    cut = {"type": "Split", "pattern": {"Regex": PRETOKENIZE_REGEX}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    parts = {"type": "Sequence", "pretokenizers": [cut, level]}
    data = json.loads(bytes_of_gpt2().vocabulary) | {"normalizer": {"type": "NFC"}, "pre_tokenizer": parts}
    return headjax.Tokenizer(json.dumps(data), bytes_of_gpt2().special)


DECODERS = {
    "gpt2": bytes_of_gpt2,
    "llama": words_of_llama,
    "mistral": words_of_llama,
    "qwen2": bytes_of_qwen,
    "gemma3_text": words_of_llama,
}


UNIFORM = [f"decoder/{layer}/{head}" for layer in (0, 1) for head in (0, 3)]
CHANGES = {
    "pruned": lambda model, batches: headjax.prune(model, UNIFORM),
    "grouped": lambda model, batches: headjax.convert(model, "grouped:kv_heads=1", batches=batches).model,
}


def imported(family, folder, tokenizer):
    sizes = {"vocab_size": tokenizer.largest_id + 1} | ({"n_positions": 40} if family == "gpt2" else {})
    model = model_of(CONFIGS[family] | sizes).replace(tokenizer=tokenizer)
    headjax.to_huggingface(model, folder, family=family)
    return headjax.from_huggingface(folder)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family, change, tmp_path):
    """In their own shapes where the config has a field for the size of heads; Mistral's has none for fitted biases."""
    model = imported(family, tmp_path / "first", DECODERS[family]())
    ids = np.random.default_rng(0).integers(3, 250, (4, 9)).astype(np.int32)
    changed = CHANGES[change](model, [{"input_ids": ids, "attention_mask": np.ones_like(ids)}])
    layout = "native" if "head_dim" in CONFIGS[family] else "padded"
    exported = headjax.to_huggingface(changed, tmp_path / "out", layout)
    biased = changed.config.attentions()["decoder"][0].projection_bias  # by the criterion that the conversion took
    expected = "smollm3" if family == "mistral" and biased else family
    assert (exported.family, bool(exported.notes)) == (expected, expected != family)
    assert_text(changed, tmp_path / "out")


@pytest.mark.parametrize("family", READERS)
def test_other_families_keep_their_tokens(family, tmp_path):
    model = model_of(CONFIGS[family] | {"vocab_size": 420})
    headjax.to_huggingface(model, tmp_path / "first", family=family)
    if READERS[family] is None:
        write_tokenizer(wordpieces(), tmp_path / "first")
    else:
        READERS[family](tmp_path / "first")
    model = headjax.from_huggingface(tmp_path / "first")
    headjax.to_huggingface(model, tmp_path / "out")
    assert_tokens(model, tmp_path / "out")
