"""`convert(model, to="deep")`: another function, and its distance is measured."""

import json

import jax
import pytest

import headjax
from tests import tiny
from tests.command_line import main
from tests.conversion.cases import crossed


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(vocab_size=257, max_length=32))


def test_conversion_reports_how_far_each_layer_is(model):
    errors = headjax.convert(model, "deep").errors
    assert [(error.stack, error.layer) for error in errors] == [("decoder", 0), ("decoder", 1)]
    assert all(0.01 < error.relative_error < 10 for error in errors)
    pairs, _ = headjax.convert(model, headjax.conversion.ToDeep(heads=2), layers=[1])
    assert [attention.num_heads for attention in pairs.config.attention] == [4, 2, 2]


def test_pre_norm_layers_compose_to_their_sum_to_first_order():
    """The gap falls with the square of the sub-layers' outputs."""
    model = tiny.model(tiny.decoder_config(tiny.layer()))

    def gap(scale):
        def shrink(path, array):
            return array * scale if path[1].key in ("output", "down", "down_bias") else array

        params = jax.tree_util.tree_map_with_path(shrink, model.params["decoder"]["layers_0_0"])
        small = model.replace(params=model.params | {"decoder": model.params["decoder"] | {"layers_0_0": params}})
        return headjax.convert(small, "deep").errors[0].relative_error

    assert 70 < gap(1e-1) / gap(1e-2) < 130


def test_attention_of_a_decoder_splits_together():
    translator = crossed(num_layers=1)
    with pytest.raises(headjax.ConfigError, match="stacks: cross and decoder split together"):
        headjax.convert(translator, "deep", stacks=["cross"])
    encoder, errors = headjax.convert(translator, "deep", stacks=["encoder"])
    assert [len(stack.layers) for stack in encoder.config.stacks().values()] == [4, 1]
    assert [error.stack for error in errors] == ["encoder"]


def test_it_cannot_be_what_some_layers_become(model):
    with pytest.raises(headjax.ConfigError, match="decoder/0: deep replaces layers"):
        headjax.convert(model, {("decoder", 0): "deep"})


def test_command(model, tmp_path, capsys):
    model.replace(tokenizer=headjax.byte_tokenizer()).save(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n\n".join(f"{i} times {i} is {i * i}." for i in range(300)))
    words = ["convert", str(tmp_path / "model"), str(tmp_path / "deep"), "--to", "deep:heads=2"]
    assert main([*words, "--task", str(tmp_path / "text.txt"), "--limit", "8", "--json", "-"]) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert {"stack", "layer", "relative_error"} <= data["error_per_layer"][0].keys()
    assert data["metrics"]["perplexity"] != data["metrics_before"]["perplexity"]
    assert headjax.load(tmp_path / "deep").config.num_layers == 4
    headjax.convert(model, "deep").model.save(tmp_path / "single")
    assert main(["inspect", str(tmp_path / "single")]) == 0
    assert "one each of 0-3" in capsys.readouterr().out
