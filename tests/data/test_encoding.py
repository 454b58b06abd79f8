import numpy as np
import pytest
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.models import WordPiece

from headjax.core.errors import DataError
from headjax.data.examples import encode_packed, encode_sequences, padding_id
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import WORDS, write_vocabulary

SEP = WORDS.index("[SEP]")

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


def texts(wordpiece, ids):
    return [wordpiece.backend.id_to_token(int(one)) for one in ids]


def test_single_and_pair(wordpiece):
    single = encode_sequences(wordpiece, ["the unhappy film", "", "a [SEP] film"], max_length=20)
    assert texts(wordpiece, single.ids[0]) == ["[CLS]", "the", "un", "##happy", "film", "[SEP]"]
    assert texts(wordpiece, single.ids[1]) == ["[CLS]", "[SEP]"]
    assert list(single.ids[2]).count(SEP) == 1  # special tokens that are spelled out are text
    pair = encode_sequences(wordpiece, ["a film"], ["it was fun"], max_length=8)
    assert texts(wordpiece, pair.ids[0]) == ["[CLS]", "a", "film", "[SEP]", "it", "was", "fun", "[SEP]"]
    np.testing.assert_array_equal(pair.types[0], [0, 0, 0, 0, 1, 1, 1, 1])
    assert pair.ids[0].dtype == pair.types[0].dtype == np.int32
    assert padding_id(wordpiece) == WORDS.index("[PAD]")
    packed = encode_packed(wordpiece, ["a good film"], ["fun"], max_length=4)
    assert texts(wordpiece, packed["input_ids"][0]) == ["[CLS]", "a", "good", "[SEP]", "[CLS]", "fun", "[SEP]"]
    np.testing.assert_array_equal(packed["segment_ids"][0], [1, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(packed["position_ids"][0], [0, 1, 2, 3, 0, 1, 2])


def test_the_longer_sentence_is_cut_first(wordpiece):
    pair = encode_sequences(wordpiece, ["a good film"], ["it was very very very dull"], max_length=9)
    assert texts(wordpiece, pair.ids[0]) == ["[CLS]", "a", "good", "film", "[SEP]", "it", "was", "very", "[SEP]"]
    assert len(encode_sequences(wordpiece, ["a " * 20], max_length=5).ids[0]) == 5
    # Cutting changed a copy: the tokenizer itself still encodes whole texts.
    assert len(wordpiece.encode(["a " * 20])[0]) == 20
    assert [len(ids) for ids in encode_sequences(byte_tokenizer(), ["abc"], max_length=2).ids] == [2]
    for tokenizer, length, field in ((byte_tokenizer(), 8, "tokenizer"), (wordpiece, 3, "max_length")):
        with pytest.raises(DataError, match=f"^{field}: "):
            encode_sequences(tokenizer, ["a"], ["b"], max_length=length)


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
