"""Images with labels, prepared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from headjax.data.prepared.form import Encoded, Form, Record, Records, Seed, Split
from headjax.data.prepared.rows import TaskRow
from headjax.data.task import RandomSource, Source
from headjax.data.tokenizers import Tokenizer
from headjax.errors import DataError, require, require_positive
from headjax.serialize import kind


@kind("image_rows")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageForm(Form):
    """`image`, uint8 `[height, width, channels]`, and `label`, a class's number or name.

    Images are stored as squares of `stored` pixels a side: scaled so that the shorter side is that long, and the middle
    cut out. Training reads a random square of `size` of them, or of the stored ones inside a black margin, mirrored
    half of the time where `flip` says so; evaluation the middle one. Examples hold `pixel_values` float32
    `[channels, size, size]`, (pixel / 255 - mean) / deviation, and `labels`.

    Attributes:
        size: pixels of a side as the model reads them.
        stored: pixels of a side on disk.
        margin: pixels of the margin.
        flip: whether training mirrors images.
        mean, deviation: of each channel, of pixels between 0 and 1.
        classes: names in the order of the class numbers.
    """

    fields: ClassVar = {"image": "image", "label": "label"}
    reads_text: ClassVar[bool] = False

    size: int
    stored: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: tuple[str, ...]
    margin: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "size", "stored")
        require(self.margin >= 0, "margin", f"must not be negative, got {self.margin}")
        require(self.stored >= self.size, "stored", f"{self.stored} pixels are fewer than size, {self.size}")
        require(all(value > 0 for value in self.deviation), "deviation", f"must be positive, got {self.deviation}")
        require(len(self.mean) == len(self.deviation), "mean", "and deviation must have as many channels")

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.classes

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[TaskRow], split: Split, seed: Seed) -> Encoded:
        names = {name: number for number, name in enumerate(self.classes)}
        records: list[Record] = []
        for row in rows:
            label = row.values["label"]
            number = names.get(label, -1) if isinstance(label, str) else int(label)
            if not 0 <= number < len(names):
                raise DataError(f"{row.place}: unknown label {label!r}; there are {len(names)} classes")
            image = self._square(row)
            records.append({"image": image, "labels": np.asarray([number], np.int32)})
        return Encoded(records, {})

    def _square(self, row: TaskRow) -> np.ndarray:
        """The image as it is stored."""
        pixels = np.asarray(row.values["image"])
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        channels = len(self.mean)
        if pixels.ndim != 3 or pixels.shape[2] != channels or pixels.dtype != np.uint8:
            found = f"{pixels.dtype} {list(pixels.shape)}"
            raise DataError(f"{row.place}: expected an image uint8 [height, width, {channels}], got {found}")
        if pixels.shape[:2] != (self.stored, self.stored):
            pixels = _scaled(pixels, self.stored)
        return np.ascontiguousarray(pixels)

    @property
    def side(self) -> int:
        """Pixels of a side that squares are cut from."""
        return self.stored + 2 * self.margin

    def tokens(self, record: Record) -> int:
        return 1

    def train(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Source:
        return AugmentedImages(records, self)

    def validation(self, tokenizer: Tokenizer | None, records: Sequence[Record]) -> Source:
        return PlainImages(records, self)

    def example(self, record: Record, top: int, left: int, mirrored: bool) -> dict[str, np.ndarray]:
        """A square of a stored image inside its margin."""
        image = np.pad(record["image"], [(self.margin, self.margin)] * 2 + [(0, 0)]) if self.margin else record["image"]
        square = image[top : top + self.size, left : left + self.size]
        square = square[:, ::-1] if mirrored else square
        mean, deviation = (np.asarray(numbers, np.float32) for numbers in (self.mean, self.deviation))
        values = (square.astype(np.float32) / 255.0 - mean) / deviation
        return {"pixel_values": values.transpose(2, 0, 1), "labels": record["labels"][0]}


@dataclasses.dataclass(frozen=True)
class PlainImages:
    """The middle square of every image.

    Attributes:
        records: the records.
        form: how they become examples.
    """

    records: Records
    form: ImageForm

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        corner = (self.form.side - self.form.size) // 2
        return self.form.example(self.records[index], corner, corner, mirrored=False)


@dataclasses.dataclass(frozen=True)
class AugmentedImages(RandomSource):
    """A random square of every image, maybe mirrored.

    Attributes:
        records: the records.
        form: how they become examples.
    """

    records: Records
    form: ImageForm

    def __len__(self) -> int:
        return len(self.records)

    def draw(self, index: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        top, left = generator.integers(self.form.side - self.form.size + 1, size=2)
        mirrored = self.form.flip and bool(generator.random() < 0.5)
        return self.form.example(self.records[index], int(top), int(left), mirrored)


def _scaled(pixels: np.ndarray, side: int) -> np.ndarray:
    """The middle square of an image scaled so that its shorter side has `side` pixels."""
    from PIL import Image

    height, width = pixels.shape[:2]
    scale = side / min(height, width)
    wide, high = max(side, round(width * scale)), max(side, round(height * scale))
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image = image.resize((wide, high), Image.Resampling.BICUBIC)
    left, top = (wide - side) // 2, (high - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side))).reshape(side, side, -1)
