"""Exports as a user of `transformers` reads them: the same tokens and the same text, of any family and conversion."""

import importlib.util
import json

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.conversion import convert
from headjax.core.tensors import flatten
from headjax.heads.surgery import map_attention
from headjax.hub import from_huggingface, to_huggingface
from headjax.tokenizers.files import write_tokenizer
from headjax.tokenizers.learned import train_bpe
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import wordpiece_of
from tests import tiny
from tests.hub.directories import CONFIGS, model_of
from tests.hub.peer import TEXTS, assert_text, assert_tokens

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra"),
]

SPECIAL = (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))


def bytes_of_gpt2():
    return train_bpe(TEXTS, 300)


def changed(tokenizer, special=(), **parts):
    """The tokenizer with other parts of its JSON."""
    return Tokenizer(json.dumps(json.loads(tokenizer.vocabulary) | parts), special or tokenizer.special)


def words_of_llama():
    """Words begin with a mark, unknown characters are bytes, and a text begins with `<s>`."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁Onceupoatimhr"]
    merges = [["▁", "a"], ["▁", "u"], ["p", "o"], ["po", "n"], ["▁u", "pon"], ["t", "i"], ["h", "e"]]
    tokens += ["".join(merge) for merge in merges]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": True, "fuse_unk": True}
    marked = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    start = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return changed(
        bytes_of_gpt2(),
        SPECIAL,
        model=model | {"unk_token": "<unk>"},
        added_tokens=[{"id": number, "content": tokens[number], **flags} for number in range(3)],
        normalizer={"type": "Sequence", "normalizers": marked},
        pre_tokenizer=None,
        post_processor={"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": start},
        decoder={"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
    )


def bytes_of_qwen():
    """As `Qwen2Tokenizer` cuts text."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    cut = {"type": "Split", "pattern": {"Regex": PRETOKENIZE_REGEX}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    parts = {"type": "Sequence", "pretokenizers": [cut, level]}
    return changed(bytes_of_gpt2(), normalizer={"type": "NFC"}, pre_tokenizer=parts)


DECODERS = {
    "gpt2": bytes_of_gpt2,
    "gpt_neox": bytes_of_gpt2,
    "llama": words_of_llama,
    "mistral": words_of_llama,
    "qwen2": bytes_of_qwen,
    "qwen3": bytes_of_qwen,
    "smollm3": bytes_of_gpt2,
    "gemma2": words_of_llama,
    "gemma3_text": words_of_llama,
}


def with_biases(model, batches):
    """The model with biases of queries, keys and values, which calibrated conversions may add."""

    def add(found):
        biased = found.config.replace(projection_bias=True)
        shapes = {name: tensor.shape for name, tensor in tiny.weights(biased, 8, 8).items() if name.endswith("_bias")}
        biases = {name: jnp.full(shape, 0.1) for name, shape in shapes.items()}
        return found.module.like(biased, biases | found.params)

    return map_attention(model, add)


CONVERSIONS = {
    "biased": with_biases,
    "unchanged": lambda model, batches: model,
    "grouped": lambda model, batches: convert(model, "grouped:kv_heads=1", batches=batches).model,
}


def imported(family, folder, tokenizer):
    sizes = {"vocab_size": tokenizer.largest_id + 1} | ({"n_positions": 40} if family == "gpt2" else {})
    model = model_of(CONFIGS[family] | sizes).replace(tokenizer=tokenizer)
    to_huggingface(model, folder, family=family)
    return from_huggingface(folder)


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family, conversion, tmp_path):
    """Mistral's config cannot express windows and biases at once, so that another family says both."""
    model = imported(family, tmp_path / "first", DECODERS[family]())
    ids = np.random.default_rng(0).integers(3, 250, (4, 9)).astype(np.int32)
    converted = CONVERSIONS[conversion](model, [{"input_ids": ids, "attention_mask": np.ones_like(ids)}])
    biased = any(path.endswith("key_bias") for path in flatten(converted.params))
    expected = "smollm3" if biased and family == "mistral" else family
    exported = to_huggingface(converted, tmp_path / "out", "padded")
    assert (exported.family, bool(exported.notes)) == (expected, expected != family)
    assert_text(converted, tmp_path / "out")


def wordpieces():
    letters = [chr(number) for number in range(33, 127)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    return wordpiece_of(pieces, "letters")


def bytes_of_roberta(folder):
    """Its template of special tokens, in the two files of its vocabulary."""
    model = json.loads(train_bpe(TEXTS, 300).vocabulary)["model"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *model["vocab"]]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))


READERS = {"bert": None, "distilbert": None, "roberta": bytes_of_roberta, "bart": bytes_of_roberta}


@pytest.mark.parametrize("family", READERS)
def test_other_families_keep_their_tokens(family, tmp_path):
    model = model_of(CONFIGS[family] | {"vocab_size": 420})
    to_huggingface(model, tmp_path / "first", family=family)
    if READERS[family] is None:
        write_tokenizer(wordpieces(), tmp_path / "first")
    else:
        READERS[family](tmp_path / "first")
    model = from_huggingface(tmp_path / "first")
    to_huggingface(model, tmp_path / "out")
    assert_tokens(model, tmp_path / "out")
