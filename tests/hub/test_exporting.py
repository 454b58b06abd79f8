"""Writing directories: what is kept of a config from before, what is refused, and the check."""

import json

import pytest

import headjax
from tests import tiny
from tests.closeness import close_to
from tests.command_line import main
from tests.hub.directories import (
    BERT,
    CONFIGS,
    LLAMA,
    RAGGED,
    max_difference,
    model_of,
    refused_export,
    rewrite,
    rounding,
)


def test_fields_that_mean_nothing_here_survive(bert, tmp_path):
    """Names of labels and tokens come back, unless what is written contradicts them."""
    headjax.to_huggingface(bert, tmp_path / "one")
    names = {"0": "no", "1": "maybe", "2": "yes"}
    rewrite(tmp_path / "one", id2label=names, sep_token_id=7, dtype="float64", torch_dtype="float64")
    headjax.to_huggingface(headjax.from_huggingface(tmp_path / "one"), tmp_path / "two")
    fields = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (fields["id2label"], fields["sep_token_id"], fields["dtype"]) == (names, 7, "float32")
    assert "torch_dtype" not in fields


def test_second_names_of_sizes_are_read_by_transformers_and_do_not_survive(tmp_path):
    headjax.to_huggingface(model_of(CONFIGS["t5"]), tmp_path / "one", family="t5")
    rewrite(tmp_path / "one", num_attention_heads=4, use_cache=False)
    layers = [f"{stack}/{layer}" for stack in ("encoder", "decoder", "cross") for layer in (0, 1)]
    gone = [f"{layer}/{head}" for layer in layers for head in (0, 1)]
    headjax.to_huggingface(headjax.prune(headjax.from_huggingface(tmp_path / "one"), gone), tmp_path / "two")
    fields = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (fields["num_heads"], fields["use_cache"]) == (2, False)
    assert "num_attention_heads" not in fields


def test_a_decoder_says_which_token_ends_a_text(tmp_path):
    """`transformers` would stop at Llama's own, token 2, and nowhere else."""
    model, tokenizer = model_of(LLAMA | {"vocab_size": 257}), headjax.byte_tokenizer()
    for name, each in {"spelled": model.replace(tokenizer=tokenizer), "silent": model}.items():
        headjax.to_huggingface(each, tmp_path / name)
    rewrite(tmp_path / "spelled", bos_token_id=3)
    headjax.to_huggingface(headjax.from_huggingface(tmp_path / "spelled"), tmp_path / "again")
    silent, again = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("silent", "again"))
    assert (silent["bos_token_id"], silent["eos_token_id"]) == (None, None)
    assert (again["bos_token_id"], again["eos_token_id"]) == (3, tokenizer.special_id("eos_token"))


def test_bfloat16_is_written_as_such(bert, tmp_path):
    headjax.to_huggingface(bert, tmp_path / "one")
    half = headjax.from_huggingface(tmp_path / "one", dtype="bfloat16")
    for layout, model in {"native": half, "padded": headjax.prune(half, RAGGED)}.items():
        headjax.to_huggingface(model, tmp_path / layout, layout)
        assert json.loads((tmp_path / layout / "config.json").read_text())["dtype"] == "bfloat16"
        assert headjax.from_huggingface(tmp_path / layout).params["embeddings"]["token"].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", ["input_ids", "token_type_ids", "attention_mask"]),
        ("distilbert", ["input_ids", "attention_mask"]),
        ("llama", ["input_ids", "attention_mask"]),
    ],
)
def test_the_tokenizer_gives_what_the_model_reads(name, expected, tmp_path):
    """What `transformers` takes for granted depends on its version, and texts of a pair need their types."""
    headjax.to_huggingface(model_of(CONFIGS[name]).replace(tokenizer=headjax.byte_tokenizer()), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["model_input_names"] == expected


def test_bad_requests(bert, ragged, tmp_path):
    for field, fields in (("layout", {"layout": "nativ"}), ("family", {"family": "bret"})):
        with pytest.raises(headjax.HeadjaxError, match=f"^{field}: .*did you mean"):
            headjax.to_huggingface(bert, tmp_path / "out", **fields)
    assert "family: gpt2 is not" in refused_export(bert, tmp_path, family="gpt2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(headjax.CheckpointError, match="mine: "):
        headjax.to_huggingface(bert, tmp_path / "mine")
    ragged.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "model"), "--overwrite"]) == 2


def test_a_changed_tensor_is_a_difference(tmp_path):
    model = model_of(BERT)
    for each in (headjax.prune(model, RAGGED), model):  # which replaces an earlier one
        headjax.to_huggingface(each, tmp_path / "out")
        assert max_difference(each, tmp_path / "out") <= rounding(each)
    name = "classifier.bias"
    rewrite(tmp_path / "out", lambda tensors: tensors.update({name: tensors[name] + 0.5}))
    assert max_difference(model, tmp_path / "out") == close_to(0.5, sums=tiny.SUMS)
