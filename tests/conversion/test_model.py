"""Conversions of whole models: targets that lose nothing keep the function, and reported errors are true."""

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.conversion.cases import EXACT, LOSSY, MODELS, PADDED, attentions, encoder, hidden
from tests.hub.directories import CONFIGS, model_of
from tests.selected import first


@pytest.mark.parametrize("name", first(2, list(MODELS)))
def test_conversions_that_lose_nothing_keep_the_function(name: str) -> None:
    build, batch = MODELS[name]
    source = build()
    expected = hidden(source, batch)
    for target in EXACT.values():
        converted, errors = headjax.convert(source, target)
        assert_close(hidden(converted, batch), expected, sums=tiny.SUMS)
        assert max(max(error.relative_error, error.value_error) for error in errors) < tolerance(tiny.SUMS)
        tiny.assert_as_declared(converted)
        assert converted.history[-1]["action"] == "convert"


@pytest.mark.parametrize("target", first(2, list(LOSSY)))
def test_reported_errors_are_those_of_the_logits(model, target: str) -> None:
    """The relative error of every layer, against logits computed for inputs of identity covariance."""
    converted, errors = headjax.convert(model, LOSSY[target])
    assert [error.layer for error in errors] == [0, 1]
    for error in errors:
        assert 1e-3 < max(error.relative_error, error.value_error) < 1.2
    assert np.abs(hidden(converted, PADDED) - hidden(model, PADDED)).max() > 1e-3


@pytest.mark.parametrize("target", first(2, ["collaborative", "latent", "grouped", "fixed"]))
def test_pruning_and_converting_compose(model, target: str) -> None:
    """Exact targets: both orders give the pruned function. All: the kept heads keep their numbers."""
    removed = ["encoder/0/1", "encoder/0/3", *(f"encoder/1/{head}" for head in range(4))]
    pruned = headjax.prune(model, removed)
    first, _ = headjax.convert(pruned, LOSSY[target])
    assert attentions(first)[1].of is headjax.nn.NoHeadsAttention
    assert sorted(attentions(first)[0].ids) == [0, 2]
    second = headjax.prune(headjax.convert(model, LOSSY[target]).model, removed)
    assert sorted(attentions(second)[0].ids) == [0, 2]
    assert np.isfinite(hidden(first, PADDED)).all()
    assert np.isfinite(hidden(second, PADDED)).all()
    exact = {
        "collaborative": headjax.conversion.ToCollaborative(shared_dim=8),
        "grouped": headjax.conversion.ToGrouped(kv_heads=2),
    }
    if target in exact:
        expected = hidden(pruned, PADDED)
        assert_close(hidden(headjax.convert(pruned, exact[target]).model, PADDED), expected, sums=tiny.SUMS)
        full = headjax.convert(model, EXACT[target]).model
        assert_close(hidden(headjax.prune(full, removed), PADDED), expected, sums=tiny.SUMS)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("colaborative:shared_dim=8", "to: .*'collaborative'"),
        ("collaborative", "to: collaborative: shared_dim:"),
        ("collaborative:shared=8", "to: collaborative: .*'shared_dim'"),
        ("collaborative:solver=8", "to: collaborative: .*'solver'"),
        ("collaborative:shared_dim=many", "to: collaborative: shared_dim:"),
        ("collaborative:shared_dim=8,shared_dim=9", "to: collaborative: shared_dim:"),
        ("grouped:kv_heads=2,pooling=median", "to: grouped: pooling:"),
        ("collaborative:shared_dim=17", "encoder/0: shared_dim:"),
        ("latent:rank=17", "encoder/0: rank:"),
        ("latent:rank=0", "to: latent: rank:"),
        ("grouped:kv_heads=3", "encoder/0: kv_heads:"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(model, text: str, field: str) -> None:
    with pytest.raises(headjax.ConfigError, match=f"^{field}"):
        headjax.convert(model, text)


@pytest.mark.parametrize("target", [*EXACT.values(), *LOSSY.values()], ids=lambda target: target.name)
def test_the_history_has_a_target_as_the_text_that_says_it(model, target: headjax.conversion.Target) -> None:
    (text,) = set(headjax.convert(model, target, layers=[0]).model.history[-1]["to"].values())
    parsed = headjax.conversion.parse_target(text)
    assert type(parsed) is type(target)
    assert (
        headjax.convert(model, parsed, layers=[0]).model.config
        == headjax.convert(model, target, layers=[0]).model.config
    )


def test_only_the_chosen_layers_change_and_each_can_have_its_own_target(model) -> None:
    one = headjax.convert(model, "latent:rank=8", layers=[1]).model
    assert [attention.of for attention in attentions(one)] == [headjax.MultiHeadAttention, headjax.LatentAttention]
    each = headjax.convert(
        model, {("encoder", 0): "latent:rank=4", ("encoder", 1): headjax.conversion.ToGrouped(kv_heads=2)}
    ).model
    assert [attention.of for attention in attentions(each)] == [headjax.LatentAttention, headjax.GroupedAttention]


def test_layers_that_share_parameters_change_together() -> None:
    shared = encoder(name="albert")
    converted, errors = headjax.convert(shared, EXACT["collaborative"], batches=[PADDED])
    assert [attention.of for attention in attentions(converted)] == [headjax.CollaborativeAttention] * 2
    assert len(errors) == 1
    assert_close(hidden(converted, PADDED), hidden(shared, PADDED), sums=tiny.SUMS)


def test_grouped_layers_are_converted_from_one_key_per_head() -> None:
    source = tiny.model(tiny.decoder_config(tiny.layer(tiny.grouped(4, 2, 4))))
    converted, _ = headjax.convert(source, headjax.conversion.ToLatent(rank=16))
    assert_close(hidden(converted, PADDED), hidden(source, PADDED), sums=tiny.SUMS)


def test_layers_that_cannot_become_a_target_are_refused_before_any_work() -> None:
    normalised = model_of(CONFIGS["qwen3"])
    with pytest.raises(headjax.ConfigError, match="decoder/0: query_norm:"):
        headjax.convert(normalised, "collaborative:shared_dim=4")
    turning = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(rotary=headjax.nn.RotaryHalves()))))
    with pytest.raises(headjax.ConfigError, match="decoder/0: rotary:"):
        headjax.convert(turning, "collaborative:shared_dim=8")
    shared = tiny.model(tiny.decoder_config(tiny.layer(tiny.collaborative())))
    with pytest.raises(headjax.ConfigError, match="decoder/0: attention:"):
        headjax.convert(shared, "latent:rank=8")
    with pytest.raises(headjax.ConfigError, match="to: decoder/3"):
        headjax.convert(turning, {("decoder", 3): "fixed:head_dim=6"})
    converted = headjax.convert(turning, "fixed:head_dim=6").model
    assert_close(hidden(converted, PADDED), hidden(turning, PADDED), sums=tiny.SUMS)
