from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.image_rows import CIFAR, cifar_rows, find_cifar, pixels


def write_cifar(folder, name, count=6):
    """Files of random images; the labels count up through the classes. Returns the pixels `[files, count, 3072]`."""
    layout, generator = CIFAR[name], np.random.default_rng(0)
    files = [*layout.train, *layout.test]
    pixels = generator.integers(0, 256, (len(files), count, 3072), dtype=np.uint8)
    for file, part in zip(files, pixels, strict=True):
        labels = np.arange(count) % layout.classes
        coarse = np.full((count, layout.label_bytes - 1), 7)
        rows = np.concatenate([coarse, labels[:, None], part], axis=1).astype(np.uint8)
        (folder / file).write_bytes(rows.tobytes())
    return pixels


@pytest.mark.parametrize("name", CIFAR)
def test_cifar(tmp_path, name):
    pixels = write_cifar(tmp_path, name)
    assert find_cifar(tmp_path) == name
    found = cifar_rows(tmp_path, name)
    assert found.rows["train"].count == (len(pixels) - 1) * 6
    assert [row.values["label"] for row in found.rows["validation"].rows()] == list(range(6))
    image = found.rows["train"].at(1).values["image"]
    assert (image.shape, image.dtype) == ((32, 32, 3), np.uint8)
    assert (image[2, 3, 0], image[2, 3, 2]) == (pixels[0, 1, 2 * 32 + 3], pixels[0, 1, 2048 + 2 * 32 + 3])


def test_other_folders(tmp_path):
    assert find_cifar(tmp_path) is None
    with pytest.raises(DataError, match=r"data_batch_1.bin: no such file$"):
        cifar_rows(tmp_path, "cifar10")


@pytest.mark.parametrize("data", [b"\x00" * 3074, b"", b"\x0a" + b"\x00" * 3072])
def test_broken_binary_files(tmp_path, data):
    write_cifar(tmp_path, "cifar10")
    (tmp_path / "data_batch_2.bin").write_bytes(data)
    with pytest.raises(DataError, match=r"data_batch_2\.bin: "):
        cifar_rows(tmp_path, "cifar10")


def png(width, height):
    """A PNG file that declares this size and holds no pixel."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    sums = (struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts)
    chunks = (struct.pack(">I", len(data)) + kind + data + crc for (kind, data), crc in zip(parts, sums, strict=True))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            png(60_000, 60_000),
            r"too large for an image \(Image size \(3600000000 pixels\) exceeds limit of \d+ pixels\)",
        ),
        (png(2, 2), r"not an image \("),
        (png(0, 5), r"not an image \("),
        (b"", r"not an image \("),
    ],
)
def test_pixels_that_an_image_declares_and_does_not_hold(data, message):
    with pytest.raises(DataError, match=rf"^a\.png: {message}"):
        pixels(data, "a.png")
