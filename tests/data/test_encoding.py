from __future__ import annotations

import numpy as np
import pytest
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.models import WordPiece

from headjax.core.errors import DataError
from headjax.data.examples import encode_packed, encode_sequences, padding_id
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import WORDS, write_vocabulary

CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")

HARD = [
    "",
    "It was FUNNY, not unhappy!!",
    "cafe\u0301 Café naïve Ångström ﬁne",
    "日本語 and 中文,mixed文字 한국어",
    "tabs\tand\u00a0spaces\u2003and\x00null\x07bell\ufffdreplacement\u200bzero\u00adsoft",
    "e-mail@example.com costs $3.50 (or €3)… «quoted» — dash",
    "ß İstanbul ǅ Σίσυφος",
    "x" * 150,
    "🙂 emoji \U0001f469\u200d\U0001f52c",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def texts(tokenizer, ids):
    return [tokenizer.backend.id_to_token(int(one)) for one in ids]


def test_single_and_pair(tokenizer):
    single = encode_sequences(tokenizer, ["the unhappy film", ""], max_length=8)
    assert texts(tokenizer, single.ids[0]) == ["[CLS]", "the", "un", "##happy", "film", "[SEP]"]
    assert texts(tokenizer, single.ids[1]) == ["[CLS]", "[SEP]"]
    pair = encode_sequences(tokenizer, ["a film"], ["it was fun"], max_length=8)
    assert texts(tokenizer, pair.ids[0]) == ["[CLS]", "a", "film", "[SEP]", "it", "was", "fun", "[SEP]"]
    np.testing.assert_array_equal(pair.types[0], [0, 0, 0, 0, 1, 1, 1, 1])
    assert pair.ids[0].dtype == pair.types[0].dtype == np.int32
    assert padding_id(tokenizer) == WORDS.index("[PAD]")


def test_the_longer_sentence_is_cut_first(tokenizer):
    pair = encode_sequences(tokenizer, ["a good film"], ["it was very very very dull"], max_length=9)
    assert texts(tokenizer, pair.ids[0]) == ["[CLS]", "a", "good", "film", "[SEP]", "it", "was", "very", "[SEP]"]
    assert len(encode_sequences(tokenizer, ["a " * 20], max_length=5).ids[0]) == 5
    # Cutting changed a copy: the tokenizer itself still encodes whole texts.
    assert len(tokenizer.encode(["a " * 20])[0]) == 20


def test_special_tokens_spelled_out_are_text(tokenizer):
    (ids,) = encode_sequences(tokenizer, ["a [SEP] film"], max_length=20).ids
    assert list(ids).count(SEP) == 1


def test_packed_sentences(tokenizer):
    packed = encode_packed(tokenizer, ["a good film"], ["fun"], max_length=4)
    assert texts(tokenizer, packed["input_ids"][0]) == ["[CLS]", "a", "good", "[SEP]", "[CLS]", "fun", "[SEP]"]
    np.testing.assert_array_equal(packed["segment_ids"][0], [1, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(packed["position_ids"][0], [0, 1, 2, 3, 0, 1, 2])


def test_errors(tokenizer):
    with pytest.raises(DataError, match=r"^tokenizer: it has no post-processor, so it cannot join pairs"):
        encode_sequences(byte_tokenizer(), ["a"], ["b"], max_length=8)
    with pytest.raises(DataError, match=r"^max_length: 3 tokens leave no room for text beside 3 special tokens"):
        encode_sequences(tokenizer, ["a"], ["b"], max_length=3)
    assert [len(ids) for ids in encode_sequences(byte_tokenizer(), ["abc"], max_length=2).ids] == [2]


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece_equals_the_reference(tmp_path, lowercase):
    path = write_vocabulary(tmp_path)
    ours, theirs = (
        wordpiece_tokenizer(path, lowercase=lowercase),
        BertWordPieceTokenizer(WordPiece.read_file(str(path)), lowercase=lowercase),
    )
    encoded = encode_sequences(ours, HARD, HARD[::-1], max_length=512)
    for first, second, ids, types in zip(HARD, HARD[::-1], *encoded, strict=True):
        expected = theirs.encode(first, second)
        assert (list(ids), list(types)) == (expected.ids, expected.type_ids)


def test_broken_vocabularies(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n")
    with pytest.raises(DataError, match=r"vocab.txt: line 7: 'a' also stands in line 6$"):
        wordpiece_tokenizer(path)
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[MASK]\na\n")
    with pytest.raises(DataError, match=r"vocab.txt: no \[SEP\], so it is not the vocabulary of a BERT$"):
        wordpiece_tokenizer(path)
