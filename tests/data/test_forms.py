"""What each form makes of rows, and reads of records."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headjax
from headjax.data.forms import ImageForm, LabelledForm, LanguageForm, SimilarityForm, TranslationForm
from headjax.data.forms.form import load_rows
from headjax.data.forms.language import pack
from headjax.data.rows import Row
from tests import tiny
from tests.closeness import assert_close
from tests.data.making import BYTES, END, examples, texts, train


def test_a_vocabulary_is_learned_from_all_texts_of_a_row():
    row = Row("line 1", {"source": "a dog", "target": "ein Hund"})
    assert list(TranslationForm().texts(row)) == ["a dog", "ein Hund"]
    single = Row("line 2", {"text": "a film", "label": 1})
    assert list(LabelledForm().texts(single)) == ["a film"]
    assert set(LabelledForm().wanted) == {"text", "label"}
    with pytest.raises(headjax.DataError, match=r"^tokenizer: "):
        load_rows(LabelledForm(), {"validation": [single]}, None, {})
    assert set(LabelledForm(pairs=True).wanted) == set(SimilarityForm().wanted) == {"text", "second", "label"}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=120))
def test_every_example_is_in_one_row_that_it_fits(sizes):
    sizes = np.asarray(sizes)
    rows = pack(sizes, 9)
    assert sorted(number for row in rows for number in row) == list(range(len(sizes)))
    assert all((sizes[row].sum(axis=0) <= 9).all() for row in rows)
    natural = np.random.default_rng(len(sizes)).integers(4, 60, size=(2000, 1))
    assert natural.sum() / (256 * len(pack(natural, 256))) > 0.95  # sentences of natural length fill their rows


def test_a_stream_is_blocks_of_ended_documents():
    counts = LanguageForm(length=4).encode(BYTES, texts("one two three", "vier fünf"), "validation", (0,)).counts
    assert (counts["documents"], counts["bytes"], counts["words"], counts["tokens"]) == (2, 23, 5, 25)
    source = train(LanguageForm(length=4), BYTES, texts("abc", " ", "defgh"))
    assert [source[i]["input_ids"].tolist() for i in range(len(source))] == [[97, 98, 99, END], [100, 101, 102, 103]]


def test_packed_documents_have_the_losses_they_have_alone():
    model = tiny.model(tiny.decoder_config())
    form = LanguageForm(length=12, packed=True)
    words = [np.arange(3, 7), np.arange(10, 15), np.arange(20, 28), np.arange(30, 33)]
    records = form.packed_rows(words, np.asarray([1], np.int32))
    source = examples(form, BYTES, records)
    assert len(source) < len(words)
    alone = np.zeros((len(words), 12), np.int32)
    for row, ids in zip(alone, words, strict=True):
        row[: len(ids) + 2] = [1, *ids, 1]
    packed = [source[i] for i in range(len(source))]
    together = {name: np.stack([example[name] for example in packed]) for name in packed[0]}
    batches = together, {"input_ids": alone, "attention_mask": alone > 0}
    losses = [jax.jit(model.loss)(batch) for batch in batches]
    assert_close(*(loss.total.sum() for loss in losses), sums=tiny.SUMS)
    assert [loss.weight.sum() for loss in losses] == [sum(len(ids) + 1 for ids in words)] * 2


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


def pairs():
    words = ["a", "bb", "ccc", "dddd", "ee ee"]
    return [Row(f"pair {i}", {"source": words[i], "target": words[-i - 1].upper()}) for i in range(5)]


def image_form(**fields):
    given = {"size": 8, "stored": 8, "mean": (0.5,) * 3, "deviation": (0.25,) * 3, "classes": ("cat", "dog")}
    return ImageForm(**(given | fields))


def test_images():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    row = Row("a.png", {"image": pixels, "label": "dog "})
    plain = image_form()
    records = plain.encode(None, [row], "train", (0,)).records
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
    grey = Row("d.png", {"image": pixels[..., 0], "label": 1})  # as some of ImageNet's are
    (record,) = plain.encode(None, [grey], "train", (0,)).records
    np.testing.assert_array_equal(record["image"], np.repeat(pixels[..., :1], 3, axis=2))
    for values in ({"label": "cow"}, {"label": 2}, {"label": 0.5}, {"image": pixels[..., :2]}):
        with pytest.raises(headjax.DataError, match=r"^a\.png: "):
            plain.encode(None, [Row("a.png", dict(row.values) | values)], "train", (0,))
