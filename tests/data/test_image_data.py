from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.image_data import Mnist
from headjax.data.image_rows import read_idx
from tests.closeness import assert_close


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, count=12, seed=0):
    """Images whose brightest half says which of two classes they are; the test split unpacked."""
    generator = np.random.default_rng(seed)
    for split in ("train", "t10k"):
        labels = generator.integers(0, 2, count).astype(np.uint8)
        images = generator.integers(0, 50, (count, 4, 4)).astype(np.uint8)
        images[np.arange(count), labels * 3] = 250
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx(array)
            path = folder / f"{split}-{name}-ubyte"
            if split == "train":
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data))
            else:
                path.write_bytes(data)
    return folder


def test_pixels_and_labels(tmp_path):
    write_mnist(tmp_path)
    data = Mnist(path=str(tmp_path), mean=0.5, deviation=0.5).load()
    assert (len(data.train), len(data.validation)) == (12, 12)
    assert data.tokenizer is None
    row = data.train[3]
    pixels = read_idx(tmp_path / "train-images-idx3-ubyte.gz")
    assert (row["pixel_values"].shape, row["pixel_values"].dtype) == ((1, 4, 4), np.float32)
    assert_close(row["pixel_values"][0], pixels[3] / 127.5 - 1.0, sums=4)
    assert row["labels"] == read_idx(tmp_path / "train-labels-idx1-ubyte.gz")[3]
    assert data.info["labels"] == ["0", "1"]


def test_found_under_the_root(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    assert len(Mnist().load().train) == 12
    with pytest.raises(DataError, match=rf"^{tmp_path}: not a folder of mnist: expected its files$"):
        Mnist(path=str(tmp_path)).load()


@pytest.mark.parametrize(
    "data, message",
    [
        (b"text", "not an IDX file of bytes"),
        (b"\0\0\x08\x03\0\0", "cut off after 6 bytes"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"17 bytes where an array \[2, 3\] has 18"),
        (idx(np.zeros((0, 3), np.uint8)), r"empty, an array \[0, 3\]"),
    ],
)
def test_broken_files(tmp_path, data, message):
    path = tmp_path / "a-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"^{path}: {message}"):
        read_idx(path)


def test_images_and_labels_must_be_as_many(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(DataError, match=r"do not belong together, they are \[12, 4, 4\] and \[3\]$"):
        Mnist(path=str(tmp_path)).load()
    with pytest.raises(ConfigError, match=r"^deviation: must be positive"):
        Mnist(deviation=0.0)


def test_real_files(data_dir):
    data = Mnist(path=str(data_dir / "images" / "mnist")).load()
    assert (len(data.train), len(data.validation)) == (60000, 10000)
    pixels = np.stack([data.train.records[index]["image"] for index in range(len(data.train))]) / 255
    assert abs(pixels.mean() - 0.1307) < 1e-4
    assert abs(pixels.std() - 0.3081) < 1e-4
    labels = [data.validation[index]["labels"] for index in range(10000)]
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_a_label_that_training_does_not_have(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte: label 7, but training has the 2 classes from 0$"):
        Mnist(path=str(tmp_path)).load()
