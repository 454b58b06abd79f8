"""Images: files of every kind become pixels and labels."""

import gzip
import io
import shutil

import numpy as np
import pytest
from PIL import Image

import headjax
from headjax.core.serialize import from_data, to_data
from headjax.data.files import pixels, read_idx
from tests.closeness import assert_close
from tests.data.images import idx, write_mnist
from tests.tiny import model, multi_head


def test_images_of_16_bits_keep_their_brightness():
    written = io.BytesIO()
    Image.fromarray(np.asarray([[0, 256, 65535]], np.uint16)).save(written, "png")
    assert pixels(written.getvalue(), "a.png").tolist() == [[0, 1, 255]]


def test_mnist_is_pixels_and_labels_and_found_under_the_root(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    folder = write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    data = headjax.data.DataConfig(task="mnist", form={"mean": (0.5,), "deviation": (0.5,)}).load()
    assert (len(data.train), len(data.validation)) == (12, 12)
    assert data.tokenizer is None
    plain = headjax.data.DataConfig(task="mnist")
    assert plain.for_classes(("a", "b")) == plain  # whose classes have no other order
    row = data.train[3]
    pixels = read_idx(folder / "train-images-idx3-ubyte.gz")
    assert (row["pixel_values"].shape, row["pixel_values"].dtype) == ((1, 4, 4), np.float32)
    assert_close(row["pixel_values"][0], pixels[3] / 127.5 - 1.0, sums=4)
    assert row["labels"] == read_idx(folder / "train-labels-idx1-ubyte.gz")[3]
    assert data.info["labels"] == ["0", "1"]
    with pytest.raises(headjax.DataError, match=rf"^{tmp_path}: "):
        headjax.data.DataConfig(task=f"mnist:{tmp_path}").load()
    with pytest.raises(headjax.ConfigError, match=r"^form.deviation"):
        headjax.data.DataConfig(task="mnist", form={"deviation": (0.0,)}).load()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        *(
            ("train-images-idx3-ubyte.gz", data, "")
            for data in (b"text", b"\0\0\x08\x03\0\0", idx(np.zeros((2, 3), np.uint8))[:-1], idx(np.zeros((0, 3))))
        ),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(3, np.uint8)), r".*\[12, 4, 4\] and \[3\]"),
        ("t10k-labels-idx1-ubyte", idx(np.full(12, 7, np.uint8)), ".*label 7"),
    ],
)
def test_broken_files_of_mnist(tmp_path, name, data, said):
    (write_mnist(tmp_path) / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(headjax.DataError, match=rf"^{tmp_path}/{name.removesuffix('labels-idx1-ubyte')}{said}"):
        headjax.data.DataConfig(task=f"mnist:{tmp_path}").load()


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
    for hidden in (folder / "train" / ".ipynb_checkpoints", folder / "val" / "eel" / "._one.png"):
        hidden.mkdir()  # what editors and systems leave behind
    config = headjax.data.DataConfig(
        task=f"images:{folder}", form={"size": 14, "mean": [0.5] * 3, "deviation": [0.5] * 3}
    )
    assert from_data(headjax.data.DataConfig, to_data(config)) == config
    data = config.load()
    assert data.info["labels"] == list(CLASSES)
    row = data.validation[4]
    assert (row["pixel_values"].shape, row["pixel_values"].dtype) == ((3, 14, 14), np.float32)
    assert row["labels"] == 4
    red, green = row["pixel_values"][0], row["pixel_values"][1]
    np.testing.assert_allclose(red[:, 0], (40 * 4 + 50) / 127.5 - 1, atol=0.02)  # the middle square: half red
    np.testing.assert_allclose(red[:, -1], -1, atol=0.02)
    assert_close(green, -1, sums=4)


def test_top1_and_top5(folder, tmp_path):
    config = headjax.VisionConfig(
        attention=multi_head(), hidden=16, image_size=14, patch_size=7, width=16, num_layers=1,
        task=headjax.tasks.Classification(classes=6),
    )  # fmt: skip
    vision = model(config)
    found = headjax.measure_task(vision, headjax.load_task(f"images:{folder}", vision), batch_size=4)
    alone = shutil.copytree(folder / "val", tmp_path / "validation").parent
    assert (
        headjax.measure_task(vision, headjax.load_task(f"images:{alone}", vision), batch_size=4).metrics
        == found.metrics
    )
    with pytest.raises(headjax.DataError, match="one split only"):
        headjax.load_task(f"images:{alone}", vision, split="train")
    assert found.examples == 6
    assert set(found.metrics) == {"loss", "accuracy", "macro_f1", "matthews", "top5_accuracy"}
    assert found.metrics["top5_accuracy"] == pytest.approx(5 / 6)  # equal images but for their brightness


def test_folders_that_do_not_fit(tmp_path):
    def refused(said):
        with pytest.raises(headjax.DataError, match=said):
            headjax.data.DataConfig(task=f"images:{tmp_path}").load()

    with pytest.raises(headjax.DataError, match=rf"^{tmp_path}/none: "):
        headjax.data.DataConfig(task=f"images:{tmp_path}/none").load()
    refused(rf"^{tmp_path}: .*train")
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "val" / "b").mkdir(parents=True)
    refused("train: no images")
    (tmp_path / "train" / "a" / "one.png").write_bytes(b"no image")
    refused("val: its 1 folders")
    (tmp_path / "val" / "b").rename(tmp_path / "val" / "a")
    (tmp_path / "val" / "a" / "one.png").write_bytes(b"no image")
    data = headjax.data.DataConfig(task=f"images:{tmp_path}").load()
    with pytest.raises(headjax.DataError, match=r"one\.png: not an image"):
        data.validation[0]
