"""WikiText-2's protocol: every token is predicted once, from as much context as the windows give."""

import gzip
import math

import jax
import numpy as np
import pytest

import headjax
from headjax.core.class_names import IGNORED
from headjax.data.forms.language import Windows
from headjax.evaluation.measures import LanguageModelling
from tests import tiny
from tests.closeness import assert_close

TEXT = " \n = Heads = \n \n One head , two heads . \n"
END = 256


def read(place, length=1024, **fields):
    return headjax.data.DataConfig(task=f"wikitext2:{place}", length=length, **fields).load(headjax.byte_tokenizer())


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "lm" / "wikitext-2-raw"
    place.mkdir(parents=True)
    (place / "wiki.valid.raw").write_text(TEXT)
    with gzip.open(place / "wiki.train.raw.gz", "wt") as file:
        file.write(" \n = A = \n \n A text of many words . \n \n = B = \n \n Another one . \n")
    return place


@pytest.mark.parametrize(("context", "stride"), [(8, 7), (8, 3), (8, 1), (10, 9), (23, 5)])
def test_every_token_but_the_first_is_predicted_once_and_windows_are_full(context, stride):
    tokens = np.arange(100, 123, dtype=np.int32)
    windows = Windows(tokens, context, stride)
    examples = [windows[index] for index in range(len(windows))]
    assert {len(example["input_ids"]) for example in examples} == {context}
    predicted = np.concatenate([example["labels"][1:] for example in examples])
    np.testing.assert_array_equal(predicted[predicted != IGNORED], tokens[1:])
    for example in examples[1:]:
        assert (example["labels"] == IGNORED).sum() >= context - stride
        kept = example["labels"] != IGNORED
        np.testing.assert_array_equal(example["labels"][kept], example["input_ids"][kept])


def test_the_text_is_read_as_it_is_and_begins_with_one_token(folder, monkeypatch):
    monkeypatch.setenv("HEADJAX_DATA", str(folder.parents[1]))
    data = read("", 16)
    ids = np.concatenate([[END], list(TEXT.encode())])
    np.testing.assert_array_equal(data.validation.tokens, ids)
    counts = {"tokens": len(TEXT), "words": len(TEXT.split()), "bytes": len(TEXT)}
    windows = {"context": 16, "stride": 15, "begins_with": "<|endoftext|>"}
    assert data.info["protocol"] == {"text": "wiki.valid.raw", "split": "validation", **windows, **counts}
    trained = np.concatenate([data.train[i]["input_ids"] for i in range(len(data.train))])
    assert (trained == END).sum() == 1  # between both articles; the block that the last one ends in is not full
    assert not len(read("", 16, whole=True).train)


def test_perplexities_are_those_of_the_summed_loss(folder):
    model = tiny.model(tiny.decoder_config(vocab_size=257, max_length=64))
    data = read(folder, 64)
    task = headjax.Task("wikitext2", data, LanguageModelling(**data.measured.arguments))
    found = headjax.evaluate_task(model, task)
    ids = data.validation.tokens
    log = jax.nn.log_softmax(model({"input_ids": ids[None]}).logits[0])
    loss = -float(sum(log[i, token] for i, token in enumerate(ids[1:])))
    assert_close(found["perplexity"], math.exp(loss / len(TEXT)), sums=tiny.SUMS)
    assert_close(math.log(found["word_perplexity"]), loss / len(TEXT.split()), sums=tiny.SUMS)
    assert_close(found["bits_per_byte"], loss / math.log(2) / len(TEXT), sums=tiny.SUMS)


def test_what_cannot_be_used_is_one_line(folder, monkeypatch):
    for field, words in (("stride", "context=8,stride=8"), ("split", "split=train"), ("context", "context=1")):
        with pytest.raises(headjax.ConfigError, match=f"^{field}: "):
            read(f"{folder},{words}")
    with pytest.raises(headjax.ConfigError, match=r"stride: must be below the context of 8"):
        read(f"{folder},stride=8", 8)
    (folder / "wiki.train.raw.gz").unlink()
    monkeypatch.delenv("HEADJAX_DATA", raising=False)
    for path, said in (
        (f"{folder},split=test", r"expected wiki.test.raw"),
        (str(folder), r"expected wiki.train.raw"),
        (f"{folder}/wiki.valid.raw", r"expected wiki.valid.raw"),
        ("", r"^wikitext2: .*HEADJAX_DATA .*lm/wikitext-2-raw"),
    ):
        with pytest.raises(headjax.DataError, match=said):
            read(path)
