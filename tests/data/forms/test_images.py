from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.forms import (
    ImageForm,
)
from headjax.data.rows import Row
from tests.closeness import assert_close
from tests.data.forms.making import examples


def image_form(**fields):
    given = {"size": 8, "stored": 8, "mean": (0.5,) * 3, "deviation": (0.25,) * 3, "classes": ("cat", "dog")}
    return ImageForm(**(given | fields))


def test_images():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    rows = [
        Row("a.png", {"image": pixels, "label": "dog"}),
        Row("b.png", {"image": pixels[:, :, ::-1], "label": 0}),
    ]
    plain = image_form()
    records = plain.encode(None, rows, "train", (0,)).records
    held = examples(plain, None, records, "validation")
    assert held[0]["labels"] == 1
    expected = (pixels.transpose(2, 0, 1) / 255 - 0.5) / 0.25
    assert_close(held[0]["pixel_values"], expected, sums=1)
    assert held[0]["pixel_values"].dtype == np.float32
    moved = image_form(margin=2, flip=True)
    source = examples(moved, None, records)
    drawn = [source.draw(0, np.random.default_rng(i))["pixel_values"] for i in range(200)]
    assert len({one.tobytes() for one in drawn}) > 40  # 5 x 5 places, mirrored or not
    assert_close(examples(moved, None, records, "validation")[0]["pixel_values"], expected, sums=1)
    large = Row("c.png", {"image": np.full((20, 30, 3), 7, np.uint8), "label": 1})
    (record,) = plain.encode(None, [large], "train", (0,)).records
    assert record["image"].shape == (8, 8, 3)
    assert (record["image"] == 7).all()
    for values, message in (
        ({"label": "cow"}, "unknown label 'cow'"),
        ({"label": 2}, "unknown label 2"),
        ({"image": pixels[..., :2]}, r"expected an image uint8 \[height, width, 3\], got uint8 \[8, 8, 2\]"),
    ):
        with pytest.raises(DataError, match=f"^a.png: {message}"):
            plain.encode(None, [Row("a.png", dict(rows[0].values) | values)], "train", (0,))
