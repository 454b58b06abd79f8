from __future__ import annotations

import pickle
import struct
import zlib

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.image_rows import CIFAR, find_cifar, pixels, read_cifar


def write_cifar(folder, name, *, binary, count=6):
    """Files of random images; the labels count up through the classes. Returns the pixels `[files, count, 3072]`."""
    layout, generator = CIFAR[name], np.random.default_rng(0)
    files = [*layout.train, *layout.test]
    pixels = generator.integers(0, 256, (len(files), count, 3072), dtype=np.uint8)
    for file, part in zip(files, pixels, strict=True):
        labels = np.arange(count) % layout.classes
        if binary:
            coarse = np.full((count, layout.label_bytes - 1), 7)
            rows = np.concatenate([coarse, labels[:, None], part], axis=1).astype(np.uint8)
            (folder / f"{file}.bin").write_bytes(rows.tobytes())
        else:
            data = {b"data": part, layout.label_key: labels.tolist(), b"filenames": [b"x.png"] * count}
            (folder / file).write_bytes(pickle.dumps(data, protocol=2))
    return pixels


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("binary", [True, False])
def test_both_versions_hold_the_same(tmp_path, name, binary):
    pixels = write_cifar(tmp_path, name, binary=binary)
    assert find_cifar(tmp_path) == name
    found = read_cifar(tmp_path, name)
    train, validation = found["train"], found["validation"]
    assert (train.pixels.shape, train.pixels.dtype) == (((len(pixels) - 1) * 6, 32, 32, 3), np.uint8)
    assert validation.labels.tolist() == list(range(6))
    red, blue = train.pixels[1, 2, 3, 0], train.pixels[1, 2, 3, 2]
    assert (red, blue) == (pixels[0, 1, 2 * 32 + 3], pixels[0, 1, 2048 + 2 * 32 + 3])


def test_other_folders(tmp_path):
    assert find_cifar(tmp_path) is None
    with pytest.raises(DataError, match=r"data_batch_1: no such file$"):
        read_cifar(tmp_path, "cifar10")


@pytest.mark.parametrize(
    "data, message",
    [
        (b"\x00" * 3074, r"3,074 bytes are not a whole number of images of 3,073"),
        (b"", r"0 images and 0 labels"),
        (b"\x0a" + b"\x00" * 3072, r"label 10, but there are 10 classes"),
    ],
)
def test_broken_binary_files(tmp_path, data, message):
    write_cifar(tmp_path, "cifar10", binary=True)
    (tmp_path / "data_batch_2.bin").write_bytes(data)
    with pytest.raises(DataError, match=rf"data_batch_2\.bin: {message}"):
        read_cifar(tmp_path, "cifar10")


class Harmful:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    "data, message",
    [
        (b"text", r"UnpicklingError"),
        (pickle.dumps({b"data": 1}), r"KeyError"),
        (pickle.dumps(Harmful()), r"UnpicklingError: it asks for builtins\.print"),
    ],
)
def test_broken_python_files(tmp_path, capsys, data, message):
    write_cifar(tmp_path, "cifar100", binary=False)
    (tmp_path / "train").write_bytes(data)
    with pytest.raises(DataError, match=rf"train: not a file of CIFAR's Python version \({message}"):
        read_cifar(tmp_path, "cifar100")
    assert capsys.readouterr().out == ""


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
