"""Conversions of whole models: what must keep the function keeps it, scales and biases are carried, errors are true."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Collaborative, Gated, Grouped, Latent, MultiHead, NoHeads, RotaryHalves, Tucker
from headjax.conversion import (
    Target,
    ToCollaborative,
    ToFixed,
    ToGated,
    ToGrouped,
    ToLatent,
    ToTucker,
    convert,
    parse_target,
)
from headjax.conversion.decomposition import Search, Solver
from headjax.conversion.model import describe
from headjax.core import tensors
from headjax.core.errors import ConfigError
from headjax.core.tensors import Normal
from headjax.heads.pruning import prune
from headjax.models.encoder import Albert, Bert
from headjax.models.encoder_decoder import T5, Translation
from headjax.models.layer import PreNorm
from headjax.models.sublayers import Dense, GatedDense
from tests import tiny
from tests.closeness import assert_close, tolerance

MASK = np.array([[1] * 10, [1] * 7 + [0] * 3])
PADDED = tiny.tokens() | {"attention_mask": MASK}
LABELS = np.random.default_rng(1).integers(1, tiny.VOCABULARY, (2, 8))
SIZES = {"vocab_size": tiny.VOCABULARY, "width": tiny.WIDTH, "num_layers": 2}
QUICK = Search(solver=Solver(sweeps=60))

EXACT: dict[str, Target] = {
    "collaborative": ToCollaborative(shared_dim=16),
    "tucker": ToTucker(rank=16),
    "latent": ToLatent(rank=16),
    "grouped": ToGrouped(kv_heads=4),
    "fixed": ToFixed(head_dim=6),
    "gated": ToGated(),
}
LOSSY: dict[str, Target] = {
    "collaborative": ToCollaborative(shared_dim=6, search=QUICK),
    "tucker": ToTucker(rank=6),
    "latent": ToLatent(rank=8),
    "grouped": ToGrouped(kv_heads=2),
    "aligned": ToGrouped(kv_heads=2, pooling="aligned"),
    "mean": ToGrouped(kv_heads=2, pooling="mean"),
    "fixed": ToFixed(head_dim=3),
}


def encoder(attention: MultiHead | None = None, recipe=Bert, **fields):
    sizes = SIZES | {"max_length": tiny.MAX_LENGTH, "feed_forward": Dense(32)} | fields
    config = recipe(attention=attention or tiny.multi_head(), **sizes).build()
    return tiny.model(dataclasses.replace(config, initializer=Normal(0.3)))


def translation():
    attention = tiny.multi_head()
    fields = {"attention": attention, "decoder_attention": attention, "cross_attention": attention}
    recipe = Translation(
        **SIZES, **fields, feed_forward=Dense(32), residual=PreNorm(), start_token=3, initializer=Normal(0.3)
    )
    return tiny.model(recipe.build())


def t5():
    attention = MultiHead(num_heads=4, head_dim=4, scale=1.0, projection_bias=False, output_bias=False)
    feed_forward = GatedDense(24, "gelu_tanh", bias=False)
    recipe = T5(attention=attention, feed_forward=feed_forward, buckets=8, initializer=Normal(0.3), **SIZES)
    return tiny.model(dataclasses.replace(recipe, max_distance=12).build())


MODELS = {
    "padded": (encoder, PADDED),
    "causal": (lambda: tiny.model(tiny.decoder_config()), PADDED),
    "without biases": (lambda: encoder(tiny.multi_head(projection_bias=False, output_bias=False)), PADDED),
    "cross": (translation, PADDED | {"labels": LABELS}),
    "own scale": (t5, PADDED | {"labels": LABELS}),
}


@pytest.fixture(scope="module")
def model():
    return encoder()


@pytest.fixture(scope="module")
def outputs(model):
    return hidden(model, PADDED)


def hidden(model, batch):
    mask = MASK[:, :, None] if "labels" not in batch else 1.0
    return np.asarray(model(batch).hidden) * mask


def attentions(model):
    return [attention for layers in model.config.attentions().values() for attention in layers]


@pytest.mark.parametrize("name", list(MODELS))
def test_conversions_that_lose_nothing_keep_the_function(name: str) -> None:
    build, batch = MODELS[name]
    source = build()
    expected = hidden(source, batch)
    for target in EXACT.values():
        converted, errors = convert(source, target)
        assert_close(hidden(converted, batch), expected, sums=tiny.SUMS)
        assert max(max(error.relative_error, error.value_error) for error in errors) < tolerance(tiny.SUMS)
        tensors.check(converted.config.tensors(), converted.params)
        assert converted.num_parameters == tensors.count(converted.config.tensors())
        assert converted.history[-1]["action"] == "convert"


@pytest.mark.parametrize("target", list(LOSSY))
def test_reported_errors_are_those_of_the_logits(model, target: str) -> None:
    """The relative error of every layer, against logits computed for inputs of identity covariance."""
    converted, errors = convert(model, LOSSY[target])
    assert [error.layer for error in errors] == [0, 1]
    for error in errors:
        assert 1e-3 < max(error.relative_error, error.value_error) < 1.2
    assert np.abs(hidden(converted, PADDED) - hidden(model, PADDED)).max() > 1e-3


def test_the_query_bias_and_the_original_scale_stay_exact_at_half_the_size() -> None:
    """All queries equal: what is left of the logits is the bias's content, whatever the rank.

    The published implementation divides by the compressed size, which multiplies all logits by sqrt(2) here.
    """
    attention = tiny.multi_head(num_heads=2, head_dim=8)
    generator = np.random.default_rng(0)
    # Two heads that read the same queries and keys are exact at half of num_heads * head_dim.
    # Logits are of the order of 1, so that the fit's relative error bounds that of the outputs.
    shared = {name: 0.3 * generator.standard_normal((tiny.WIDTH, 1, 8)).astype(np.float32) for name in ("query", "key")}
    source = encoder(attention, num_layers=1)
    layer = source.params["encoder"]["layers_0_0"]["attention"]
    repeated = {name: jnp.asarray(np.repeat(array, 2, axis=1))[None] for name, array in shared.items()}
    params = source.params | {
        "encoder": source.params["encoder"]
        | {"layers_0_0": source.params["encoder"]["layers_0_0"] | {"attention": layer | repeated}}
    }
    source = source.replace(params=params)
    converted, errors = convert(source, ToCollaborative(shared_dim=8))
    assert errors[0].relative_error < 1e-3
    assert attentions(converted)[0].head_dim == 8
    np.testing.assert_allclose(hidden(converted, PADDED), hidden(source, PADDED), atol=1e-3)


def test_key_biases_vanish_and_query_biases_become_the_content_bias(model) -> None:
    converted, _ = convert(model, EXACT["collaborative"])
    source, new = (m.params["encoder"]["layers_0_1"]["attention"] for m in (model, converted))
    expected = np.einsum("lmhd,lhd->lmh", source["key"], source["query_bias"])
    assert_close(new["content_bias"], expected, sums=tiny.SUMS)
    assert set(new) == {"query", "key", "mixing", "content_bias", "value", "value_bias", "output", "output_bias"}


def test_the_error_falls_with_the_size(model) -> None:
    def error(target: Target) -> float:
        return sum(e.relative_error + e.value_error for e in convert(model, target, layers=[0]).errors)

    for targets in (
        [ToCollaborative(shared_dim=rank, search=QUICK) for rank in (3, 6, 16)],
        [ToTucker(rank=rank) for rank in (3, 6)],
        [ToLatent(rank=rank) for rank in (4, 8)],
        [ToGrouped(kv_heads=heads) for heads in (1, 2, 4)],
        [ToFixed(head_dim=dim) for dim in (2, 3)],
    ):
        errors = [error(target) for target in targets]
        assert errors == sorted(errors, reverse=True)


def test_fitting_beats_aligning_beats_averaging(model) -> None:
    def error(pooling, grouping="consecutive") -> float:
        target = ToGrouped(kv_heads=2, pooling=pooling, grouping=grouping)
        return sum(e.relative_error + e.value_error for e in convert(model, target).errors)

    fitted, aligned, mean = (error(pooling) for pooling in ("fitted", "aligned", "mean"))
    assert fitted < aligned < mean
    assert error("fitted", "best") <= fitted + 1e-6


def test_heads_that_differ_by_a_rotation_share_without_loss() -> None:
    """With and without rotary embeddings, in groups that the search has to find."""
    generator = np.random.default_rng(0)
    for rotary in (None, RotaryHalves()):
        source = tiny.model(
            tiny.decoder_config(tiny.layer(tiny.multi_head(rotary=rotary, projection_bias=False))), seed=3
        )
        params = source.params["decoder"]["layers_0_0"]["attention"]
        turned = dict(params)
        for i, j in ((2, 0), (3, 1)):
            angle = generator.uniform(0, 2, 2)
            rotation = np.zeros((4, 4))
            for pair, a in enumerate(angle):
                k = pair + 2
                rotation[[pair, k], [pair, k]] = np.cos(a)
                rotation[pair, k], rotation[k, pair] = np.sin(a), -np.sin(a)
            if rotary is None:
                rotation = np.linalg.qr(generator.standard_normal((4, 4)))[0]
            turned["key"] = turned["key"].at[:, :, i].set(params["key"][:, :, j] @ rotation)
            turned["value"] = turned["value"].at[:, :, i].set(params["value"][:, :, j] @ rotation)
        layers = source.params["decoder"]["layers_0_0"] | {"attention": turned}
        source = source.replace(params=source.params | {"decoder": source.params["decoder"] | {"layers_0_0": layers}})
        expected = hidden(source, PADDED)
        for pooling in ("fitted", "aligned"):
            converted, errors = convert(source, ToGrouped(kv_heads=2, pooling=pooling))
            assert attentions(converted)[0].ids == (0, 2, 1, 3)
            assert max(errors[0].relative_error, errors[0].value_error) < 1e-3
            np.testing.assert_allclose(hidden(converted, PADDED), expected, atol=1e-3)


@pytest.mark.parametrize("target", ["collaborative", "tucker", "latent", "grouped", "aligned", "fixed"])
def test_pruning_and_converting_compose(model, target: str) -> None:
    """Exact targets: both orders give the pruned function. All: the kept heads keep their numbers."""
    removed = ["encoder/0/1", "encoder/0/3", *(f"encoder/1/{head}" for head in range(4))]
    pruned = prune(model, removed)
    first, _ = convert(pruned, LOSSY[target])
    assert isinstance(attentions(first)[1], NoHeads)
    assert sorted(attentions(first)[0].ids) == [0, 2]
    second = prune(convert(model, LOSSY[target]).model, removed)
    assert sorted(attentions(second)[0].ids) == [0, 2]
    assert np.isfinite(hidden(first, PADDED)).all()
    assert np.isfinite(hidden(second, PADDED)).all()
    exact = {"collaborative": ToCollaborative(shared_dim=8), "grouped": ToGrouped(kv_heads=2)}
    if target in exact:
        expected = hidden(pruned, PADDED)
        assert_close(hidden(convert(pruned, exact[target]).model, PADDED), expected, sums=tiny.SUMS)
        full = convert(model, EXACT[target]).model
        assert_close(hidden(prune(full, removed), PADDED), expected, sums=tiny.SUMS)


def test_calibration_lowers_the_error_of_logits(model) -> None:
    for target in (ToCollaborative(shared_dim=6, search=QUICK), ToTucker(rank=6)):
        plain, calibrated = convert(model, target), convert(model, target, batches=[PADDED])
        assert all(error.logit_error is None for error in plain.errors)
        for before, after in zip(_logit_errors(model, target), calibrated.errors, strict=True):
            assert after.logit_error < before
        expected = hidden(model, PADDED)
        change = [np.square(hidden(c.model, PADDED) - expected).sum() for c in (plain, calibrated)]
        assert change[1] < change[0]


def _logit_errors(model, target: Target) -> list[float]:
    """What the uncalibrated conversion leaves of logits, under the moments that calibration would see."""
    from headjax.conversion.calibration import collect, covariance_root
    from headjax.conversion.products import Products, query_key, relative_distance

    found, moments = [], collect(model, [PADDED])
    converted = convert(model, target).model
    stacks = [m.config.stacks()["encoder"].unstack(m.params["encoder"]) for m in (model, converted)]
    for layer in range(2):
        m = moments["encoder", layer]
        roots = covariance_root(m.query_covariance).root, covariance_root(m.key_within).root
        sides = []
        for stack, attention in zip(stacks, (attentions(model)[layer], attentions(converted)[layer]), strict=True):
            products = query_key(attention, stack[layer]["attention"])
            sides.append(Products(*(jnp.tensordot(r, side, 1) for r, side in zip(roots, products, strict=True))))
        found.append(float(relative_distance(*sides)))
    return found


@pytest.mark.parametrize("target", list(EXACT))
def test_calibrated_conversions_that_lose_nothing_keep_the_function(model, outputs, target: str) -> None:
    converted, _ = convert(model, EXACT[target], batches=[PADDED])
    np.testing.assert_allclose(hidden(converted, PADDED), outputs, atol=1e-3)


def test_calibration_sees_cross_attention(tmp_path) -> None:
    source, batch = translation(), PADDED | {"labels": LABELS}
    _, errors = convert(source, LOSSY["latent"], batches=[batch], stacks=["cross"])
    assert [(error.stack, error.layer) for error in errors] == [("cross", 0), ("cross", 1)]
    assert all(error.logit_error is not None for error in errors)


def test_only_the_chosen_layers_change_and_each_can_have_its_own_target(model) -> None:
    one = convert(model, "latent:rank=8", layers=[1]).model
    assert [type(attention) for attention in attentions(one)] == [MultiHead, Latent]
    each = convert(model, {("encoder", 0): "tucker:rank=4", ("encoder", 1): ToGrouped(kv_heads=2)}).model
    assert [type(attention) for attention in attentions(each)] == [Tucker, Grouped]


def test_layers_that_share_parameters_change_together() -> None:
    shared = encoder(recipe=Albert, embedding_size=8)
    converted, errors = convert(shared, EXACT["collaborative"], batches=[PADDED])
    assert [type(attention) for attention in attentions(converted)] == [Collaborative, Collaborative]
    assert len(errors) == 1
    assert_close(hidden(converted, PADDED), hidden(shared, PADDED), sums=tiny.SUMS)


def test_gates_stay_around_what_is_converted_inside_them(model, outputs) -> None:
    gated = convert(model, "gated").model
    inside = convert(gated, ToCollaborative(shared_dim=16)).model
    assert all(isinstance(a, Gated) and isinstance(a.inner, Collaborative) for a in attentions(inside))
    assert_close(hidden(inside, PADDED), outputs, sums=tiny.SUMS)
    gate = jax.grad(jax.nn.sigmoid)(4.0)
    assert gate > 0.01


def test_grouped_layers_are_converted_from_one_key_per_head() -> None:
    source = tiny.model(tiny.decoder_config(tiny.layer(Grouped(num_heads=4, kv_heads=2, head_dim=4))))
    converted, _ = convert(source, ToLatent(rank=16))
    assert_close(hidden(converted, PADDED), hidden(source, PADDED), sums=tiny.SUMS)


def test_smaller_heads_come_back_from_larger_ones(model, outputs) -> None:
    larger = convert(model, ToFixed(head_dim=7)).model
    back = convert(larger, ToFixed(head_dim=4)).model
    assert [a.head_dim for a in attentions(back)] == [4, 4]
    assert_close(hidden(back, PADDED), outputs, sums=tiny.SUMS)


def test_conversions_are_deterministic(model) -> None:
    target = ToCollaborative(shared_dim=6, search=Search(starts=("random",), solver=Solver(sweeps=20)))
    one, same, other = (convert(model, target, seed=seed).model for seed in (1, 1, 2))
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(same.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(
        one.params["encoder"]["layers_0_1"]["attention"]["key"],
        other.params["encoder"]["layers_0_1"]["attention"]["key"],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colaborative:shared_dim=8", "to: unknown formulation 'colaborative'; did you mean 'collaborative'?"),
        ("collaborative", "to: collaborative: shared_dim: missing"),
        ("collaborative:shared=8", "to: collaborative: unknown option 'shared'; did you mean 'shared_dim'?"),
        ("collaborative:search=8", "to: collaborative: unknown option 'search'"),
        ("collaborative:shared_dim=many", "to: collaborative: shared_dim: expected int, got 'many'"),
        ("collaborative:shared_dim=8,shared_dim=9", "to: collaborative: shared_dim: expected once"),
        ("grouped:kv_heads=2,pooling=median", "to: grouped: pooling: unknown choice 'median'"),
        ("collaborative:shared_dim=17", "encoder/0: shared_dim: must be from 1 to num_heads . head_dim = 16, got 17"),
        ("latent:rank=17", "encoder/0: rank: must be from 1 to"),
        ("tucker:rank=0", "rank: must be an integer of at least 1, got 0"),
        ("grouped:kv_heads=3", "encoder/0: kv_heads: 3 does not divide the num_heads of 4"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(model, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", ".")):
        convert(model, text)


def test_rotary_layers_and_other_formulations_are_refused_before_any_work() -> None:
    turning = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(rotary=RotaryHalves()))))
    for text in ("collaborative:shared_dim=8", "latent:rank=8", "tucker:rank=8", "fixed:head_dim=2"):
        with pytest.raises(ConfigError, match=r"decoder/0: .*rotary"):
            convert(turning, text)
    shared = tiny.model(tiny.decoder_config(tiny.layer(tiny.collaborative())))
    with pytest.raises(ConfigError, match="decoder/0: attention: collaborative cannot be converted"):
        convert(shared, "latent:rank=8")
    with pytest.raises(ConfigError, match="to: decoder/3 is no layer"):
        convert(turning, {("decoder", 3): "gated"})
    converted = convert(turning, "fixed:head_dim=6").model
    assert_close(hidden(converted, PADDED), hidden(turning, PADDED), sums=tiny.SUMS)


@pytest.mark.parametrize("target", [*EXACT.values(), *LOSSY.values()], ids=describe)
def test_text_and_targets_say_the_same(target: Target) -> None:
    parsed = parse_target(describe(target))
    assert describe(parsed) == describe(target)
    assert type(parsed) is type(target)
