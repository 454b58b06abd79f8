"""What each form makes of rows, and reads of records."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data import PretrainingText
from headjax.data.forms import (
    ImageForm,
    LabelledForm,
    LanguageForm,
    PretrainingForm,
    QuestionForm,
    TranslationForm,
)
from headjax.data.forms.language import Translations
from headjax.data.forms.questions import QuestionWindows
from headjax.data.loading import record_sizes
from headjax.data.rows import Row
from headjax.data.stream import train_iterator
from headjax.mesh.distributed import BatchShare
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.closeness import assert_close
from tests.data.vocabulary import WORDS, write_vocabulary

BYTES = byte_tokenizer()
END = 256
CLS, SEP, MASK = (WORDS.index(word) for word in ("[CLS]", "[SEP]", "[MASK]"))


def texts(*found):
    return [Row(f"text {i}", {"text": text}) for i, text in enumerate(found)]


def train(form, tokenizer, rows, seed=(0,)):
    """Examples to train on, from memory."""
    records = form.encode(tokenizer, rows, "train", seed).records
    return examples(form, tokenizer, records)


def examples(form, tokenizer, records, split="train"):
    return form.examples(tokenizer, records, record_sizes(form, records), split)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def test_a_stream_is_blocks_of_ended_documents():
    source = train(LanguageForm(length=4), BYTES, texts("abc", " ", "defgh"))
    assert [source[i]["input_ids"].tolist() for i in range(len(source))] == [[97, 98, 99, END], [100, 101, 102, 103]]


def test_packed_documents_are_whole_and_each_token_is_predicted_once():
    form = LanguageForm(length=8, packed=True)
    encoded = form.encode(BYTES, texts("abc", "de", "fghijklmnop", "q"), "train", (0,))
    assert encoded.counts["tokens"] == 17 + 4  # what is predicted: the text, and the end of each
    source = examples(form, BYTES, encoded.records)
    rows = [source[i] for i in range(len(source))]
    predicted = np.concatenate([row["labels"][row["labels"] != -100] for row in rows])
    assert sorted(predicted.tolist()) == sorted([*map(ord, "abcdefghijklmnopq"), *[END] * 4])
    for row in rows:
        assert (row["labels"][1:] == np.where(row["position_ids"][1:] > 0, row["input_ids"][1:], -100)).all()
        assert ((row["segment_ids"] == 0) == (row["attention_mask"] == 0)).all()


def test_packed_documents_have_the_losses_they_have_alone():
    model = tiny.model(tiny.decoder_config())
    form = LanguageForm(length=12, packed=True)
    words = [np.arange(3, 7), np.arange(10, 15), np.arange(20, 28), np.arange(30, 33)]
    records = form._packed(words, np.asarray([1], np.int32))
    source = examples(form, BYTES, records)
    assert len(source) < len(words)
    alone = np.zeros((len(words), 12), np.int32)
    for row, ids in zip(alone, words, strict=True):
        row[: len(ids) + 2] = [1, *ids, 1]
    packed = [source[i] for i in range(len(source))]
    together = {name: np.stack([example[name] for example in packed]) for name in packed[0]}
    losses = [
        model.config.loss(model(batch), batch)
        for batch in (together, {"input_ids": alone, "attention_mask": alone > 0})
    ]
    assert_close(*(loss.total.sum() for loss in losses), sums=tiny.SUMS)
    assert [loss.weight.sum() for loss in losses] == [sum(len(ids) + 1 for ids in words)] * 2


def pairs():
    words = ["a", "bb", "ccc", "dddd", "ee ee"]
    return [Row(f"pair {i}", {"source": words[i], "target": words[-i - 1].upper()}) for i in range(5)]


def test_packed_translations_are_those_pairs():
    form = TranslationForm(length=12)
    source = train(form, BYTES, [*pairs(), Row("long", {"source": "x" * 12, "target": "y"})])
    found = []
    for example in (source[i] for i in range(len(source))):
        assert (example["labels"][example["decoder_segment_ids"] == 0] == -100).all()
        for number in range(1, example["segment_ids"].max() + 1):
            sides = [
                example[name][example[segments] == number]
                for name, segments in (("input_ids", "segment_ids"), ("labels", "decoder_segment_ids"))
            ]
            assert all(side[-1] == END for side in sides)
            found.append(tuple(bytes(side[:-1].tolist()).decode() for side in sides))
            inside = example["position_ids"][example["segment_ids"] == number]
            assert inside.tolist() == list(range(len(sides[0])))
    assert len(source) < 5
    assert sorted(found) == sorted((row.values["source"], row.values["target"]) for row in pairs())


def test_translations_to_evaluate_on_are_pairs_with_references():
    form = TranslationForm(length=5)
    encoded = form.encode(BYTES, pairs(), "validation", (0,))
    held = examples(form, BYTES, encoded.records, "validation")
    assert isinstance(held, Translations)
    assert held.references == tuple(row.values["target"] for row in pairs())
    assert held[0]["labels"][:5].tolist() == [*map(ord, "EE E"), END]  # cut
    assert encoded.counts["words"] == 6
    unpacked = train(TranslationForm(length=12, packed=False), BYTES, pairs())
    assert len(unpacked) == 5
    assert set(unpacked[0]) == {"input_ids", "attention_mask", "labels"}


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


def test_questions_keep_what_their_answers_are_read_from(wordpiece):
    context = "the film was not very dull it was fun , a good film"
    rows = [
        Row(
            "q",
            {
                "id": f"q{i}",
                "question": "was it fun",
                "context": context,
                "answers": ("fun",),
                "start": context.index("fun"),
            },
        )
        for i in range(2)
    ]
    form = QuestionForm(length=80, stride=2)
    records = form.encode(wordpiece, rows, "validation", (0,)).records
    held = examples(form, wordpiece, records, "validation")
    assert isinstance(held, QuestionWindows)
    assert [question.id for question in held.windows.questions] == ["q0", "q1"]
    start, end = int(held[0]["start_positions"]), int(held[0]["end_positions"])
    assert held.windows.answer(0, start, end) == "fun"
    assert held[1]["window"] == 1
    source = train(form, wordpiece, rows)
    assert source[0]["start_positions"] == start
    bad = [Row("file: question 3", dict(rows[0].values) | {"start": 2})]
    with pytest.raises(DataError, match=r"^file: question 3: 'fun' does not stand at character 2"):
        form.encode(wordpiece, bad, "train", (0,))


def test_regressions(wordpiece):
    form = LabelledForm(length=8)
    row = Row("sts.csv: line 4", {"text": "a film", "label": 2.5})
    assert train(form, wordpiece, [row])[0]["labels"] == np.float32(2.5)
    for value, message in (("much", "the label 'much' is not a number"), ("nan", "the label 'nan' is not finite")):
        with pytest.raises(DataError, match=f"^sts.csv: line 4: {message}"):
            train(form, wordpiece, [Row("sts.csv: line 4", {"text": "a", "label": value})])


def image_form(**fields):
    given = {"size": 8, "stored": 8, "mean": (0.5,) * 3, "deviation": (0.25,) * 3, "classes": ("cat", "dog")}
    return ImageForm(**(given | fields))


def test_images():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    rows = [
        Row("a.png", {"image": pixels, "label": "dog"}),
        Row("b.png", {"image": pixels[:, :, ::-1], "label": 0}),
    ]
    plain = image_form()
    records = plain.encode(None, rows, "train", (0,)).records
    held = examples(plain, None, records, "validation")
    assert held[0]["labels"] == 1
    expected = (pixels.transpose(2, 0, 1) / 255 - 0.5) / 0.25
    assert_close(held[0]["pixel_values"], expected, sums=1)
    assert held[0]["pixel_values"].dtype == np.float32
    moved = image_form(margin=2, flip=True)
    source = examples(moved, None, records)
    drawn = [source.draw(0, np.random.default_rng(i))["pixel_values"] for i in range(200)]
    assert len({one.tobytes() for one in drawn}) > 40  # 5 x 5 places, mirrored or not
    assert_close(examples(moved, None, records, "validation")[0]["pixel_values"], expected, sums=1)
    large = Row("c.png", {"image": np.full((20, 30, 3), 7, np.uint8), "label": 1})
    (record,) = plain.encode(None, [large], "train", (0,)).records
    assert record["image"].shape == (8, 8, 3)
    assert (record["image"] == 7).all()
    for values, message in (
        ({"label": "cow"}, "unknown label 'cow'"),
        ({"label": 2}, "unknown label 2"),
        ({"image": pixels[..., :2]}, r"expected an image uint8 \[height, width, 3\], got uint8 \[8, 8, 2\]"),
    ):
        with pytest.raises(DataError, match=f"^a.png: {message}"):
            plain.encode(None, [Row("a.png", dict(rows[0].values) | values)], "train", (0,))
