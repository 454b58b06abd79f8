"""Directories whose tokenizer more than one file describes, against `AutoTokenizer`."""

import importlib.util
import json

import pytest

from headjax.core.errors import DataError
from headjax.data.examples import text_batch
from headjax.tokenizers.files import read_tokenizer, write_tokenizer
from tests.tokenizers.test_files import PIECES as FEW
from tests.tokenizers.test_files import write_files

parity = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra"),
]

PIECES = [*FEW, "人", "有", "##有", "été", "ete"]
TEXTS = ["The cats sat", "Cat 人有 été", "the [ENT] cat <x> sat", " the\tété[ENT]", "<x>cat", "sat <mask> on the mat"]


def wordpieces(folder):
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def of_class(kind, model_type, make):
    """`tokenizer.json` of files, read as this class."""

    def written(folder):
        make(folder)
        read_tokenizer(folder).save(folder)
        for name in ("vocab.txt", "vocab.json", "merges.txt"):
            (folder / name).unlink(missing_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind} if kind else {}))

    return written


def llama(folder):
    """Pairs that fall back to bytes, with a space before every text, as Llama 2's file has it."""
    from tokenizers import Tokenizer, models, normalizers, processors

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcehimnostT", "▁t", "▁s", "at"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("▁", "s"), ("a", "t")]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def gpt2(folder):
    write_files(folder, "gpt2")


def roberta(folder):
    write_files(folder, "roberta")


DIRECTORIES = {
    "vocab.txt": wordpieces,
    "BertTokenizer": of_class("BertTokenizer", "bert", wordpieces),
    "bert without a class": of_class(None, "bert", wordpieces),
    "PreTrainedTokenizerFast of pieces": of_class("PreTrainedTokenizerFast", "bert", wordpieces),
    "GPT-2's files": gpt2,
    "RoBERTa's files": roberta,
    "GPT2Tokenizer": of_class("GPT2TokenizerFast", "gpt2", gpt2),
    "RobertaTokenizer": of_class("RobertaTokenizer", "roberta", roberta),
    "LlamaTokenizer": llama,
    "PreTrainedTokenizerFast of bytes": of_class("PreTrainedTokenizerFast", "gpt2", gpt2),
}
LAST = {"content": "[ENT]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
WORD = LAST | {"content": "<x>", "special": False, "single_word": True, "lstrip": False}
CONFIGS = {
    "nothing": {},
    "case": {"do_lower_case": False},
    "characters": {"tokenize_chinese_chars": False},
    "accents kept": {"strip_accents": False},
    "accents": {"strip_accents": True, "do_lower_case": False},
    "prefix": {"add_prefix_space": True},
    "no prefix": {"add_prefix_space": False},
    "legacy": {"legacy": True, "added_tokens_decoder": {0: LAST}},
    "decoder": {"added_tokens_decoder": {0: LAST, 1: WORD}},
    "additional": {"additional_special_tokens": ["[ENT]", "<x>"]},
    "objects": {"additional_special_tokens": [LAST | {"__type": "AddedToken"}]},
    "extra": {"extra_special_tokens": ["<x>", "[ENT]"]},
    "named extra": {"extra_special_tokens": {"entity_token": "[ENT]"}},
    "named": {"entity_token": "[ENT]"},
    "a mask of its own": {"mask_token": {"__type": "AddedToken", **LAST, "content": "<mask>"}},
    "no types": {"model_input_names": ["input_ids", "attention_mask"]},
}


def directory(folder, kind, settings):
    """Writes a directory; ids of added tokens count from the end of its vocabulary."""
    DIRECTORIES[kind](folder)
    size = read_tokenizer(folder).vocab_size
    settings = dict(settings)
    if "added_tokens_decoder" in settings:
        decoder = settings["added_tokens_decoder"]
        settings["added_tokens_decoder"] = {str(size + number): token for number, token in decoder.items()}
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(config | settings))
    return size


def assert_as_there(folder, ours, types):
    """Asserts equal tokens; `types` says that the class of `transformers` is told whether it gives types."""
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.prompt_ids(text, template=False) == plain, text
        assert ours.prompt_ids(text) == theirs(text)["input_ids"], text
        if not any(token in text for _, token in ours.special):  # which texts of examples do not spell
            assert ours.encode(text).tolist() == plain, text
    found = theirs(TEXTS[0], TEXTS[1])
    if json.loads(ours.vocabulary)["post_processor"] and (types or "token_type_ids" in found):
        pair = text_batch(ours, TEXTS[:1], TEXTS[1:2])
        expected = found.get("token_type_ids", [0] * len(found["input_ids"]))
        assert pair["token_type_ids"][0, : len(expected)].tolist() == expected


@pytest.mark.parametrize("settings", CONFIGS)
@pytest.mark.parametrize("kind", DIRECTORIES)
class TestGrid:
    pytestmark = parity

    def test_directories_are_read_as_transformers_reads_them(self, tmp_path, kind, settings):
        directory(tmp_path, kind, CONFIGS[settings])
        ours = read_tokenizer(tmp_path)
        assert_as_there(tmp_path, ours, "model_input_names" in CONFIGS[settings])
        write_tokenizer(ours, tmp_path / "out", segments=True)
        assert_as_there(tmp_path / "out", ours, True)


def test_tokens_behind_the_vocabulary(tmp_path):
    size = directory(tmp_path, "vocab.txt", {"additional_special_tokens": ["<x>"]})
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ENT]": size}))
    assert read_tokenizer(tmp_path).encode("[ENT] sat <x>").tolist() == [size, 8, size + 1]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ENT]": size + 1}))
    with pytest.raises(DataError, match=rf"tokenizer_config.json: '\[ENT\]' has the id {size + 1}"):
        read_tokenizer(tmp_path)


def test_settings_count_over_tokenizer_json(tmp_path):
    directory(tmp_path, "BertTokenizer", {"do_lower_case": False, "tokenize_chinese_chars": False})
    assert read_tokenizer(tmp_path).encode("Cat 人有").tolist() == [9, 10, 12]


def test_a_model_without_types_reads_both_texts_of_a_pair_as_one(tmp_path):
    directory(tmp_path, "vocab.txt", {"model_input_names": ["input_ids", "attention_mask"]})
    assert text_batch(read_tokenizer(tmp_path), ["the cat"], ["sat"])["token_type_ids"].sum() == 0
