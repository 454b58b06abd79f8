"""What each form makes of rows, and reads of records."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data import PretrainingText
from headjax.data.forms import (
    PretrainingForm,
)
from headjax.data.stream import train_iterator
from headjax.mesh.distributed import BatchShare
from tests.data.forms.making import BYTES, texts, train
from tests.data.vocabulary import WORDS

CLS, SEP, MASK = (WORDS.index(word) for word in ("[CLS]", "[SEP]", "[MASK]"))


def sentence(generator):
    """Words of the vocabulary with a full stop."""
    words = generator.choice(["good", "bad", "film", "the", "was", "it", "dull", "fun"], generator.integers(2, 9))
    return " ".join(words).capitalize() + "."


def corpus(documents=20, sentences=40):
    generator = np.random.default_rng(0)
    return texts(*(" ".join(sentence(generator) for _ in range(sentences)) for _ in range(documents)))


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_pretraining_examples(wordpiece, masking):
    form = PretrainingForm(length=32, max_predictions=5, masking=masking)
    rows = corpus()
    source = train(form, wordpiece, rows)
    follows, predicted = [], []
    for index in range(len(source)):
        example = source[index]
        tokens = int(example["attention_mask"].sum())
        ids, labels, types = (example[name][:tokens] for name in ("input_ids", "labels", "token_type_ids"))
        whole = np.where(labels == -100, ids, labels)
        assert whole[0] == CLS
        assert np.flatnonzero(whole == SEP).tolist() == [np.flatnonzero(types == 0)[-1], tokens - 1]
        assert (example["labels"][tokens:] == -100).all()
        assert not np.isin(labels, [CLS, SEP, 0]).any()
        assert (labels != -100).sum() == min(5, max(1, round(0.15 * tokens)))
        follows.append(1 - int(example["next_sentence_label"]))
        predicted.extend(ids[labels != -100] == MASK)
    assert 0.3 < np.mean(follows) < 0.6
    assert 0.7 < np.mean(predicted) < 0.9
    changed = [(source.draw(3, np.random.default_rng(i))["labels"] != -100).tolist() for i in range(4)]
    assert (len({tuple(one) for one in changed}) == 1) is (masking == "static")


def test_copies_differ(wordpiece):
    form = PretrainingForm(length=32, masking="static", copies=3)
    once, thrice = (
        len(train(PretrainingForm(length=32, masking="static", copies=n), wordpiece, corpus(4))) for n in (1, 3)
    )
    assert 2.5 < thrice / once < 3.5
    records = form.encode(wordpiece, corpus(4), "train", (0,)).records
    assert len({record["input_ids"].tobytes() for record in records}) == len(records)
    held = form.encode(wordpiece, corpus(4), "validation", (0,)).records
    assert len(held) == once
    assert all("positions" in record for record in held)


def test_dynamic_masks_are_drawn_anew_and_resume_exactly(wordpiece):
    form = PretrainingForm(length=32, max_predictions=5)
    source = train(form, wordpiece, corpus(6, 12))

    def labels(iterator, count):
        return [next(iterator)["labels"] for _ in range(count)]

    size = len(source)
    whole = labels(train_iterator(source, 2, 7), size)
    first, second = np.concatenate(whole)[:size], np.concatenate(whole)[size:]
    assert not {row.tobytes() for row in first} <= {row.tobytes() for row in second}
    started = train_iterator(source, 2, 7, threads=2)
    labels(started, 3)
    halves = [train_iterator(source, 2, 7, share=BatchShare(i, 2)) for i in (0, 1)]
    for half in halves:
        half.set_state(started.get_state())
    rest = [np.concatenate(parts) for parts in zip(*(labels(half, size - 3) for half in halves), strict=True)]
    np.testing.assert_array_equal(rest, whole[3:])


def test_pretraining_of_one_document_or_none(wordpiece):
    form = PretrainingForm(length=32)
    assert len(form.encode(wordpiece, corpus(1), "train", (0,)).records) > 3
    assert form.encode(wordpiece, texts("Good."), "train", (0,)).records == []
    with pytest.raises(DataError, match="it has no cls_token"):
        form.check(BYTES)
    with pytest.raises(ConfigError, match=r"^length: must be at least 5"):
        PretrainingForm(length=4)


def test_pretraining_on_books_and_articles(data_dir):
    """The whole way on real text, from memory."""
    vocabulary = data_dir / "vocab" / "bert-base-uncased-vocab.txt"
    config = PretrainingText(
        path=str(data_dir / "lm" / "wikitext-2-raw" / "wiki.valid.raw"), vocabulary=str(vocabulary), length=64
    )
    data = config.load()
    train, held = data.info["train"], data.info["validation"]
    assert train["documents"] >= 50
    assert 3000 < train["examples"] < 8000
    assert 0.48 < train["random_next"] / train["examples"] < 0.62
    assert 0 < held["examples"] < 1000
    text = data.tokenizer.decode(data.train[5]["input_ids"])
    assert text.startswith("[CLS]")
    assert "[UNK]" not in text
    with pytest.raises(DataError, match=r"vocabulary: the model brings no tokenizer; name a vocab.txt"):
        PretrainingText(path="text.txt").load()
