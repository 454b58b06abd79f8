"""How a Hugging Face model's images become numbers: `preprocessor_config.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

from headjax.core.errors import ConfigError
from headjax.core.fields import Checked, Count, Positive, Size
from headjax.core.serialize import kind

FILE = "preprocessor_config.json"

_BILINEAR, _BICUBIC = 2, 3


@kind("preprocessing")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing(Checked):
    """(pixel / divisor - mean) / deviation, of an image resized to `stored` pixels, the middle `size` of them.

    Attributes:
        size: side of the model's input in pixels.
        stored: side of the resized image in pixels.
        stretched: whether both sides become `stored`; else the shorter one does, and the middle square is kept.
        resample: filter of resizing, by Pillow's number (2 is bilinear, 3 bicubic).
        divisor: of pixels from 0 to 255.
        mean, deviation: per channel.
    """

    size: Size
    stored: Size
    stretched: bool = True
    resample: Count = _BILINEAR
    divisor: Positive = 255.0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[Positive, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Self | None:
        """Return what the files that came with a model say of images; None where they say nothing."""
        if FILE not in files:
            return None
        try:
            data = json.loads(files[FILE])
        except ValueError as error:
            raise ConfigError(f"{FILE}: not JSON ({error})") from None
        name = str(data.get("image_processor_type") or data.get("feature_extractor_type") or "")
        cropped = data.get("do_center_crop", name.startswith("DeiT"))
        resized = data.get("do_resize", True)
        stored, stretched = _side(data, "size", 256 if cropped else 224)
        size = _side(data, "crop_size", 224)[0] if cropped else stored
        if not stretched and not cropped:
            raise ConfigError(f"{FILE}: size: {data['size']!r} without do_center_crop gives images that are not square")
        mean: tuple[float, ...] = (0.0,)
        deviation: tuple[float, ...] = (1.0,)
        if data.get("do_normalize", True):
            mean, deviation = (_numbers(data, field) for field in ("image_mean", "image_std"))
        factor = data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1.0
        return cls(
            size=size,
            stored=stored if resized else size,
            stretched=stretched,
            resample=data.get("resample", _BICUBIC if cropped else _BILINEAR),
            divisor=1 / factor,
            mean=mean,
            deviation=deviation,
        )


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
