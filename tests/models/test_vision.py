import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close

PATCHES = {"image_size": 6, "patch_size": 2, "distillation_token": True}
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
BATCH = {"pixel_values": IMAGES, "labels": np.array([1, 3])}


def config(**fields) -> headjax.VisionConfig:
    fields = PATCHES | {
        "attention": tiny.multi_head(),
        "hidden": 32,
        "width": tiny.WIDTH,
        "num_layers": 2,
        "task": headjax.tasks.DistilledClassification(classes=5),
        "initializer": headjax.nn.Normal(0.3),
    } | fields  # fmt: skip
    return headjax.VisionConfig(**fields)


@pytest.fixture(scope="module")
def model():
    return tiny.model(config())


def test_patches_are_a_convolution():
    """The same as a convolution whose stride is its size, as Hugging Face computes them."""
    kernel = np.random.default_rng(1).standard_normal((3, 2, 2, 7)).astype(np.float32)
    cut = headjax.Vision(config(), rngs=nnx.Rngs(0)).patches.cut(IMAGES) @ kernel.reshape(-1, 7)
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
    smooth, plain = (
        headjax.tasks.Classification(classes=5, label_smoothing=0.2),
        headjax.tasks.Classification(classes=5),
    )
    smoothing = headjax.Model(config(task=smooth), {})
    for smoothed, task in ((True, smooth), (False, plain)):
        losses = smoothing.losses(output, BATCH, smoothed=smoothed)
        assert_close(losses.total, task.loss(output, BATCH).total, sums=1)
    assert headjax.summarize(model.config, 1).length == 11
    assert headjax.summarize(model.config, 1).layers[0].flops == model.config.attention[0].module(16, 16).flops(11, 11)
