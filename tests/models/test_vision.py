from __future__ import annotations

import jax
import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.core.serialize import from_data, to_data
from headjax.core.tensors import Normal
from headjax.models import Compute, ModelConfig, VisionModel
from headjax.models.sublayers import Dense
from headjax.models.summary import summarize
from headjax.models.tasks import Classification, DistilledClassification, Span
from headjax.models.vision import Patches, Vit
from tests import tiny
from tests.closeness import assert_close

PATCHES = Patches(image_size=6, patch_size=2, channels=3, distillation_token=True)
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
BATCH = {"pixel_values": IMAGES, "labels": np.array([1, 3])}


def config(**fields) -> VisionModel:
    fields = {
        "attention": tiny.multi_head(),
        "feed_forward": Dense(32),
        "patches": PATCHES,
        "width": tiny.WIDTH,
        "num_layers": 2,
        "task": DistilledClassification(classes=5),
        "initializer": Normal(0.3),
    } | fields
    return Vit(**fields).build()


@pytest.fixture(scope="module")
def model():
    return tiny.model(config())


def test_patches_are_a_convolution():
    """The same as a convolution whose stride is its size, as Hugging Face computes them."""
    kernel = np.random.default_rng(1).standard_normal((3, 2, 2, 7)).astype(np.float32)
    cut = PATCHES.cut(IMAGES) @ kernel.reshape(-1, 7)
    convolved = jax.lax.conv_general_dilated(
        IMAGES, kernel, (2, 2), "VALID", dimension_numbers=("NCHW", "IHWO", "NCHW")
    )
    assert_close(cut, convolved.reshape(2, 7, 9).transpose(0, 2, 1), sums=3 * 2 * 2)


def test_lengths_and_outputs(model):
    output = model(BATCH, attention=True)
    assert output.hidden.shape == (2, 11, tiny.WIDTH)
    assert output.attention["encoder"][0].shape == (2, 4, 11, 11)
    assert output.logits.shape == (2, 5)
    extra = output.extra_logits
    assert_close(output.logits, (extra["cls_logits"] + extra["distillation_logits"]) / 2, sums=2)
    np.testing.assert_array_equal(output.pooled, output.hidden[:, 0])
    assert summarize(model.config, 1).length == 11
    assert summarize(model.config, 1).layers[0].flops == model.config.encoder.layers[0].attention.flops(16, 16, 11, 11)


def test_distillation_loss_is_half_label_half_teacher(model):
    output = model(BATCH)
    taught = BATCH | {"teacher_labels": np.array([0, 3])}
    first, second = (
        -np.asarray(jax.nn.log_softmax(output.extra_logits[f"{name}_logits"]))[[0, 1], labels]
        for name, labels in (("cls", [1, 3]), ("distillation", [0, 3]))
    )
    assert_close(model.config.loss(output, taught).total, (first + second) / 2, sums=5)
    assert model.config.loss(output, BATCH).total[0] != model.config.loss(output, taught).total[0]


def test_evaluation_reports_the_loss_without_smoothing():
    model = tiny.model(config(task=Classification(classes=5, dropout=0.0, label_smoothing=0.2)))
    output = model(BATCH)
    log = np.asarray(jax.nn.log_softmax(output.logits))
    nll = -log[[0, 1], [1, 3]]
    smoothed = 0.8 * nll - 0.2 * log.mean(axis=1)
    assert_close(model.config.loss(output, BATCH).total, smoothed, sums=5)
    assert_close(model.config.for_evaluation().loss(output, BATCH).total, nll, sums=5)


def test_shares_of_classes_are_weighted_labels(model):
    shares = np.zeros((2, 5), np.float32)
    shares[[0, 1], [1, 3]] = 0.7
    shares[[0, 1], [4, 0]] = 0.3
    smooth = tiny.model(config(task=Classification(classes=5, dropout=0.0, label_smoothing=0.2)))
    for one in (model, smooth):
        output = one(BATCH)
        first, second = (
            one.config.loss(output, BATCH | {"labels": np.asarray(labels)}).total for labels in ([1, 3], [4, 0])
        )
        mixed = one.config.loss(output, BATCH | {"labels": shares})
        assert_close(mixed.total, 0.7 * first + 0.3 * second, sums=5)
        np.testing.assert_array_equal(mixed.weight, [1.0, 1.0])
        padded = one.config.loss(output, BATCH | {"labels": np.where([[True], [False]], shares, np.float32(np.nan))})
        assert_close(padded.total, [mixed.total[0], 0.0], sums=5)
        np.testing.assert_array_equal(padded.weight, [1.0, 0.0])


def test_scanned_is_unrolled_and_json(model):
    scanned, unrolled = (model(BATCH, compute=Compute(scan=scan)).logits for scan in (True, False))
    assert_close(scanned, unrolled, sums=tiny.SUMS)
    assert from_data(ModelConfig, to_data(model.config)) == model.config


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"task": Span()}, "output: "),
        (
            {"patches": Patches(image_size=6, patch_size=2)},
            r"patches\.distillation_token: ",
        ),
    ],
)
def test_impossible_models_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        config(**fields)


def test_impossible_patches_are_refused():
    with pytest.raises(ConfigError, match=r"patch_size: "):
        Patches(image_size=6, patch_size=4)


def test_images_of_another_shape_are_errors(model):
    channels_last = {"pixel_values": IMAGES.transpose(0, 2, 3, 1)}
    with pytest.raises(DataError, match=r"pixel_values: "):
        model.config.apply(model.params, channels_last, tiny.OPTIONS)
    with pytest.raises(DataError, match=r"pixel_values: "):
        model.config.apply(model.params, {}, tiny.OPTIONS)
