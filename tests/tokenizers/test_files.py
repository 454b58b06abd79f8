"""Tokenizers of Hugging Face directories, and texts as batches."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.examples import text_batch
from headjax.tokenizers.files import read_tokenizer, write_tokenizer
from headjax.tokenizers.learned import byte_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "Cat"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return tmp_path


def test_wordpiece_from_its_vocabulary(folder):
    tokenizer = read_tokenizer(folder)
    batch = text_batch(tokenizer, ["The cats sat", "cat"], ["sat", "the dog"])
    assert batch["input_ids"].tolist() == [[2, 5, 6, 7, 8, 3, 8, 3], [2, 6, 3, 5, 1, 3, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 6 + [0] * 2]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_cased_vocabularies(folder):
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert text_batch(read_tokenizer(folder), ["Cat the"])["input_ids"].tolist() == [[2, 9, 5, 3, 0, 0, 0, 0]]
    (folder / "tokenizer_config.json").write_text('{"strip_accents": false}')
    with pytest.raises(DataError, match=r"tokenizer_config\.json: strip_accents is False; save the tokenizer as"):
        read_tokenizer(folder)


def test_long_texts_are_cut(folder):
    tokenizer = read_tokenizer(folder)
    batch = text_batch(tokenizer, ["the cat sat the cat sat"], ["sat"], max_length=6)
    assert batch["input_ids"][0, :6].tolist() == [2, 5, 6, 3, 8, 3]
    assert batch["attention_mask"].sum() == 6


def test_roles_come_from_both_files(folder):
    read_tokenizer(folder).save(folder)
    special = {"cls_token": {"content": "[CLS]", "lstrip": False}, "additional_special_tokens": ["x"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "cls_token": "the", "x": None}))
    tokenizer = read_tokenizer(folder)
    assert tokenizer.special == (("cls_token", "[CLS]"), ("pad_token", "[PAD]"))


def test_what_is_written_is_read(folder, tmp_path):
    tokenizer = read_tokenizer(folder)
    write_tokenizer(tokenizer, tmp_path / "out", 12)
    assert read_tokenizer(tmp_path / "out") == tokenizer
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 12


def test_vocabularies_without_padding(tmp_path):
    batch = text_batch(byte_tokenizer(), ["ab", "c"])
    assert batch["input_ids"].tolist() == [[97, 98, 0, 0, 0, 0, 0, 0], [99, 0, 0, 0, 0, 0, 0, 0]]
    assert batch["attention_mask"].sum() == 3
    assert read_tokenizer(tmp_path) is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_files_are_named(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=name):
        read_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink(os.path.basename(path), path)])
def test_what_is_no_file_is_named(tmp_path, name, make):
    """A folder, a pipe nobody writes to, a link to itself."""
    make(tmp_path / name)
    with pytest.raises(DataError, match=f"^{tmp_path}/{name}: "):
        read_tokenizer(tmp_path)


def test_bad_batches(folder):
    tokenizer = read_tokenizer(folder)
    for texts in ("the cat", []):
        with pytest.raises(DataError, match="texts: expected a list"):
            text_batch(tokenizer, texts)
    with pytest.raises(DataError, match="pairs: there are 1 for 2 texts"):
        text_batch(tokenizer, ["the", "cat"], ["sat"])
