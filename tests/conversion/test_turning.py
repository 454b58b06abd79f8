"""Layers whose keys turn or are normalised, and decoders of them, come back from latents and shared components."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.attention import Compressed, MultiHead, SharedRotary
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


@pytest.mark.parametrize(("name", "source"), [*TURNING.items(), ("part", PART)])
def test_a_layer_comes_back_at_full_size(name, source) -> None:
    params = random_params(source)
    kv_heads = getattr(source, "kv_heads", source.num_heads)
    targets = {f"latent:rank={WIDTH}": Compressed}
    if name != "part":  # of which some dimensions alone turn
        targets[f"collaborative:shared_dim={4 * kv_heads}"] = SharedRotary
    for target, kind in targets.items():
        found, weights = converted_layer(source, params, target)
        assert isinstance(found, kind)
        assert getattr(found, "components", (kv_heads,) * 2) == (kv_heads,) * 2
        assert_close(output(found, weights), output(source, params), sums=4 * tiny.SUMS)


@pytest.mark.parametrize("family", first(1, ["llama", "qwen3"]))
@pytest.mark.parametrize("target", ["latent:rank={width}", "collaborative:shared_dim=8"])
def test_a_decoder_generates_the_same(family, target) -> None:
    """At full size, by the cache, with padding on the left, pruned before or after."""
    model = model_of(LLAMA if family == "llama" else CONFIGS["qwen3"])
    width = model.config.width
    converted = convert(model, target.format(width=width)).model
    layer = converted.config.attentions()["decoder"][0]
    cached = width + 1 if target.startswith("latent") else 8 + 8 + (2 if family == "qwen3" else 0)
    assert layer.cache_size(width, width) == cached
    prompts = {"input_ids": np.array([[3, 5, 7, 2], [0, 0, 0, 4]]), "attention_mask": np.array([[1] * 4, [0, 0, 0, 1]])}
    expected = generate(model, prompts, max_new_tokens=6, sampler=Greedy()).tokens
    np.testing.assert_array_equal(generate(converted, prompts, max_new_tokens=6).tokens, expected)
    heads = ["decoder/0/1", "decoder/1/0", "decoder/1/1"]
    batch = {"input_ids": np.array([[1, 2, 3, 4, 5]])}
    pruned = prune(converted, heads)
    if target.startswith("collaborative"):
        assert pruned.config.attentions()["decoder"][1].components == (1, 1), "the key head went with its heads"
    assert_close(pruned(batch).logits, prune(model, heads)(batch).logits, sums=8 * tiny.SUMS)
