"""Conversions that calibration batches improve."""

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.conversion.calibration import calibrate, collect
from headjax.conversion.model import describe
from headjax.core.class_names import IGNORED
from headjax.heads.agreement import agreement
from headjax.models.inputs import counted_at
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import EXACT, LABELS, LOSSY, PADDED, QUICK, crossed, hidden
from tests.hub.directories import LLAMA, model_of
from tests.models.test_vision import config as vision
from tests.selected import first


def test_calibration_lowers_the_error_of_logits(model) -> None:
    expected = hidden(model, PADDED)
    for target in (
        headjax.conversion.ToCollaborative(shared_dim=6, solver=QUICK),
        headjax.conversion.ToFixed(head_dim=3),
    ):
        plain, calibrated = (headjax.convert(model, target, batches=[PADDED], plain=plain) for plain in (True, False))
        assert all(error.logit_error is None for error in headjax.convert(model, target).errors)
        for before, after in zip(plain.errors, calibrated.errors, strict=True):
            assert after.logit_error < before.logit_error
        change = [np.square(hidden(found.model, PADDED) - expected).sum() for found in (plain, calibrated)]
        assert change[1] < change[0]


@pytest.mark.parametrize("target", list(EXACT))
def test_calibrated_conversions_that_lose_nothing_keep_the_function(model, outputs, target: str) -> None:
    converted, _ = headjax.convert(model, EXACT[target], batches=[PADDED])
    np.testing.assert_allclose(hidden(converted, PADDED), outputs, atol=1e-3)


def test_calibration_sees_cross_attention(tmp_path) -> None:
    source, batch = crossed(), PADDED | {"labels": LABELS}
    _, errors = headjax.convert(source, LOSSY["latent"], batches=[batch], stacks=["cross"])
    assert [(error.stack, error.layer) for error in errors] == [("cross", 0), ("cross", 1)]
    assert all(error.logit_error is not None for error in errors)


def test_target_tokens_without_labels_do_not_count() -> None:
    """Labels of -100 fill up a batch of translations, which has no mask of its own for the target."""
    model, length = crossed(), LABELS.shape[1]
    labels = np.where(np.arange(length)[None] < np.arange(length, length - len(LABELS), -1)[:, None], LABELS, IGNORED)
    batch = PADDED | {"labels": labels}
    masked = batch | {"decoder_attention_mask": labels != IGNORED}
    for found, expected in zip(collect(model, [batch]).values(), collect(model, [masked]).values(), strict=True):
        for moment, other in zip(found, expected, strict=True):
            assert_close(moment, other, sums=tiny.SUMS)
    counted = model(batch, probe=lambda probe: counted_at(probe.query_mask, probe.inputs.shape[:2])).require_probes()
    for stack in ("decoder", "cross"):
        np.testing.assert_array_equal(counted[stack][0], labels != IGNORED)
    everywhere = collect(model, [batch | {"labels": LABELS}])["cross", 0]
    assert np.abs(everywhere.query_mean - collect(model, [batch])["cross", 0].query_mean).max() > 1e-3


def test_rows_that_fill_up_a_batch_of_images_do_not_count() -> None:
    model = tiny.model(
        vision(
            image_size=8,
            patch_size=4,
            distillation_token=False,
            num_layers=1,
            task=headjax.tasks.Classification(classes=3),
        )
    )
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    filled = {"pixel_values": images, "labels": np.array([2, 0, IGNORED])}
    found, expected = (collect(model, [batch])["encoder", 0] for batch in (filled, {"pixel_values": images[:2]}))
    for moment, other in zip(found, expected, strict=True):
        assert_close(moment, other, sums=tiny.SUMS)


BATCHES = [{"input_ids": np.random.default_rng(seed).integers(1, 20, (4, 8))} for seed in range(8)]


TRIED = {
    "grouped:kv_heads=1": (
        "grouped:kv_heads=1,pooling=fitted,grouping=best",
        "grouped:kv_heads=1,pooling=aligned,grouping=best",
    ),
    "grouped:kv_heads=2,pooling=mean": ("grouped:kv_heads=2,pooling=mean,grouping=best",),
    "latent:rank=5": ("latent:rank=5", "latent by keys:rank=5"),
    "fixed:head_dim=2": ("fixed:head_dim=2",),
}


@pytest.mark.parametrize("to", first(1, TRIED))
def test_a_criterion_is_chosen_by_the_output_on_batches_that_it_was_not_fitted_on(to: str) -> None:
    """Each is tried calibrated and plain, and the one that is taken is fitted on all batches."""
    model = model_of(LLAMA)
    converted = headjax.convert(model, to, batches=BATCHES).model
    entry = converted.history[-1]
    tried = entry["divergence"]
    others = collect(model, [batch for number, batch in enumerate(BATCHES) if number % 4 != 3])
    everything, expected, made = collect(model, BATCHES), {}, {}
    for target in headjax.conversion.parse_target(to).criteria():
        for plain in (False, True):
            text = describe(target) + " (plain)" * plain
            alone = headjax.convert(model, target, batches=others, plain=plain).model
            expected[text] = agreement(model, alone, BATCHES[3::4]).distance
            made[text] = headjax.convert(model, target, batches=everything, plain=plain).model
    assert set(tried) == {text + ending for text in TRIED[to] for ending in ("", " (plain)")}
    assert tried == pytest.approx(expected, rel=1e-5)
    best = min(tried, key=tried.get)
    assert ({*entry["to"].values()}, entry["calibrated"]) == ({best.removesuffix(" (plain)")}, "plain" not in best)
    assert_close(converted(BATCHES[0]).logits, made[best](BATCHES[0]).logits, sums=tiny.SUMS)


def test_one_batch_is_cut_by_its_examples() -> None:
    model = model_of(LLAMA)
    found = calibrate(model, BATCHES[:1])
    assert [len(batch["input_ids"]) for batch in found.eval_batches] == [1]
    whole = collect(model, BATCHES[:1])["decoder", 0]
    assert_close(found.moments["decoder", 0].key_covariance, whole.key_covariance, sums=tiny.SUMS)


@pytest.mark.whole
@pytest.mark.parametrize("target", ["grouped:kv_heads=1", "latent:rank=4"])
def test_output_projections_solved_anew_bring_the_outputs_nearer(target) -> None:
    model = model_of(LLAMA)
    batches = [{"input_ids": np.random.default_rng(seed).integers(1, 20, (8, 8))} for seed in range(40)]
    unseen = {"input_ids": np.random.default_rng(99).integers(1, 20, (16, 8))}
    before, after = (
        headjax.convert(model, target, batches=batches, reconstruct=reconstruct).model for reconstruct in (False, True)
    )
    assert after.history[-1]["repaired"]
    near, far = (float(jnp.square(each(unseen).hidden - model(unseen).hidden).mean()) for each in (after, before))
    assert near < 0.9 * far
    with pytest.raises(headjax.ConfigError, match=r"^reconstruct:"):
        headjax.convert(model, target, reconstruct=True)


def test_layers_with_other_weights_than_the_whole_models_are_repaired() -> None:
    """Shared keys have no bias of their own where the heads' keys have one."""
    whole = tiny.model(tiny.decoder_config())
    batches = [tiny.tokens(16, 12, seed) for seed in range(4)]
    after = headjax.convert(whole, "collaborative:shared_dim=8", batches=batches, reconstruct=True).model
    assert after.history[-1]["action"] == "reconstruct"
    assert jnp.isfinite(after(batches[0]).hidden).all()
