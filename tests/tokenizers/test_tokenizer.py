import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headjax.core.errors import ConfigError, DataError
from headjax.tokenizers.learned import byte_tokenizer, train_bpe
from headjax.tokenizers.tokenizer import END_OF_TEXT, Tokenizer

TEXTS = [
    "the cat sat on the mat, the cat sat",
    "été à la plage 日本語",
    f"code {END_OF_TEXT} in text\n\n\tx = 1\r\n",
] * 3


@pytest.fixture(scope="module", params=["bpe", "bytes"])
def tokenizer(request):
    return train_bpe(TEXTS, 280) if request.param == "bpe" else byte_tokenizer()


@example(text=f"before{END_OF_TEXT}after")
@given(text=st.text() | st.text(alphabet=" \n\tthe<|>\u0301\0"))
def test_any_text_survives(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_id("eos_token") not in ids  # spelled out, it is text
    assert ids.size == 0 or ids.max() < tokenizer.vocab_size


def test_texts_are_encoded_one_by_one(tokenizer):
    many = [str(i) for i in range(1030)]
    encoded = tokenizer.encode(many)
    assert [tokenizer.decode(ids) for ids in encoded] == many
    assert tokenizer.encode([]) == []


def test_a_directory_carries_the_tokenizer(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded == tokenizer
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(["the mat"])[0].tolist() == tokenizer.encode(["the mat"])[0].tolist()
    assert json.loads((tmp_path / "tokenizer" / "special_tokens_map.json").read_text()) == {"eos_token": END_OF_TEXT}


def test_truncation_and_padding_of_a_file_do_not_cut_text(tokenizer):
    data = json.loads(tokenizer.vocabulary)
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    other = Tokenizer(json.dumps(data), tokenizer.special)
    assert other.decode(other.encode(["longer than four tokens"])[0]) == "longer than four tokens"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("special_tokens_map.json", "[1, 2]"),
        ("special_tokens_map.json", '{"eos_token": 1}'),
        ("special_tokens_map.json", "\udcff"),
        ("tokenizer.json", '{"version": "1.0"'),
        ("tokenizer.json", None),
    ],
)
def test_bad_files_are_named(tmp_path, name, text):
    byte_tokenizer().save(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=rf"^{tmp_path}/{name}: [^\n]*$"):
        Tokenizer.load(tmp_path)


def test_a_role_that_no_token_has():
    with pytest.raises(DataError, match=r"^tokenizer: it has no pad_token"):
        byte_tokenizer().special_id("pad_token")


def test_normalizers_without_measure_are_refused(tokenizer):
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    data = json.loads(tokenizer.vocabulary)

    def made(times):
        data["normalizer"] = {
            "type": "Sequence",
            "normalizers": [{"type": "Sequence", "normalizers": [double] * times}],
        }
        return Tokenizer(json.dumps(data), tokenizer.special)

    assert made(2).decode(made(2).encode(["a"])[0]) == "aaaa"
    with pytest.raises(DataError, match=r"normalizer: makes texts up to 1.72e\+10 times as long"):
        made(34).backend  # noqa: B018


def test_a_vocabulary_beyond_memory_is_refused(monkeypatch):
    """The library would end the process."""
    monkeypatch.setenv("HEADJAX_MEMORY", "1G")
    with pytest.raises(ConfigError, match=r"^vocab_size: 1,000,000,000 tokens take at least 37 GB"):
        train_bpe(TEXTS, 10**9)


def made(tokenizer, **parts):
    return Tokenizer(json.dumps(json.loads(tokenizer.vocabulary) | parts), tokenizer.special)


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("tokenizer.json", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AQID"}}),
        ("tokenizer.json: normalizer", {"normalizer": {"type": "Prepend", "prepend": "x" * 2_000_000}}),
        ("tokenizer: ", {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}}),
        ("tokenizer: ", {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}),
        (
            "tokenizer: ",
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
        ),
    ],
)
def test_what_the_library_cannot_do_is_one_line(field, parts):
    """A panic of the library is no `Exception`, and a text before every text takes the time of its length."""
    with pytest.raises(DataError, match=f"^{field}[^\n]*$"):
        made(byte_tokenizer(), **parts).encode(["a" * 30 + "b"])


def test_one_text_is_encoded_as_one_of_several(tokenizer):
    ids = tokenizer.encode("the mat")
    assert ids.dtype == np.int32
    assert ids.tolist() == tokenizer.encode(["the mat"])[0].tolist() == tokenizer.prompt_ids("the mat")
    assert tokenizer.prompt_ids(END_OF_TEXT) == [tokenizer.special_id("eos_token")]


def test_impossible_requests():
    with pytest.raises(ConfigError, match=r"^vocab_size: must be at least 257"):
        train_bpe(TEXTS, 256)
    with pytest.raises(DataError, match=r"^texts\[1\]: character 1 is half of a pair \(U\+DC80\)"):
        byte_tokenizer().encode(["a", "b\udc80"])


def test_bytes_are_their_own_ids():
    text = "".join(map(chr, range(300))) + "日本"
    tokenizer = byte_tokenizer()
    assert tokenizer.encode([text])[0].tolist() == list(text.encode())
    assert tokenizer.vocab_size == 257
    assert tokenizer.special_id("eos_token") == 256


def test_bpe_learns_merges_the_same_each_time():
    first, second = train_bpe(TEXTS, 280), train_bpe(TEXTS, 280)
    assert first == second
    assert first.fingerprint == second.fingerprint
    assert first.vocab_size == 280
    assert len(first.encode(["the cat sat"])[0]) < len("the cat sat")
    others = {train_bpe(TEXTS, 281).fingerprint, train_bpe(["another text, " * 4], 260).fingerprint}
    assert len({first.fingerprint, byte_tokenizer().fingerprint, *others}) == 4


def test_a_text_of_n_bytes_has_at_most_n_tokens_beside_the_bytes():
    """Found before anything is learned: the library reserves room for all tokens that are asked for."""
    with pytest.raises(DataError, match=r"^vocab_size: the text yields at most 262 tokens, not 263; lower vocab_size"):
        train_bpe(["aé", "bc"], 263)
    with pytest.raises(DataError, match=r"^vocab_size: the text yields only \d+ tokens, not 262"):
        train_bpe(["aé", "bc"], 262)
