"""The form of images with labels, and how a model's `preprocessor_config.json` makes numbers of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.errors import ConfigError, DataError, require
from headjax.core.fields import Count, Positive, Size
from headjax.core.serialize import kind
from headjax.data.examples import Drawn, ExampleSource, Mapped, Record, Records
from headjax.data.forms.form import Encoded, Form, Seed
from headjax.data.rows import Row, Split
from headjax.tokenizers.tokenizer import Tokenizer

FILE = "preprocessor_config.json"

_BILINEAR, _BICUBIC = 2, 3


def preprocessing_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of `ImageForm` that the files of a Hugging Face model set, `FILE` among them or not."""
    if FILE not in files:
        return {}
    try:
        data = json.loads(files[FILE])
    except ValueError as error:
        raise ConfigError(f"{FILE}: not JSON ({error})") from None
    name = str(data.get("image_processor_type") or data.get("feature_extractor_type") or "")
    cropped = data.get("do_center_crop", name.startswith("DeiT"))
    stored, stretched = _side(data, "size", 256 if cropped else 224)
    size = _side(data, "crop_size", 224)[0] if cropped else stored
    if not stretched and not cropped:
        raise ConfigError(f"{FILE}: size: {data['size']!r} without do_center_crop gives images that are not square")
    normalized = data.get("do_normalize", True)
    factor = data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1.0
    return {
        "size": size,
        "stored": stored if data.get("do_resize", True) else size,
        "stretched": stretched,
        "resample": data.get("resample", _BICUBIC if cropped else _BILINEAR),
        "divisor": 1 / factor,
        "mean": _numbers(data, "image_mean") if normalized else (0.0,),
        "deviation": _numbers(data, "image_std") if normalized else (1.0,),
    }


def _side(data: Mapping[str, Any], field: str, default: int) -> tuple[int, bool]:
    """Return a side in pixels, and whether height and width both have it."""
    value = data.get(field, default)
    if isinstance(value, Mapping) and isinstance(value.get("shortest_edge"), int):
        return value["shortest_edge"], False
    sides = {value.get("height"), value.get("width")} if isinstance(value, Mapping) else {value}
    if len(sides) != 1 or not isinstance(side := sides.pop(), int):
        raise ConfigError(f"{FILE}: {field}: {value!r} is not supported; supported: equal height and width")
    return side, True


def _numbers(data: Mapping[str, Any], field: str) -> tuple[float, ...]:
    value = data.get(field, 0.5)
    values = value if isinstance(value, list) else [value] * 3
    if not all(isinstance(number, int | float) and (number > 0 or field == "image_mean") for number in values):
        raise ConfigError(f"{FILE}: {field}: expected a number a channel, got {value!r}")
    return tuple(map(float, values))


@kind("image_rows")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageForm(Form):
    """`image`, uint8 `[height, width, channels]` or grey `[height, width]`, and `label`, a class's number or name.

    Images are stored as squares of `stored` pixels a side: scaled so that the shorter side is that long, the middle cut
    out, or `stretched` to both sides. Evaluation reads the middle square of `size`. Training reads a random square of
    the stored image, framed by a black margin and, with `flip`, mirrored half of the time. Examples hold `pixel_values`
    float32 `[channels, size, size]`, (pixel / divisor - mean) / deviation, and `labels`.

    Attributes:
        size: side of the model's input in pixels.
        stored: side of the stored image in pixels.
        margin: width of the margin in pixels.
        flip: whether training mirrors images.
        mean, deviation: per channel, of pixels divided by `divisor`.
        classes: names in the order of the class numbers.
        stretched: whether both sides become `stored`; else the shorter one does, and the middle square is kept.
        resample: filter of resizing, by Pillow's number (2 is bilinear, 3 bicubic).
        divisor: of pixels from 0 to 255.
    """

    fields: ClassVar = {"image": "image", "label": "label"}
    measure: ClassVar = "classes"
    reads_text: ClassVar[bool] = False

    size: Size
    stored: Size
    mean: tuple[float, ...]
    deviation: tuple[Positive, ...]
    classes: tuple[str, ...]
    margin: Count = 0
    flip: bool = False
    stretched: bool = False
    resample: Count = 3
    divisor: Positive = 255.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.stored >= self.size, "stored", f"{self.stored} pixels are fewer than size, {self.size}")
        require(len(self.mean) == len(self.deviation), "mean", "and deviation must have as many channels")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        return Encoded([self.record(row) for row in rows], {})

    def record(self, row: Row) -> Record:
        label = np.asarray([self.number(row.values["label"], row.place)], np.int32)
        pixels, channels = np.asarray(row.values["image"]), len(self.mean)
        pixels = np.repeat(pixels[:, :, None], channels, axis=2) if pixels.ndim == 2 else pixels
        if pixels.ndim != 3 or pixels.shape[2] != channels or pixels.dtype != np.uint8:
            actual = f"{pixels.dtype} {list(pixels.shape)}"
            raise DataError(f"{row.place}: expected an image uint8 [height, width, {channels}], got {actual}")
        if pixels.shape[:2] != (self.stored, self.stored):
            pixels = _scaled(pixels, self.stored, self.resample, self.stretched)
        return {"image": np.ascontiguousarray(pixels), "labels": label}

    def preprocessed(self, by: Mapping[str, Any], *, stored: bool = False) -> ImageForm:
        """Return the form whose images are as a model's files say; those `stored` already keep their size."""
        kept = ("size", "stored", "stretched", "resample") if stored else ()
        fields = {name: value for name, value in by.items() if name not in kept}
        for name in {"mean", "deviation"} & {*fields}:
            numbers, channels = tuple(fields[name]), len(self.mean)
            fields[name] = numbers * channels if len(numbers) == 1 else numbers[:channels]
        return dataclasses.replace(self, **fields)

    def tokens(self, record: Record) -> int:
        return 1

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> ExampleSource:
        return Drawn(records, self.cropped) if split == "train" else Mapped(records, self.plain)

    def plain(self, record: Record) -> dict[str, np.ndarray]:
        """Return the middle square of an image as an example."""
        corner = (self.stored - self.size) // 2
        square = record["image"][corner : corner + self.size, corner : corner + self.size]
        return {"pixel_values": self.values(square), "labels": record["labels"][0]}

    def cropped(self, record: Record, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a random square of an image, mirrored or not, as an example."""
        framed = np.pad(record["image"], [(self.margin, self.margin)] * 2 + [(0, 0)])
        top, left = generator.integers(np.asarray(framed.shape[:2]) - self.size + 1, size=2)
        square = framed[top : top + self.size, left : left + self.size]
        square = square[:, ::-1] if self.flip and generator.random() < 0.5 else square
        return {"pixel_values": self.values(square), "labels": record["labels"][0]}

    def values(self, square: np.ndarray) -> np.ndarray:
        """Return the model's input of a square uint8 `[size, size, channels]`."""
        mean, deviation = (np.asarray(numbers, np.float32) for numbers in (self.mean, self.deviation))
        return ((square.astype(np.float32) / np.float32(self.divisor) - mean) / deviation).transpose(2, 0, 1)


def _scaled(pixels: np.ndarray, side: int, resample: int, stretched: bool) -> np.ndarray:
    """Return a square of an image: all of it, stretched, or the middle of one whose shorter side has `side` pixels."""
    from PIL import Image

    height, width = pixels.shape[:2]
    shorter = min(height, width)
    wide, high = (side, side) if stretched else (width * side // shorter, height * side // shorter)
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image = image.resize((wide, high), Image.Resampling(resample))
    left, top = (wide - side) // 2, (high - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side))).reshape(side, side, -1)
