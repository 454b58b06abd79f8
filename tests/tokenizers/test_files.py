"""Tokenizers of Hugging Face directories: everything counts as `AutoTokenizer` of `transformers` counts it."""

import json
import subprocess
import sys

import numpy as np
import pytest

import headjax
from headjax.data.examples import encode_sequences
from headjax.tokenizers.files import open_tokenizer, write_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.tokenizers.directories import (
    DIRECTORIES,
    PIECES,
    TEXTS,
    auto,
    bytes_json,
    describe,
    spaced,
    two_files,
    wordpiece_json,
    wordpieces,
)


def assert_alike(ours, theirs):
    """Asserts equal tokens, special tokens, sides and limits."""
    for text in TEXTS:
        assert ours.prompt_ids(text, template=False) == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.prompt_ids(text) == theirs(text)["input_ids"], text
        assert ours.prompt_backend.encode(text, TEXTS[0]).ids == theirs(text, TEXTS[0])["input_ids"], text
    assert dict(ours.special) == theirs.special_tokens_map
    assert ours.config["extra_special_tokens"] == theirs.extra_special_tokens
    assert ours.max_length == (theirs.model_max_length if theirs.model_max_length < 10**9 else None)
    assert (ours.truncation_side, ours.config["padding_side"]) == (theirs.truncation_side, theirs.padding_side)


def settings_of(folder, **settings):
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def assert_read_and_written_alike(folder):
    """Asserts that a directory is read as it is there, and again from what is written, under any `model_type`."""
    ours, theirs = headjax.read_tokenizer(folder), auto(folder)
    assert_alike(ours, theirs)
    for model_type in (json.loads((folder / "config.json").read_text())["model_type"], "headjax_decoder"):
        out = folder / model_type
        write_tokenizer(ours, out)
        (out / "config.json").write_text(json.dumps({"model_type": model_type}))
        again = auto(out)
        assert_alike(ours, again)
        assert {*again.all_special_tokens} == {*theirs.all_special_tokens}
        assert again.chat_template == theirs.chat_template
        assert headjax.read_tokenizer(out) == ours
    return ours


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_every_family_is_read_as_transformers_reads_it(tmp_path, kind):
    DIRECTORIES[kind](tmp_path)
    ours = assert_read_and_written_alike(tmp_path)
    ours.save(tmp_path / "kept")
    assert headjax.Tokenizer.load(tmp_path / "kept") == ours


LAST = {"content": "[ENT]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
WORD = LAST | {"content": "<x>", "special": False, "single_word": True, "lstrip": False}
SETTINGS = {
    "case": {"do_lower_case": False},
    "characters": {"tokenize_chinese_chars": False},
    "accents": {"strip_accents": True, "do_lower_case": False},
    "prefix": {"add_prefix_space": True},
    "no prefix": {"add_prefix_space": False},
    "ends": {"add_bos_token": True, "add_eos_token": True},
    "additional": {"additional_special_tokens": ["[ENT]", "<x>"]},
    "objects": {"additional_special_tokens": [LAST | {"__type": "AddedToken"}]},
    "extra": {"extra_special_tokens": ["<x>", "[ENT]"]},
    "named extra": {"extra_special_tokens": {"entity_token": "[ENT]"}},
    "named": {"entity_token": "[ENT]"},
    "a mask of its own": {"mask_token": {"__type": "AddedToken", **LAST, "content": "<mask>"}},
    "sides": {"truncation_side": "left", "padding_side": "left", "model_max_length": 9},
    "no limit": {"model_max_length": 1e30, "chat_template": "{{ messages[0].content }}"},
    "no types": {"model_input_names": ["input_ids", "attention_mask"]},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["bert vocab.txt", "bert of a generic class", "gpt2 two files", "llama", "qwen3"])
def test_settings_count_as_there(tmp_path, kind, settings):
    DIRECTORIES[kind](tmp_path)
    settings_of(tmp_path, **SETTINGS[settings])
    assert_read_and_written_alike(tmp_path)


def test_added_tokens_are_those_of_the_companion_files(tmp_path):
    wordpieces(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ENT]": len(PIECES), "<x>": len(PIECES) + 1}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<x>"]}))
    assert assert_read_and_written_alike(tmp_path).encode("[ENT] sat").tolist() == [len(PIECES), 8]
    settings_of(tmp_path, added_tokens_decoder={str(len(PIECES)): LAST, str(len(PIECES) + 1): WORD})
    assert_read_and_written_alike(tmp_path)


