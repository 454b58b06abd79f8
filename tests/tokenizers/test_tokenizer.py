"""Tokenizers of headjax's own: any text survives, a directory carries them, and a bad request is one line."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import headjax

END_OF_TEXT = "<|endoftext|>"
TEXTS = [
    "the cat sat on the mat, the cat sat",
    "été à la plage 日本語",
    f"code {END_OF_TEXT} in text\n\n\tx = 1\r\n",
] * 3


@pytest.fixture(scope="module", params=["bpe", "bytes"])
def tokenizer(request):
    return headjax.train_bpe(TEXTS, 280) if request.param == "bpe" else headjax.byte_tokenizer()


def changed(tokenizer, **parts):
    """The tokenizer with other parts of its JSON."""
    return headjax.Tokenizer(json.dumps(json.loads(tokenizer.vocabulary) | parts), tokenizer.special)


@example(text=f"before{END_OF_TEXT}after")
@given(text=st.text() | st.text(alphabet=" \n\tthe<|>\u0301\0"))
def test_any_text_survives(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_id("eos_token") not in ids  # spelled out, it is text
    assert ids.size == 0 or ids.max() < tokenizer.vocab_size


def test_one_text_or_many_are_encoded_alike(tokenizer):
    many = [str(i) for i in range(1030)]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(many)] == many
    assert tokenizer.encode([]) == []
    ids = tokenizer.encode("the mat")
    assert ids.dtype == np.int32
    assert ids.tolist() == tokenizer.encode(["the mat"])[0].tolist() == tokenizer.prompt_ids("the mat")
    assert tokenizer.prompt_ids(END_OF_TEXT) == [tokenizer.special_id("eos_token")]


def test_a_directory_carries_the_tokenizer(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    loaded = headjax.Tokenizer.load(tmp_path / "tokenizer")
    assert loaded == tokenizer
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(["the mat"])[0].tolist() == tokenizer.encode(["the mat"])[0].tolist()
    assert json.loads((tmp_path / "tokenizer" / "special_tokens_map.json").read_text()) == {"eos_token": END_OF_TEXT}


def test_truncation_of_a_file_does_not_cut_text(tokenizer):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    other = changed(tokenizer, truncation=truncation)
    assert other.decode(other.encode(["longer than four tokens"])[0]) == "longer than four tokens"


SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("tokenizer.json", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AQID"}}),
        ("tokenizer: ", {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}}),
        ("tokenizer: ", {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}),
        ("tokenizer: ", {"pre_tokenizer": SLOW}),
    ],
)
def test_a_failure_of_the_library_is_one_line(field, parts):
    """A panic of the library is no `Exception`."""
    with pytest.raises(headjax.DataError, match=f"^{field}[^\n]*$"):
        changed(headjax.byte_tokenizer(), **parts).encode(["a" * 30 + "b"])


@pytest.mark.parametrize(
    ("kind", "field", "call"),
    [
        (headjax.DataError, "tokenizer: it has no pad_token", lambda: headjax.byte_tokenizer().special_id("pad_token")),
        (headjax.DataError, r"texts\[1\]: character 1 ", lambda: headjax.byte_tokenizer().encode(["a", "b\udc80"])),
        (headjax.ConfigError, "vocab_size: must be at least 257", lambda: headjax.train_bpe(TEXTS, 256)),
        (
            headjax.DataError,
            r"vocab_size: the text yields only \d+ tokens, not 262",
            lambda: headjax.train_bpe(["aé", "bc"], 262),
        ),
    ],
)
def test_a_bad_request_names_its_field(kind, field, call):
    with pytest.raises(kind, match=f"^{field}"):
        call()


def test_bytes_are_their_own_ids():
    text = "".join(map(chr, range(300))) + "日本"
    tokenizer = headjax.byte_tokenizer()
    assert tokenizer.encode([text])[0].tolist() == list(text.encode())
    assert tokenizer.vocab_size == 257
    assert tokenizer.special_id("eos_token") == 256


def test_bpe_learns_merges_the_same_each_time():
    first, second = headjax.train_bpe(TEXTS, 280), headjax.train_bpe(TEXTS, 280)
    assert first == second
    assert first.fingerprint == second.fingerprint
    assert first.vocab_size == 280
    assert len(first.encode(["the cat sat"])[0]) < len("the cat sat")
    others = {headjax.train_bpe(TEXTS, 281).fingerprint, headjax.train_bpe(["another text, " * 4], 260).fingerprint}
    assert len({first.fingerprint, headjax.byte_tokenizer().fingerprint, *others}) == 4
