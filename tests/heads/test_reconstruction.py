import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.heads.surgery import count_units, map_feed_forward
from tests import tiny
from tests.closeness import assert_close
from tests.layer_walk import joined, walk
from tests.models import test_encoder as encoder
from tests.models import test_encoder_decoder as encoder_decoder
from tests.selected import first

MASK = np.array([[1] * 12, [1] * 9 + [0] * 3] * 8)
BATCHES = [tiny.tokens(16, 12, seed) | {"attention_mask": MASK} for seed in range(2)]
REMOVED = [headjax.HeadId("decoder", 0, 3), headjax.HeadId("decoder", 1, 0), headjax.HeadId("decoder", 1, 2)]


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer(), tiny.layer()))


@pytest.fixture(scope="module")
def repaired(model):
    return headjax.reconstruct(model, BATCHES, REMOVED)


@pytest.mark.parametrize("head", ["decoder/0/9", "decoder/9/0"])
def test_heads_that_are_not_there_are_refused(model, head):
    with pytest.raises(headjax.HeadjaxError, match=f"^head {head}: "):
        headjax.reconstruct(model, BATCHES, [head])


def twinned(model):
    """Head 3 of layer 0 reads as head 1 does, and writes something else."""

    def twin(found):
        own = {name: tensor for name, tensor in tiny.weights(found.config, 16, 16).items() if name != "output"}
        index = np.array([0, 1, 2, 1])
        return found.holding(
            {
                name: jnp.take(found.params[name], index, axis=tensor.out_sharding.index("heads"))
                for name, tensor in own.items()
            }
        )

    return headjax.map_attention(model, twin, layers=[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("residual", ["pre_norm", "parallel_norm", "sandwich_norm"])
def test_what_the_kept_heads_can_write_is_restored(residual):
    whole = twinned(tiny.model(tiny.decoder_config(*[tiny.layer()] * 3, residual=residual)))
    found = headjax.reconstruct(whole, BATCHES, ["decoder/0/3"], ridges=(1e-7,))
    assert found.layers[0].kept
    assert found.layers[0].held_out < 1e-4
    np.testing.assert_allclose(found.model(BATCHES[0]).logits, whole(BATCHES[0]).logits, atol=2e-2)
    broken = np.abs(headjax.prune(whole, ["decoder/0/3"])(BATCHES[0]).logits - whole(BATCHES[0]).logits)
    assert broken.max() > 0.5
    assert [entry["action"] for entry in found.model.history] == ["reconstruct", "prune"]
    assert (found.examples, found.tokens) == (32, int(MASK.sum()) * 2)


def t5():
    attention = tiny.multi_head(3, scale=1.0, projection_bias=False, output_bias=False)
    labels = np.random.default_rng(0).integers(1, tiny.VOCABULARY, (16, 10))
    labels[1::2, 6:] = -100
    batches = [batch | {"labels": labels} for batch in BATCHES]
    removed = ["encoder/0/1", "decoder/0/0", "cross/0/2", "cross/1/1"]
    return tiny.model(encoder_decoder.t5(attention=attention)), batches, removed


def language_model(**fields):
    def build():
        return tiny.model(tiny.decoder_config(**fields)), BATCHES, REMOVED

    return build


CASES = {
    "pre_norm": language_model(),
    "post_norm": language_model(residual="post_norm"),
    "scaled_post_norm": language_model(residual="scaled_post_norm"),
    "constant_post_norm": language_model(residual="constant_post_norm", alpha=1.7),
    "parallel_norm": language_model(residual="parallel_norm"),
    "grouped": language_model(attention=headjax.Kind(headjax.GroupedAttention, num_heads=4, kv_heads=2, head_dim=4)),
    "compressed": language_model(attention=headjax.Kind(headjax.CompressedAttention, inner=tiny.multi_head(4), rank=7)),
    "collaborative": language_model(attention=tiny.collaborative(4)),
    "t5": t5,
}


@pytest.mark.parametrize("case", first(3, list(CASES)))
def test_every_repaired_map_is_at_its_least_squares(case):
    """What the stream lacks after a repaired layer, errors of earlier layers included, is orthogonal to its features.

    So it is for cross-attention and every residual connection, and nothing gets a bias that has none.
    """
    whole, batches, removed = CASES[case]()
    found = headjax.reconstruct(whole, batches, removed, ridges=(1e-7,))
    repairs = [repair for repair in found.layers if repair.kept]
    assert len(repairs) >= 2, found.layers
    lacking, features = {}, {}
    for batch in batches:
        wanted, got = (walk(model, batch, watch=True).seen for model in (whole, found.model))
        for key, seen in got.items():
            mask = batch["labels"] != -100 if seen.mask is None else np.asarray(seen.mask)
            lacking.setdefault(key, []).append((joined(wanted[key]) - joined(seen))[mask])
            features.setdefault(key, []).append(np.asarray(seen.features, np.float64)[mask])
    slots_of = {"encoder": ("encoder", "attention"), "decoder": ("decoder", "attention")}
    slots_of["cross"] = ("decoder", "cross_attention")
    biased = case not in ("t5", "grouped")
    for repair in repairs:
        stack, number = repair.name.split("/")
        key = (slots_of[stack][0], int(number), slots_of[stack][1])
        x, r = np.concatenate(features[key]), np.concatenate(lacking[key])
        x = np.concatenate([x, np.ones((len(x), int(biased)))], axis=1)
        sizes = np.linalg.norm(x, axis=0)[:, None] * np.linalg.norm(r, axis=0)[None, :]
        assert np.abs(x.T @ r / np.maximum(sizes, 1e-3)).max() < 5e-3, repair.name
        assert repair.unknowns == x.shape[1]


@pytest.mark.parametrize("before", [False, True], ids=["at once", "before"])
def test_a_head_stack_may_lose_all_its_heads(before):
    """At once with heads of other stacks, or before them; what is left is repaired."""
    whole, batches, _ = t5()
    cross = [head for head in headjax.all_heads(whole.config) if head.stack == "cross"]
    start, named = (headjax.prune(whole, cross), ["encoder/0/1"]) if before else (whole, [*cross, "encoder/0/1"])
    found = headjax.reconstruct(start, batches, named)
    assert "encoder/1" in [repair.name for repair in found.layers]
    assert headjax.all_heads(found.model.config) == headjax.all_heads(
        headjax.prune(whole, [*cross, "encoder/0/1"]).config
    )
    assert np.isfinite(found.model(batches[0]).logits).all()


def test_layers_that_share_parameters_are_solved_once():
    whole = tiny.model(encoder.config("albert", num_layers=2, attention=tiny.multi_head(3)))
    found = headjax.reconstruct(whole, BATCHES, ["encoder/0/1"])
    (repair,) = found.layers
    assert repair.tokens == 2 * found.tokens or repair.tokens == found.tokens
    assert repair.kept
    masked = headjax.prune(whole, ["encoder/0/1"])
    errors = [
        np.square(np.asarray(m(BATCHES[0]).hidden - whole(BATCHES[0]).hidden)).mean() for m in (found.model, masked)
    ]
    assert errors[0] < errors[1]


def test_padding_is_ignored(model):
    """Other tokens at padding, more of it, and rows of nothing change no sum."""
    padded = []
    for batch in BATCHES:
        ids = np.where(MASK == 1, batch["input_ids"], 7)
        padded.append(
            {"input_ids": np.concatenate([ids, ids[:2]]), "attention_mask": np.concatenate([MASK, 0 * MASK[:2]])}
        )
    got, expected = (headjax.reconstruct(model, batches, REMOVED, ridges=(1e-3,)) for batches in (padded, BATCHES))
    assert (got.examples, got.tokens) == (expected.examples, expected.tokens)
    assert_close(got.model(BATCHES[0]).logits, expected.model(BATCHES[0]).logits, sums=100 * tiny.SUMS)


def test_the_feed_forward_is_solved_too_where_asked_for(model, repaired):
    alone, both = repaired, headjax.reconstruct(model, BATCHES, REMOVED, feed_forward=True)
    assert [repair.name for repair in alone.layers] == ["decoder/0", "decoder/1", "decoder/2"]
    assert [repair.name for repair in both.layers][:3] == ["decoder/0", "decoder/0/feed_forward", "decoder/1"]
    assert both.layers[1].unknowns == 33
    hidden = model(BATCHES[0]).hidden
    errors = [float(jnp.square(found.model(BATCHES[0]).hidden - hidden).mean()) for found in (alone, both)]
    assert errors[1] < errors[0]


def test_a_repair_that_does_not_help_on_other_examples_is_left_out(model):
    """Few tokens and no ridge: the map fits its examples alone."""
    few = [{"input_ids": BATCHES[0]["input_ids"][:2, :8]}]
    with pytest.warns(UserWarning, match=r"calibration: 16 tokens for 17 unknowns \(decoder/2\)"):
        found = headjax.reconstruct(model, few, REMOVED, ridges=(1e-9,))
    assert not any(repair.kept for repair in found.layers)
    pruned = headjax.prune(model, REMOVED)
    assert_close(found.model(BATCHES[0]).logits, pruned(BATCHES[0]).logits, sums=tiny.SUMS)


def doubled_units(model):
    """The second half of every feed-forward's units computes what the first half does, and writes something else."""

    def double(found):
        half = found.module.hidden // 2
        params = dict(found.params)
        params["up"] = jnp.tile(params["up"][:, :half], (1, 2))
        params["up_bias"] = jnp.tile(params["up_bias"][:half], 2)
        return found.holding(params)

    return map_feed_forward(model, double)


def test_half_of_the_units_go_without_loss_where_they_say_everything_twice(model):
    whole = doubled_units(model)
    found = headjax.reconstruct(whole, BATCHES, [], units=0.5, ridges=(1e-9,))
    smaller = found.model
    assert set(count_units(smaller).values()) == {next(iter(count_units(whole).values())) // 2}
    assert {repair.name for repair in found.layers if repair.name.endswith("feed_forward")} == {
        f"decoder/{layer}/feed_forward" for layer in range(3)
    }
    whole_half = set(range(next(iter(count_units(smaller).values()))))
    for units in found.units.values():
        assert {unit % len(whole_half) for unit in units} == whole_half, "one of each pair is left"
    np.testing.assert_allclose(smaller(BATCHES[0]).logits, whole(BATCHES[0]).logits, atol=5e-2)
    np.testing.assert_allclose(smaller(BATCHES[0]).logits, found.repaired(BATCHES[0]).logits, atol=1e-4)
