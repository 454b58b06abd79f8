"""Layers whose keys turn or are normalised, and decoders of them, come back from latents."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.attention import Compressed, MultiHead
from headjax.attention.rotary import RotaryInterleaved
from headjax.conversion import convert
from headjax.heads.pruning import prune
from headjax.models.generation import generate
from headjax.models.sampling import Greedy
from tests import tiny
from tests.attention.formulations import WIDTH, random_params
from tests.closeness import assert_close
from tests.conversion.cases import TURNING, converted_layer, output
from tests.hub.directories import CONFIGS, LLAMA, model_of
from tests.selected import first

PART = MultiHead(num_heads=2, head_dim=6, value_dim=3, rotary=RotaryInterleaved(dim=4))


@pytest.mark.parametrize("source", [*TURNING.values(), PART], ids=[*TURNING, "part"])
def test_a_layer_comes_back_at_full_size(source) -> None:
    params = random_params(source)
    found, weights = converted_layer(source, params, f"latent:rank={WIDTH}")
    assert isinstance(found, Compressed)
    assert_close(output(found, weights), output(source, params), sums=4 * tiny.SUMS)


@pytest.mark.parametrize("family", first(1, ["llama", "qwen3"]))
def test_a_decoder_generates_the_same(family) -> None:
    """At full size, by the cache, with padding on the left, pruned before or after."""
    model = model_of(LLAMA if family == "llama" else CONFIGS["qwen3"])
    width = model.config.width
    converted = convert(model, f"latent:rank={width}").model
    assert converted.config.attentions()["decoder"][0].cache_size(width, width) == width + 1
    prompts = {"input_ids": np.array([[3, 5, 7, 2], [0, 0, 0, 4]]), "attention_mask": np.array([[1] * 4, [0, 0, 0, 1]])}
    expected = generate(model, prompts, max_new_tokens=6, sampler=Greedy()).tokens
    np.testing.assert_array_equal(generate(converted, prompts, max_new_tokens=6).tokens, expected)
    heads = ["decoder/0/1", "decoder/1/0", "decoder/1/1"]
    batch = {"input_ids": np.array([[1, 2, 3, 4, 5]])}
    pruned = prune(converted, heads)
    assert_close(pruned(batch).logits, prune(model, heads)(batch).logits, sums=8 * tiny.SUMS)
