"""What a decoding step costs in time, and caches that hold rebuilt keys where that takes less."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Call, Compressed, Gated, Grouped, Latent, Mask, RotaryHalves
from headjax.conversion import convert
from headjax.core.tensors import count
from headjax.models.generation import begin, generate
from headjax.models.sampling import Greedy
from headjax.models.speed import DecodingCost, Rates, decoding_cost, peak_rates
from tests.attention.formulations import WIDTH, random_inputs, random_params
from tests.hub.directories import LLAMA, model_of
from tests.selected import first

PROMPTS = {"input_ids": np.array([[3, 5, 7, 2], [0, 0, 0, 4]]), "attention_mask": np.array([[1] * 4, [0, 0, 0, 1]])}
TURNING = Grouped(num_heads=8, kv_heads=4, head_dim=16, rotary=RotaryHalves())
FORMS = {
    "turned keys": Compressed(inner=TURNING, rank=32),
    "gated": Gated(inner=Compressed(inner=TURNING, rank=32)),
    "few heads": Latent(num_heads=1, rank=256, head_dim=8),
    "many heads": Latent(num_heads=16, rank=32, head_dim=64),
}


@pytest.mark.parametrize(
    ("name", "short"), [("turned keys", True), ("gated", True), ("few heads", True), ("many heads", False)]
)
def test_a_short_cache_holds_rebuilt_keys_where_a_step_takes_less_time(name, short) -> None:
    """Keys that turn are rebuilt from the latent at every step; heads can attend to a latent whose keys do not."""
    form = FORMS[name]
    assert form.keeps_rebuilt(128, 128, 256) == short
    assert not form.keeps_rebuilt(128, 128, 1 << 16), "a long cache holds the latent, which is what it is for"
    assert not form.keeps_rebuilt(128, 128, 256, batch=256)
    steps = form.step(128, 128, 256), form.rebuilt_step(128, 128, 256)
    assert form.decoding_step(128, 128, 256) == min(steps, key=lambda step: step.time)
    assert (steps[1].time < steps[0].time) == short


@pytest.mark.parametrize("target", first(1, ["latent:rank=6", "latent:rank=3"]))
def test_both_caches_give_the_same_tokens_and_the_short_one_holds_keys(target, monkeypatch) -> None:
    model = convert(model_of(LLAMA), target).model
    found = {}
    for kept in (False, True):
        monkeypatch.setattr(Compressed, "keeps_rebuilt", lambda *_, kept=kept, **__: kept)
        # Programs are compiled by config, so each form has a room of its own.
        started = begin(model, PROMPTS, max_new_tokens=8, cache=16 + kept)
        layers = started._loop.state.cache.layers["layers_0_1"]
        held = layers[0].attention if isinstance(layers, list) else layers.attention
        assert ("latent" in held) == (not kept)
        found[kept] = started.advance()
    np.testing.assert_array_equal(found[True].tokens, found[False].tokens)
    np.testing.assert_allclose(found[True].log_probability, found[False].log_probability, rtol=1e-4)
    monkeypatch.undo()
    tokens = generate(model, PROMPTS, max_new_tokens=8, sampler=Greedy()).tokens
    np.testing.assert_array_equal(tokens, found[False].tokens)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["turned keys", "few heads", "many heads"])
def test_rebuilt_keys_attend_as_the_latent(name) -> None:
    form = FORMS[name]
    params = random_params(form)
    inputs = jnp.asarray(random_inputs())
    call = Call(mask=Mask(causal=True, query_offset=5), positions=jnp.full((2, 1), 5))
    module = form.bind(params, WIDTH, WIDTH)
    stored = module.key_values(inputs, None)
    contexts = [module.attend(inputs[:, 5:], held, call).context for held in (stored, module.rebuilt(stored))]
    np.testing.assert_allclose(contexts[1], contexts[0], rtol=1e-4, atol=1e-4 * float(jnp.abs(contexts[0]).max()))


def test_a_step_takes_the_longer_of_its_operations_and_its_bytes() -> None:
    rates = Rates(flops=100.0, bytes=10.0)
    assert DecodingCost(1000, 50).seconds(rates) == 10.0
    assert DecodingCost(100, 50).seconds(rates) == 5.0
    model = model_of(LLAMA)
    one, two = (decoding_cost(model.config, 8, batch) for batch in (1, 2))
    assert two.flops == 2 * one.flops
    assert 2 * one.bytes - two.bytes == 4 * count(model.config.tensors())
    # A latent whose keys turn does more in a long cache, although it reads less.
    long = [decoding_cost(each.config, 1 << 20) for each in (model, convert(model, "latent:rank=3").model)]
    assert long[1].flops > long[0].flops


def test_rates_are_measured() -> None:
    rates = peak_rates()
    assert 1e8 < rates.flops < 1e16
    assert 1e8 < rates.bytes < 1e14
    assert peak_rates() is rates
