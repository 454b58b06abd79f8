"""Images become numbers as a model's `preprocessor_config.json` says."""

import importlib.util
import json

import numpy as np
import pytest

import headjax
from headjax.data.forms.images import FILE, preprocessing_of
from headjax.evaluation.predictions import predict_images
from tests.closeness import assert_close
from tests.hub.directories import CONFIGS, model_of

VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}, "resample": 2}
DEIT = {"image_processor_type": "DeiTImageProcessor", "size": {"height": 20, "width": 20}, "do_center_crop": True}
DEIT |= {"crop_size": {"height": 16, "width": 16}, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.2, 0.3, 0.4]}
CLASSES = {"0": "a", "1": "b", "2": "c"}
SETTINGS = {
    "plain": VIT,
    "mean": VIT | {"image_mean": [0.0, 0.25, 0.5], "image_std": [1.0, 0.5, 0.25]},
    "old": {"feature_extractor_type": "ViTFeatureExtractor", "size": 16, "resample": 3, "do_resize": True},
    "not normalized": VIT | {"do_normalize": False},
    "not rescaled": VIT | {"do_rescale": False, "image_mean": [100.0] * 3, "image_std": [50.0] * 3},
    "rescaled otherwise": VIT | {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
    "DeiT": DEIT,
    "shortest edge": DEIT | {"size": {"shortest_edge": 20}, "resample": 3},
}


@pytest.fixture
def images(tmp_path):
    """A folder of images of several shapes."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for split in ("train", "validation"):
        for name, shape in (("a", (16, 16, 3)), ("b", (40, 30, 3)), ("c", (20, 33, 3))):
            (tmp_path / split / name).mkdir(parents=True)
            pixels = generator.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / split / name / "0.png")
    return tmp_path


def examples(folder, settings):
    data = headjax.data.DataConfig(task=f"images:{folder}").for_files({FILE: json.dumps(settings).encode()}).load()
    return np.stack([data.validation[index]["pixel_values"] for index in range(3)])


@pytest.mark.parity
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra")
@pytest.mark.parametrize("name", SETTINGS)
def test_images_are_read_as_transformers_reads_them(images, tmp_path, name):
    import transformers
    from PIL import Image

    (tmp_path / FILE).write_text(json.dumps(SETTINGS[name]))
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    files = sorted((images / "validation").glob("*/*.png"))
    expected = theirs([Image.open(file) for file in files], return_tensors="np")["pixel_values"]
    assert_close(examples(images, SETTINGS[name]), expected, sums=8)


@pytest.mark.parametrize(
    ("kind", "size", "read"), [("dinov2", 8, 16), ("dinov2", 16, 16), ("vit", 16, 16), ("vit", 8, 0)]
)
def test_images_have_the_size_that_the_files_make_where_the_model_reads_it(images, kind, size, read):
    """As of facebook's DINOv2, whose files crop to 224 where its config says 518."""
    model = model_of(CONFIGS[kind] | {"image_size": size, "id2label": CLASSES})
    model = model.replace(files={FILE: json.dumps(DEIT).encode()})
    if not read:
        with pytest.raises(
            headjax.ConfigError, match=rf"{FILE}: images of 16 pixels a side, but the model reads {size}"
        ):
            headjax.load_task(f"images:{images}", model)
        return
    (batch,) = headjax.load_task(f"images:{images}", model).batches(3)
    assert batch["pixel_values"].shape == (3, 3, read, read)
    assert [one["given"] for one in predict_images(model, f"images:{images}")] == ["a", "b", "c"]


def test_without_files_images_have_the_size_of_the_model(images):
    model = model_of(CONFIGS["dinov2"] | {"image_size": 8, "id2label": CLASSES})
    (batch,) = headjax.load_task(f"images:{images}", model).batches(3)
    assert batch["pixel_values"].shape == (3, 3, 8, 8)


def test_mean_deviation_and_divisor(images):
    plain = examples(images, VIT | {"do_normalize": False, "do_rescale": False})
    assert plain.max() > 200
    found = examples(images, SETTINGS["mean"])
    expected = (plain / 255 - np.reshape([0.0, 0.25, 0.5], (3, 1, 1))) / np.reshape([1.0, 0.5, 0.25], (3, 1, 1))
    assert_close(found, expected.astype(np.float32), sums=8)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"size": {"height": 16, "width": 20}}, "size"),
        ({"size": {"shortest_edge": 16}}, "size"),
        ({"size": 16, "image_mean": ["red"]}, "image_mean"),
        ({"size": 16, "image_std": [0.0] * 3}, "image_std"),
    ],
)
def test_what_is_not_supported_is_named(settings, field):
    with pytest.raises(headjax.ConfigError, match=rf"{field}: "):
        preprocessing_of({FILE: json.dumps(settings).encode()})
