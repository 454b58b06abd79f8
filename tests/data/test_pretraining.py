"""Sentences, pairs of parts and masks of BERT's pretraining, and the form that makes examples of them."""

import numpy as np
import pytest

import headjax
from headjax.data.forms import PretrainingForm
from headjax.data.forms.pretraining import masking_vocabulary, next_sentence_pairs, sentences
from tests.data.making import BYTES, examples, texts
from tests.data.vocabulary import SPECIAL, WORDS


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One.  Two\nis it? Three!", ["One.", "Two is it?", "Three!"]),
        ("A heading\n\nIts text. More", ["A heading", "Its text.", "More"]),
        ("Mr. Bingley met Dr. J. Watson at 3 p.m. He left.", ["Mr. Bingley met Dr. J. Watson at 3 p.m. He left."]),
        ("It cost 3.5 dollars. 7 were left.", ["It cost 3.5 dollars.", "7 were left."]),
        ('"Why?" he asked. "So."', ['"Why?" he asked.', '"So."']),
        ("“Why? So.” (Really.) Yes...  No", ["“Why?", "So.”", "(Really.)", "Yes...", "No"]),
        ("see e.g. Figure 2. then on", ["see e.g. Figure 2. then on"]),
        ("C'est fini. Élise part. Всё. Да! É. Zola", ["C'est fini.", "Élise part.", "Всё.", "Да!", "É. Zola"]),
        (" \n \n", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_second_parts_follow_or_are_of_another_document():
    """Twelve documents in which no token occurs twice, so that each says where it comes from: 100,000 d + place."""
    generator = np.random.default_rng(0)
    documents = []
    for number in range(12):
        ends = np.cumsum(generator.integers(1, 30, size=100))
        documents.append(np.split(np.arange(ends[-1], dtype=np.int32) + 100_000 * number, ends[:-1]))
    generator = np.random.default_rng(1)
    pairs = [
        (number, *pair) for number in range(12) for pair in next_sentence_pairs(documents, number, 61, 0.1, generator)
    ]
    for number, first, second, follows in pairs:
        assert {*first // 100_000} == {number}
        assert (np.diff(first) == 1).all()
        assert (np.diff(second) == 1).all()
        (origin,) = {*second // 100_000}
        assert (origin == number) == follows
        if follows and len(first) + len(second) < 61:
            assert second[0] == first[-1] + 1
    sizes = np.asarray([len(first) + len(second) for _, first, second, _ in pairs])
    assert sizes.max() == 61
    assert all(len(first) and len(second) for _, first, second, _ in pairs)
    assert 0.8 < np.mean(sizes > 40) < 1.0  # but for those made shorter at random and the ends of documents
    assert len(pairs) > 300
    assert 0.35 < np.mean([pair[-1] for pair in pairs]) < 0.55  # half, less those that nothing can follow
    # But for what was cut off to fit, every sentence is in some pair of its own document.
    parts = [part for number, first, second, _ in pairs for part in (first, second) if part[0] // 100_000 == number]
    everything = np.concatenate([sentence for document in documents for sentence in document])
    assert np.isin(everything, np.concatenate(parts)).mean() > 0.8


def test_one_sentence_each():
    documents = [[np.asarray([1, 2, 3])], [np.asarray([7])]]
    ((first, second, follows),) = next_sentence_pairs(documents, 0, 10, 0.0, np.random.default_rng(0))
    assert first.tolist() == [1, 2, 3]
    assert second.tolist() == [7]
    assert not follows


@pytest.fixture(scope="module")
def vocabulary(wordpiece):
    return masking_vocabulary(wordpiece)


def test_special_tokens_are_known_and_not_predicted(vocabulary):
    assert np.flatnonzero(vocabulary.special).tolist() == list(range(len(SPECIAL)))
    assert vocabulary.ordinary.tolist() == list(range(len(SPECIAL), len(WORDS)))
    assert vocabulary.mask == WORDS.index("[MASK]")
    with pytest.raises(headjax.DataError, match="mask_token"):
        masking_vocabulary(headjax.byte_tokenizer())
    for tokens, most, wanted in ((3, 20, 1), (10, 20, 2), (100, 20, 15), (200, 20, 20), (200, 80, 30)):
        ids = np.full(tokens, 7, np.int32)
        ids[0], ids[-1] = 2, 3
        masked = PretrainingForm(max_predictions=most).masked(ids, vocabulary, np.random.default_rng(0))
        assert len(masked["positions"]) == len(masked["ids"]) == wanted


def test_what_stands_there_instead(vocabulary):
    """80% mask, 10% random, 10% as it was, over 30,000 predictions; and nothing else changes."""
    generator = np.random.default_rng(1)
    rule = PretrainingForm(max_predictions=100)
    kinds = np.zeros(3, int)
    for _ in range(1000):
        ids = generator.integers(len(SPECIAL), len(WORDS), 200).astype(np.int32)
        ids[[0, 90, 199]] = 2, 3, 3
        hidden, positions, labels = rule.masked(ids, vocabulary, generator).values()
        assert not np.isin(positions, [0, 90, 199]).any()
        np.testing.assert_array_equal(ids[positions], labels)
        rest = np.ones(200, bool)
        rest[positions] = False
        np.testing.assert_array_equal(hidden[rest], ids[rest])
        now = hidden[positions]
        assert (now[now < len(SPECIAL)] == vocabulary.mask).all()
        mask, same = now == vocabulary.mask, now == labels
        kinds += [mask.sum(), (~mask & ~same).sum(), same.sum()]
    ordinary = len(WORDS) - len(SPECIAL)
    shares = np.asarray([0.8, 0.1 * (1 - 1 / ordinary), 0.1 + 0.1 / ordinary])  # a random token may be the right one
    assert kinds.sum() == 30_000
    np.testing.assert_allclose(kinds / 30_000, shares, atol=4 * np.sqrt(0.25 / 30_000))


CLS, SEP, MASK = (WORDS.index(word) for word in ("[CLS]", "[SEP]", "[MASK]"))


WORDS_OF_TEXT = ["good", "bad", "film", "the", "was", "it", "dull", "fun"]


def documents_of(documents=20, sentences=40):
    """Texts of sentences, each of a few words of the vocabulary and a full stop."""
    generator = np.random.default_rng(0)
    found = [
        [" ".join(generator.choice(WORDS_OF_TEXT, generator.integers(2, 9))).capitalize() for _ in range(sentences)]
        for _ in range(documents)
    ]
    return texts(*(". ".join(each) + "." for each in found))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_pretraining_examples(wordpiece, split):
    form = PretrainingForm(length=32, max_predictions=5)
    source = examples(form, wordpiece, form.encode(wordpiece, documents_of(), split, (0,)).records, split)
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
    assert (len({tuple(one) for one in changed}) == 1) is (split == "validation")


def test_pretraining_of_one_document_or_none(wordpiece):
    form = PretrainingForm(length=32)
    assert len(form.encode(wordpiece, documents_of(1), "train", (0,)).records) > 3
    assert form.encode(wordpiece, texts("Good."), "train", (0,)).records == []
    with pytest.raises(headjax.DataError, match="cls_token"):
        form.check(BYTES)
    with pytest.raises(headjax.ConfigError, match=r"^length: "):
        PretrainingForm(length=4)
