"""Every kind of export of every family: `AutoTokenizer` reads it as it reads the directory that the model came from."""

import json
import shutil

import pytest

import headjax
from tests.hub.directories import CONFIGS, model_of
from tests.selected import first
from tests.tokenizers.directories import DIRECTORIES, PIECES, TEXTS, auto, wordpieces

TOKENS = 420
"""More than every vocabulary has."""
KINDS = [
    "bert vocab.txt", "bert without a post-processor", "modernbert", "xlm-roberta", "t5", "gpt2 two files",
    "qwen2 without a class", "llama", "gemma3_text",
]  # fmt: skip
"""One for each way in which families write their tokenizers; the others wait for `make test-slow`."""


def original(folder, write):
    """A directory of a family with the tokenizer that `write` writes."""
    files = folder / "files"
    files.mkdir()
    write(files)
    family = json.loads((files / "config.json").read_text())["model_type"]
    place = folder / "original"
    longer = {"n_positions": 40} if family == "gpt2" else {}
    headjax.to_huggingface(model_of(CONFIGS[family] | {"vocab_size": TOKENS} | longer), place, family=family)
    for file in files.iterdir():
        if file.name != "config.json":
            shutil.copy(file, place)
    return place


def assert_reads_alike(folder, before, kept=None, **options):
    """Asserts equal ids, renumbered where tokens were left out, and equal special tokens, sides and limits."""
    ours, theirs = auto(folder, **options), auto(before)
    for text in TEXTS:
        for special in (False, True):
            found = ours(text, add_special_tokens=special)["input_ids"]
            expected = theirs(text, add_special_tokens=special)["input_ids"]
            assert ([kept[token] for token in found] if kept else found) == expected, text
    found, expected = (each(TEXTS[0], TEXTS[1]) for each in (ours, theirs))
    assert found.keys() == expected.keys()
    assert kept or found["input_ids"] == expected["input_ids"]
    for name in ("special_tokens_map", "truncation_side", "padding_side", "model_max_length", "chat_template"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert {*ours.all_special_tokens} == {*theirs.all_special_tokens}


@pytest.mark.parametrize("kind", first(len(KINDS), [*KINDS, *(kind for kind in DIRECTORIES if kind not in KINDS)]))
def test_exports_are_read_as_the_original(tmp_path, kind):
    before = original(tmp_path, DIRECTORIES[kind])
    model = headjax.from_huggingface(before)
    headjax.to_huggingface(model, tmp_path / "same")
    names = {file.name for file in before.iterdir()}
    assert {file.name for file in (tmp_path / "same").iterdir()} == names
    for name in names:
        assert (tmp_path / "same" / name).read_bytes() == (before / name).read_bytes()
    stack = next(iter(model.config.stacks()))
    pruned = headjax.prune(model, [f"{stack}/0/1"])
    headjax.to_huggingface(pruned, tmp_path / "padded", "padded")
    assert_reads_alike(tmp_path / "padded", before)
    pruned.save(tmp_path / "saved")
    found = headjax.to_huggingface(headjax.load(tmp_path / "saved"), tmp_path / "auto")
    assert_reads_alike(tmp_path / "auto", before)
    again = headjax.from_huggingface(tmp_path / "auto")
    assert [again.tokenizer.prompt_ids(text) for text in TEXTS] == [model.tokenizer.prompt_ids(text) for text in TEXTS]
    if found.layout == "remote":
        headjax.to_huggingface(
            again, tmp_path / "back", "padded", family=json.loads((before / "config.json").read_text())["model_type"]
        )
        assert_reads_alike(tmp_path / "back", before)
    if isinstance(model.config, headjax.EncoderConfig | headjax.DecoderConfig):
        trimmed = headjax.trim_vocabulary(model, TEXTS)
        headjax.to_huggingface(trimmed, tmp_path / "trimmed")
        assert_reads_alike(tmp_path / "trimmed", before, kept=trimmed.history[-1]["kept"])


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["bert without a post-processor", "llama legacy"])
def test_code_that_is_trusted_changes_nothing(tmp_path, kind):
    before = original(tmp_path, DIRECTORIES[kind])
    model = headjax.from_huggingface(before)
    assert headjax.to_huggingface(model, tmp_path / "remote", "remote").layout == "remote"
    assert_reads_alike(tmp_path / "remote", before, trust_remote_code=True)


def test_a_family_that_has_its_own_class_for_every_tokenizer_is_told(tmp_path):
    before = original(tmp_path, DIRECTORIES["qwen3"])
    qwen, llama = headjax.from_huggingface(before).tokenizer, DIRECTORIES["llama"]
    model = model_of(CONFIGS["qwen2"] | {"vocab_size": TOKENS}).replace(tokenizer=qwen)
    assert not headjax.to_huggingface(model, tmp_path / "qwen", family="qwen2").notes
    llama(tmp_path / "files")
    spaced = headjax.read_tokenizer(tmp_path / "files")
    (note,) = headjax.to_huggingface(model.replace(tokenizer=spaced), tmp_path / "spaced", family="qwen2").notes
    assert "PreTrainedTokenizerFast" in note
    assert auto(tmp_path / "spaced")(TEXTS[0])["input_ids"] != spaced.prompt_ids(TEXTS[0])


def test_checkpoints_of_maxtext_keep_the_tokenizer(tmp_path):
    before = original(tmp_path, DIRECTORIES["llama"])
    headjax.to_huggingface(headjax.from_huggingface(before), tmp_path / "maxtext", "maxtext")
    assert_reads_alike(tmp_path / "maxtext", before)


def test_settings_and_added_tokens_stay(tmp_path):
    def write(folder):
        extra = {"additional_special_tokens": ["[ENT]"], "chat_template": "{{ messages }}", "model_max_length": 7}
        wordpieces(folder, truncation_side="left", padding_side="left", do_lower_case=False, **extra)
        (folder / "added_tokens.json").write_text(json.dumps({"<x>": len(PIECES)}))

    before = original(tmp_path, write)
    model = headjax.from_huggingface(before)
    for layout in ("remote", "padded"):
        headjax.to_huggingface(headjax.prune(model, ["encoder/0/1"]), tmp_path / layout, layout)
        assert_reads_alike(tmp_path / layout, before)
    headjax.to_huggingface(headjax.trim_vocabulary(model, TEXTS), tmp_path / "trimmed")
    assert auto(tmp_path / "trimmed").truncation_side == "left"
    assert not (tmp_path / "trimmed" / "vocab.txt").exists()
