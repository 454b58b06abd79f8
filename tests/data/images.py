"""Files of images in MNIST's format."""

import gzip
import struct

import numpy as np
from PIL import Image


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_folders(folder, side=8):
    """Images in folders by split and class: `bad` ones are dark, `good` ones bright."""
    for split in ("train", "validation"):
        for name, pixel in (("bad", 20), ("good", 220)):
            (folder / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((side, side, 3), pixel + number, np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


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
