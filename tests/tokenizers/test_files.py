"""Tokenizers of Hugging Face directories, from every vocabulary that families have, and texts as batches."""

import json

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.examples import encode_sequences, text_batch
from headjax.tokenizers.files import read_tokenizer, write_tokenizer
from headjax.tokenizers.learned import byte_tokenizer, train_bpe
from headjax.tokenizers.tokenizer import END_OF_TEXT, Tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer

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
    cut = text_batch(tokenizer, ["the cat sat the cat sat"], ["sat"], max_length=6)
    assert cut["input_ids"].tolist() == [[2, 5, 6, 3, 8, 3, 0, 0]]
    for texts, pairs, field in (("the cat", None, "texts"), ([], None, "texts"), (["the", "cat"], ["sat"], "pairs")):
        with pytest.raises(DataError, match=f"^{field}: "):
            text_batch(tokenizer, texts, pairs)


def test_cased_vocabularies(folder):
    """A directory says whether its vocabulary is lower-cased; a file by itself shows it."""
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    for tokenizer in (read_tokenizer(folder), wordpiece_tokenizer(folder / "vocab.txt")):
        assert text_batch(tokenizer, ["Cat the"])["input_ids"].tolist() == [[2, 9, 5, 3, 0, 0, 0, 0]]
    (folder / "vocab.txt").write_text("\n".join(PIECES[:-1]))
    lowered = wordpiece_tokenizer(folder / "vocab.txt")
    assert text_batch(lowered, ["Cat the"])["input_ids"].tolist() == [[2, 6, 5, 3, 0, 0, 0, 0]]


def test_roles_come_from_both_files_and_what_is_written_is_read(folder, tmp_path):
    read_tokenizer(folder).save(folder)
    special = {"cls_token": {"content": "[CLS]", "lstrip": False}, "additional_special_tokens": ["x"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "cls_token": "the", "x": None}))
    tokenizer = read_tokenizer(folder)
    assert tokenizer.special == (("cls_token", "[CLS]"), ("pad_token", "[PAD]"))
    write_tokenizer(tokenizer, tmp_path / "out", 12, segments=True)
    assert read_tokenizer(tmp_path / "out") == tokenizer
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 12


def test_vocabularies_without_padding(tmp_path):
    batch = text_batch(byte_tokenizer(), ["ab", "c"])
    assert batch["input_ids"].tolist() == [[97, 98, 0, 0, 0, 0, 0, 0], [99, 0, 0, 0, 0, 0, 0, 0]]
    assert batch["attention_mask"].sum() == 3
    assert read_tokenizer(tmp_path) is None


TEXTS = ["the cat sat on the mat, the cat's hat", " été à la plage 日本語\n\n"] * 3


def write_files(folder, family):
    """The two files with a vocabulary learned from `TEXTS`, special tokens where the family has them."""
    model = json.loads(train_bpe(TEXTS, 290).vocabulary)["model"]
    tokens = [token for token in sorted(model["vocab"], key=model["vocab"].get) if token != END_OF_TEXT]
    special = [END_OF_TEXT] if family == "gpt2" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = [*tokens, *special] if family == "gpt2" else [*special, *tokens]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder


@pytest.mark.parametrize("family, special", [("gpt2", 0), ("roberta", 4), ("bart", 4)])
def test_two_files_are_a_tokenizer(tmp_path, family, special):
    tokenizer = read_tokenizer(write_files(tmp_path, family))
    texts = ["the cat sat", "plage <s> 日本語"]
    halves = [ids.tolist() for ids in tokenizer.encode(texts)]
    assert [tokenizer.decode(ids) for ids in halves] == texts
    assert len(halves[0]) < len(texts[0])
    if special:
        start, end = (tokenizer.special_id(role) for role in ("cls_token", "sep_token"))
        ids = encode_sequences(tokenizer, texts[:1], texts[1:], max_length=64).ids[0].tolist()
        assert ids == [start, *halves[0], end, end, *halves[1], end]
    else:
        assert encode_sequences(tokenizer, texts, max_length=64).ids[1].tolist() == halves[1]
        assert tokenizer.special_id("eos_token") == tokenizer.vocab_size - 1
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')  # to which they mean something else
    assert read_tokenizer(tmp_path) is None


def of_bytes(folder):
    byte_tokenizer().save(folder)


def of_gpt2(folder):
    write_files(folder, "gpt2")


def of_wordpieces(folder):
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")


JSON = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
BROKEN = [
    *((of_wordpieces, read_tokenizer, name, text, "") for name in JSON for text in ("{", "[]")),
    (of_wordpieces, read_tokenizer, "tokenizer_config.json", '{"word_tokenizer_type": "mecab"}', "word_tokenizer_type"),
    (of_wordpieces, read_tokenizer, "tokenizer_config.json", '{"do_basic_tokenize": false}', "do_basic_tokenize"),
    (of_wordpieces, read_tokenizer, "vocab.txt", "\n".join([*PIECES, "the"]), "line 11: "),
    (of_wordpieces, read_tokenizer, "vocab.txt", "\n".join(PIECES[:3]), r".*\[MASK\]"),
    (of_bytes, Tokenizer.load, "special_tokens_map.json", "[1, 2]", ""),
    (of_bytes, Tokenizer.load, "special_tokens_map.json", "\udcff", ""),
    (of_bytes, Tokenizer.load, "tokenizer.json", '{"version": "1.0"', ""),
    (of_bytes, Tokenizer.load, "tokenizer.json", None, ""),
    (of_gpt2, read_tokenizer, "tokenizer_config.json", '{"add_bos_token": true}', "add_bos_token is True"),
    (of_gpt2, read_tokenizer, "vocab.json", "[]", ""),
    (of_gpt2, read_tokenizer, "vocab.json", '{"a": 0}', "no <.endoftext.>"),
    (of_gpt2, read_tokenizer, "merges.txt", "a b\nabc\n", ""),
]


@pytest.mark.parametrize(("make", "read", "name", "text", "said"), BROKEN)
def test_a_broken_file_is_named(tmp_path, make, read, name, text, said):
    make(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=rf"^{tmp_path}/{name}: {said}[^\n]*$"):
        read(tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize("family, name", [("gpt2", "GPT2Tokenizer"), ("roberta", "RobertaTokenizer")])
def test_directories_read_as_transformers_reads_them(tmp_path, data_dir, family, name):
    import transformers

    write_files(tmp_path, family)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)
    texts = (data_dir / "lm" / "wikitext-2-raw" / "wiki.valid.raw").read_text(encoding="utf-8").split("\n")[:500]
    texts = [text for text in texts if text]
    second = texts[::-1] if family == "roberta" else None
    found = encode_sequences(ours, texts, second, max_length=100_000)
    assert [ids.tolist() for ids in found.ids] == theirs(texts, second)["input_ids"]
