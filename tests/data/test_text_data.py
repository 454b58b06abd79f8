from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.core.serialize import from_data, to_data
from headjax.data.forms import LanguageForm
from headjax.data.loading import totals
from headjax.data.rows import Row
from headjax.data.task import DataConfig
from headjax.data.text_data import LanguageConfig
from headjax.tokenizers.learned import byte_tokenizer


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"paragraph {i}: " + "some words of it " * (3 + i % 5) for i in range(200)))
    return path


@pytest.fixture(scope="module")
def embedded():
    return LanguageConfig(length=64, vocab_size=512).load()


def test_embedded_text_becomes_blocks_and_counts(embedded):
    assert embedded.tokenizer.vocab_size == 512
    for name, source in (("train", embedded.train), ("validation", embedded.validation)):
        counts = embedded.info[name]
        assert len(source) == counts["tokens"] // 64
        assert source[len(source) - 1]["input_ids"].shape == (64,)
        text = embedded.tokenizer.decode(source.tokens[source.tokens != embedded.tokenizer.special_id("eos_token")])
        assert 0 <= counts["bytes"] - len(text.encode()) < 64 * 16
        assert counts["bytes_per_token"] == counts["bytes"] / counts["tokens"]
        assert 1.5 < counts["bytes_per_token"] < 5
        ends = int((source.tokens == embedded.tokenizer.special_id("eos_token")).sum())
        assert counts["documents"] - 1 <= ends <= counts["documents"]
    json.dumps(embedded.info)


def test_is_a_function_of_config_and_text(file):
    first, second = (LanguageConfig(path=str(file), length=16, vocab_size=300).load() for _ in range(2))
    assert first.info == second.info
    np.testing.assert_array_equal(first.train.tokens, second.train.tokens)
    file.write_text(file.read_text() + "\n\nA paragraph that was not there before, with words of its own.")
    changed = LanguageConfig(path=str(file), length=16, vocab_size=300).load()
    assert changed.info["data"] != first.info["data"]


def test_documents_end_with_the_end_of_text_token(tmp_path):
    for i in range(8):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " * (i + 20))
    data = LanguageConfig(path=str(tmp_path), length=2, tokenizer="bytes", validation_fraction=0.3).load()
    texts = data.tokenizer.decode(data.train.tokens.ravel()).split("<|endoftext|>")
    originals = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert all(any(text in original for original in originals) for text in texts)


def test_a_given_tokenizer_is_used(file):
    data = LanguageConfig(path=str(file), length=16, vocab_size=300).load(byte_tokenizer())
    assert data.tokenizer == byte_tokenizer()
    assert data.info["tokenizer"] == byte_tokenizer().fingerprint


def test_validation_text_does_not_shape_the_tokenizer(file, monkeypatch):
    from headjax.tokenizers import learned

    seen = []
    monkeypatch.setitem(learned.TRAINERS, "bytes", lambda texts, size: seen.extend(texts) or byte_tokenizer())
    data = LanguageConfig(path=str(file), length=16, tokenizer="bytes", validation_fraction=0.3).load()
    assert sum(len(text.encode()) for text in seen) == data.info["train"]["bytes"]


def test_counts_convert_losses():
    """A uniform model over 257 tokens, whose code length of the text is known."""
    rows = [Row("a", {"text": "one two three"}), Row("b", {"text": "vier fünf"})]
    encoded = LanguageForm(length=4).encode(byte_tokenizer(), rows, "validation", (0,))
    counts = totals([(len(encoded.records), encoded.counts)])
    assert (counts["documents"], counts["bytes"], counts["words"], counts["tokens"]) == (2, 23, 5, 25)
    loss = math.log(257)
    assert loss / math.log(2) / counts["bytes_per_token"] == pytest.approx(25 * math.log2(257) / 23)
    assert math.exp(loss / counts["words_per_token"]) == pytest.approx(257 ** (25 / 5))


def test_config_serialises():
    config = LanguageConfig(path="a.txt", tokenizer="bytes")
    assert to_data(config)["kind"] == "language"
    assert from_data(DataConfig, json.loads(json.dumps(to_data(config)))) == config


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"length": 0}, "length: must be an integer of at least 1, got 0"),
        ({"length": 1}, "length: must be at least 2"),
        ({"vocab_size": -1}, "vocab_size: must be an integer of at least 1"),
        ({"tokenizer": "byte"}, "tokenizer: unknown tokenizer 'byte'; did you mean 'bytes'?"),
        ({"validation_fraction": 1.0}, "validation_fraction: must be within"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ConfigError) as caught:
        LanguageConfig(**fields)
    assert str(caught.value).startswith(message)


def test_too_little_text(file):
    with pytest.raises(DataError, match=r"^vocab_size: the text yields only \d+ tokens, not 9000; lower vocab_size"):
        LanguageConfig(path=str(file), vocab_size=9000).load()
    with pytest.raises(DataError, match=r"^length: the validation text has \d+ tokens, less than one block of 5000; "):
        LanguageConfig(path=str(file), length=5000, tokenizer="bytes").load()
    with pytest.raises(DataError, match=r"no such file or folder$"):
        LanguageConfig(path=str(file) + ".missing").load()


def test_real_text(data_dir):
    data = LanguageConfig(path=str(data_dir / "lm" / "gutenberg" / "dracula.txt"), vocab_size=1024).load()
    assert data.info["train"]["bytes"] > 700_000
    assert 2 < data.info["train"]["bytes_per_token"] < 4
    assert 0.02 < data.info["validation"]["bytes"] / data.info["train"]["bytes"] < 0.1


def test_data_imports_neither_tensorflow_nor_pytorch_and_is_the_same_in_another_process(embedded):
    code = """
import pkgutil, importlib, sys, warnings
warnings.simplefilter("error")
import headjax.data
for module in pkgutil.iter_modules(headjax.data.__path__):
    if module.name != "seqio_tasks":  # the module that imports TensorFlow
        importlib.import_module(f"headjax.data.{module.name}")
late = {"tensorflow", "tensorflow_datasets", "seqio", "torch", "transformers", "grain", "tokenizers"} & set(sys.modules)
assert not late, late
from headjax.data.text_data import LanguageConfig
from headjax.data.stream import train_iterator
data = LanguageConfig(length=64, vocab_size=512).load()
next(train_iterator(data.train, 2, 0))
assert not {"tensorflow", "torch"} & set(sys.modules)
print(data.info["tokenizer"], data.info["data"])
"""
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [embedded.info["tokenizer"], embedded.info["data"]]
