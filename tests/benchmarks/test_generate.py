"""The generation benchmark: the shapes that are compared, what they cost, and one tiny run to the end."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.generate import Cost, Shape, llama, run, variants
from headjax.core.tensors import count
from headjax.models.compute import Compute
from headjax.models.generation import cache_bytes

TINY = Shape(
    width=16,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=4,
    hidden=24,
    vocabulary=50,
    prompt=6,
    new=5,
    repeats=2,
    contexts=(8,),
)


def test_the_measured_model_has_30_to_60_million_parameters():
    config = llama(Shape(layers=1, vocabulary=8)).config
    layer = count(config.tensors()) - 8 * 512 - 512
    assert 30e6 < 32_000 * 512 + 8 * layer + 512 < 60e6


def test_variants_hold_half_of_the_cache():
    models = variants(llama(TINY), TINY)
    costs = {name: Cost.of(model.config, TINY, Compute()) for name, model in models.items()}
    whole = costs.pop("whole")
    assert whole.cache == 4 * (2 + 2) * 4
    assert [cost.cache / whole.cache for cost in costs.values()] == [
        0.5,
        0.5,
        9 / 16,
        0.75,
    ]  # a latent keeps the position
    tokens = {"input_ids": [[1, 2]]}
    assert cache_bytes(models["whole"].config, models["whole"].params, tokens, 3) == 5 * whole.cache
    one, two = (Cost.of(models["whole"].config, TINY, Compute(), batch).step.bytes for batch in (1, 2))
    assert two - one == 11 * whole.cache


@pytest.mark.parity
@pytest.mark.whole
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra")
def test_a_tiny_run_gives_the_peers_tokens():
    found = run(shape=TINY)
    assert found.ours["whole"]["1"]["same_tokens_as_peer"] == 1.0
    assert found.ours["whole"]["8"]["decode_speed_up"] == 1.0
    assert found.ours["pruned by half"]["1"]["decode_speed_up_predicted"] > 1.0
    after = found.ours["latent, half the cache"]["contexts"]["8"]
    assert after["cache_bytes_per_token"] * 16 == 9 * found.ours["whole"]["contexts"]["8"]["cache_bytes_per_token"]
    assert after["decode_tokens_per_second"] > 0
    assert len(found.tables) == 3
    assert found.ratio > 0