def test_padding_and_truncation_of_the_file_are_sides_alone(tmp_path):
    wordpiece_json(kind="PreTrainedTokenizerFast", processor=True)(tmp_path)
    file = tmp_path / "tokenizer.json"
    truncation = {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
    parts = {"truncation": truncation, "padding": padding | {"pad_token": "[PAD]"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    ours = assert_read_and_written_alike(tmp_path)
    assert len(ours.encode("the cat sat the cat sat")) == 6
    theirs = auto(tmp_path)
    texts = ["the cat sat", "cat sat the cat sat the cat sat"]
    cut = theirs(texts, truncation=True, max_length=7)
    expected = theirs.pad(cut, padding=True, pad_to_multiple_of=8, return_tensors="np")
    found = headjax.text_batch(ours, texts, max_length=7)
    assert found["input_ids"].shape == (2, 8)
    assert not found.pop("token_type_ids").any()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def test_examples_are_cut_on_their_side(tmp_path):
    wordpieces(tmp_path, truncation_side="left")
    text, pair = "the cat sat the cats", "sat the"
    theirs, ours = auto(tmp_path), headjax.read_tokenizer(tmp_path)
    for second in (None, pair):
        expected = theirs(text, second, truncation=True, max_length=6)["input_ids"]
        assert encode_sequences(ours, [text], second and [second], max_length=6)["input_ids"][0].tolist() == expected


def test_a_model_without_types_reads_both_texts_of_a_pair_as_one(tmp_path):
    wordpieces(tmp_path)
    for names, total in ((["input_ids", "token_type_ids"], 2), (["input_ids", "attention_mask"], 0)):
        settings_of(tmp_path, model_input_names=names)
        ours, theirs = headjax.read_tokenizer(tmp_path), auto(tmp_path)
        found = headjax.text_batch(ours, ["the cat"], ["sat"])["token_type_ids"]
        assert found.sum() == sum(theirs("the cat", "sat").get("token_type_ids", [])) == total


def test_wordpieces_of_a_file_by_itself(tmp_path):
    """Its pieces show whether letters lose their case."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    assert headjax.text_batch(open_tokenizer(str(tmp_path / "vocab.txt")), ["Cat the"])["input_ids"][
        0, 1:3
    ].tolist() == [9, 5]
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES[:9]))
    lowered = wordpiece_tokenizer(tmp_path / "vocab.txt")
    batch = headjax.text_batch(lowered, ["The Cats sat", "cat"], ["sat", "the dog"])
    assert batch["input_ids"].tolist() == [[2, 5, 6, 7, 8, 3, 8, 3], [2, 6, 3, 5, 1, 3, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]]
    for lines, said in (([*PIECES, "the"], f"line {len(PIECES) + 1}: "), (PIECES[:3], r"no \[MASK\]")):
        (tmp_path / "vocab.txt").write_text("\n".join(lines))
        with pytest.raises(headjax.DataError, match=rf"^{tmp_path}/vocab.txt: {said}"):
            wordpiece_tokenizer(tmp_path / "vocab.txt")


def test_texts_that_are_no_batch():
    for texts, pairs, field in (("the cat", None, "texts"), ([], None, "texts"), (["the", "cat"], ["sat"], "pairs")):
        with pytest.raises(headjax.DataError, match=f"^{field}: "):
            headjax.text_batch(headjax.byte_tokenizer(), texts, pairs)
    batch = headjax.text_batch(headjax.byte_tokenizer(), ["ab", "c"])
    assert batch["input_ids"].tolist() == [[97, 98, 0, 0, 0, 0, 0, 0], [99, 0, 0, 0, 0, 0, 0, 0]]


def test_folders_that_a_tokenizer_is_opened_from(tmp_path):
    headjax.byte_tokenizer().save(tmp_path / "model" / "tokenizer")
    assert open_tokenizer(str(tmp_path / "model")) == headjax.byte_tokenizer()
    assert open_tokenizer(str(tmp_path / "model" / "tokenizer")).prompt_ids("ab") == [97, 98]
    with pytest.raises(headjax.DataError, match=f"^{tmp_path}: no tokenizer there$"):
        open_tokenizer(str(tmp_path))
    assert headjax.read_tokenizer(tmp_path) is None


def code_of_the_directory(folder):
    wordpieces(folder, "mine", "MyTokenizer", auto_map={"AutoTokenizer": ["mine.MyTokenizer", None]})
    (folder / "mine.py").write_text("raise SystemExit('run')")


def files_of_another_class(folder):
    headjax.byte_tokenizer().save(folder)
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    describe(folder, "bert")


JSON = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
BROKEN = [
    *((wordpieces, name, "{", f"/{name}: not JSON") for name in JSON),
    *((wordpieces, name, "[]", f"/{name}: not a JSON object") for name in JSON[:2]),
    (wordpiece_json(), "tokenizer.json", "{", "/tokenizer.json: not JSON"),
    (wordpiece_json(), "tokenizer.json", "{}", ": AutoTokenizer of transformers: .*tokenizer.json"),
    (bytes_json("gpt2"), "tokenizer.json", '{"added_tokens": []}', ": AutoTokenizer of transformers: "),
    (two_files("gpt2"), "vocab.json", "[1]", ": AutoTokenizer of transformers: "),
    (spaced("vit"), "tokenizer.json", '{"added_tokens": [], "model": {"type": "BPE"}}', ": AutoTokenizer of "),
    (code_of_the_directory, "notes.txt", "", ": its tokenizer is code of the directory, which is not run; "),
    (files_of_another_class, "notes.txt", "", ": BertTokenizer of transformers reads .*vocab.txt"),
    (lambda folder: wordpieces(folder, "bert", "BertJapaneseTokenizer"), "notes.txt", "", ": BertJapaneseTokenizer "),
]


@pytest.mark.parametrize(("make", "name", "text", "said"), BROKEN)
def test_what_cannot_be_read_is_one_line(tmp_path, make, name, text, said):
    make(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(headjax.HeadjaxError, match=rf"^{tmp_path}{said}[^\n]*$"):
        headjax.read_tokenizer(tmp_path)


SAVED = [
    ("special_tokens_map.json", "[1, 2]"),
    ("special_tokens_map.json", "\udcff"),
    ("tokenizer_config.json", "[]"),
    ("tokenizer.json", '{"version": "1.0"'),
    ("tokenizer.json", None),
]


@pytest.mark.parametrize(("name", "text"), SAVED)
def test_a_broken_file_of_a_saved_tokenizer_is_named(tmp_path, name, text):
    headjax.byte_tokenizer().save(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(headjax.DataError, match=rf"^{tmp_path}/{name}: [^\n]*$"):
        headjax.Tokenizer.load(tmp_path)


def test_the_demo_and_saved_models_need_no_transformers(tmp_path):
    code = f"""
import sys, headjax
model = headjax.demo_model()
headjax.to_huggingface(model, {str(tmp_path / "exported")!r})
model.save({str(tmp_path / "saved")!r})
loaded = headjax.load({str(tmp_path / "saved")!r})
assert loaded.tokenizer == model.tokenizer
headjax.generate(loaded, "def f(", max_new_tokens=2)
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
