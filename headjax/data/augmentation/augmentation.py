"""An image's way from disk into a training example."""

from __future__ import annotations

import dataclasses

from headjax.data.augmentation.crops import Crop, RandomResizedCrop
from headjax.data.augmentation.erasing import ValueTransform
from headjax.data.augmentation.mixing import Mix
from headjax.data.augmentation.pixels import PixelTransform


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What training does to every image, anew each time it is read.

    Attributes:
        crop: cuts out the square that the model reads.
        pixels: change its pixels, one after another.
        values: change what the pixels are scaled to, one after another.
        mix: puts two images into one; labels are then a share of every class.
    """

    crop: Crop = RandomResizedCrop()
    pixels: tuple[PixelTransform, ...] = ()
    values: tuple[ValueTransform, ...] = ()
    mix: Mix | None = None
