import pytest

import headjax
from headjax.data.examples import encode_packed, encode_sequences
from tests.data.vocabulary import WORDS


def test_examples_are_cut_and_what_spells_a_special_token_is_text(wordpiece):
    (spelled,) = encode_sequences(wordpiece, ["a [SEP] film"], max_length=20)["input_ids"]
    assert spelled.tolist().count(WORDS.index("[SEP]")) == 1
    # Cutting changed a copy: the tokenizer itself still encodes whole texts.
    assert len(encode_sequences(wordpiece, ["a " * 20], max_length=5)["input_ids"][0]) == 5
    assert len(wordpiece.encode(["a " * 20])[0]) == 20
    assert [len(ids) for ids in encode_sequences(headjax.byte_tokenizer(), ["abc"], max_length=2)["input_ids"]] == [2]
    packed = encode_packed(wordpiece, ["a good film"], ["fun"], max_length=4)
    assert [packed[name][0].tolist() for name in ("segment_ids", "position_ids")] == [
        [1, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 0, 1, 2],
    ]  # fmt: skip
    for tokenizer, length, field in ((headjax.byte_tokenizer(), 8, "tokenizer"), (wordpiece, 3, "max_length")):
        with pytest.raises(headjax.DataError, match=f"^{field}: "):
            encode_sequences(tokenizer, ["a"], ["b"], max_length=length)
