from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from headjax.core.errors import DataError
from headjax.core.serialize import from_data, to_data
from headjax.data.image_data import ImageFiles
from headjax.data.stream import train_iterator
from headjax.data.task import DataConfig
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import measure_task
from headjax.models.sublayers import Dense
from headjax.models.tasks import Classification
from headjax.models.vision import Patches, Vit
from tests.closeness import assert_close
from tests.data.test_image_rows import write_cifar
from tests.tiny import model, multi_head

CLASSES = ("apple", "bear", "cat", "dog", "eel", "fox")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One image of each class and split, twice as wide as high, its left half red, class by class brighter."""
    folder = tmp_path_factory.mktemp("images")
    for split in ("train", "val"):
        for number, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            pixels = np.zeros((24, 48, 3), np.uint8)
            pixels[:, :24, 0] = 40 * number + 50
            Image.fromarray(pixels).save(folder / split / name / "one.PNG")
    return folder


def test_folders_of_images(folder):
    config = ImageFiles(path=str(folder), size=14, mean=(0.5, 0.5, 0.5), deviation=(0.5, 0.5, 0.5))
    assert from_data(DataConfig, to_data(config)) == config
    data = config.load()
    assert data.info["labels"] == list(CLASSES)
    row = data.validation[4]
    assert (row["pixel_values"].shape, row["pixel_values"].dtype) == ((3, 14, 14), np.float32)
    assert row["labels"] == 4
    red, green = row["pixel_values"][0], row["pixel_values"][1]
    np.testing.assert_allclose(red[:, 0], (40 * 4 + 50) / 127.5 - 1, atol=0.02)  # the middle square: half red
    np.testing.assert_allclose(red[:, -1], -1, atol=0.02)
    assert_close(green, -1, sums=4)


def test_training_cuts_and_mirrors_at_random_and_the_same_each_time(folder):
    def batches(flip):
        data = ImageFiles(path=str(folder), size=14, flip=flip).load()
        iterator = train_iterator(data.train, 6, 0)
        return [next(iterator) for _ in range(4)]

    first, again = batches(True), batches(True)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["pixel_values"], two["pixel_values"])
    left = np.concatenate([batch["pixel_values"][:, 0, :, 0].mean(axis=1) for batch in first])
    assert np.unique(left > 0).size == 2  # red on the left, or mirrored
    plain = np.concatenate([batch["pixel_values"][:, 0, :, -1].mean(axis=1) for batch in batches(False)])
    assert (plain < 0).all()


def test_cifar_with_its_own_sizes(tmp_path):
    pixels = write_cifar(tmp_path, "cifar10", binary=True)
    data = ImageFiles(path=str(tmp_path)).load()
    assert (len(data.train), len(data.validation)) == (30, 6)
    assert data.info["labels"][3] == "cat"
    values = data.validation[2]["pixel_values"]
    expected = (pixels[5, 2, 1024:2048].reshape(32, 32) / 255 - 0.4822) / 0.2435
    assert_close(values[1], expected, sums=4)
    assert data.train.draw(0, np.random.default_rng(0))["pixel_values"].shape == (3, 32, 32)


def test_top1_and_top5(folder):
    recipe = Vit(
        attention=multi_head(), feed_forward=Dense(16), patches=Patches(image_size=14, patch_size=7, channels=3),
        width=16, num_layers=1, task=Classification(classes=6),
    )  # fmt: skip
    vision = model(recipe.build())
    found = measure_task(vision, load_task(f"images:{folder}", vision), batch_size=4)
    assert found.examples == 6
    assert set(found.metrics) == {"loss", "accuracy", "macro_f1", "matthews", "top5_accuracy"}
    assert found.metrics["top5_accuracy"] == pytest.approx(5 / 6)  # equal images but for their brightness


def test_folders_that_do_not_fit(folder, tmp_path):
    with pytest.raises(DataError, match=rf"^{tmp_path}/none: no such folder$"):
        ImageFiles(path=f"{tmp_path}/none").load()
    with pytest.raises(DataError, match=rf"^{tmp_path}: no folder train in it$"):
        ImageFiles(path=str(tmp_path)).load()
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"train: no images in its folders$"):
        ImageFiles(path=str(tmp_path)).load()
    (tmp_path / "train" / "a" / "one.png").write_bytes(b"no image")
    (tmp_path / "val" / "b").mkdir(parents=True)
    with pytest.raises(DataError, match=r"val: its 1 folders are not named like the 1 to train on$"):
        ImageFiles(path=str(tmp_path)).load()
    (tmp_path / "val" / "b").rename(tmp_path / "val" / "a")
    (tmp_path / "val" / "a" / "one.png").write_bytes(b"no image")
    data = ImageFiles(path=str(tmp_path)).load()
    with pytest.raises(DataError, match=r"one\.png: not an image"):
        data.validation[0]
