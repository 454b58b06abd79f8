"""Files of images in the formats of MNIST and CIFAR."""

import gzip
import struct

import numpy as np

from headjax.data.image_rows import CIFAR


def write_cifar(folder, name, count=6):
    """Files of random images; the labels count up through the classes. Returns the pixels `[files, count, 3072]`."""
    layout, generator = CIFAR[name], np.random.default_rng(0)
    files = [file for part in layout.files for file in part]
    pixels = generator.integers(0, 256, (len(files), count, 3072), dtype=np.uint8)
    for file, part in zip(files, pixels, strict=True):
        labels = np.arange(count) % layout.classes
        coarse = np.full((count, layout.label_bytes - 1), 7)
        rows = np.concatenate([coarse, labels[:, None], part], axis=1).astype(np.uint8)
        (folder / file).write_bytes(rows.tobytes())
    return pixels


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
