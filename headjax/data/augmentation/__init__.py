"""What training does to images: crops, colours, erased rectangles, two images in one."""

from headjax.data.augmentation.augmentation import Augmentation
from headjax.data.augmentation.crops import Crop, RandomResizedCrop, RandomSquare
from headjax.data.augmentation.erasing import RandomErasing, ValueTransform
from headjax.data.augmentation.mixing import CutMix, Mix, Mixup, OneOf
from headjax.data.augmentation.pixels import Flip, PixelTransform, RandAugment

__all__ = [
    "Augmentation",
    "Crop",
    "CutMix",
    "Flip",
    "Mix",
    "Mixup",
    "OneOf",
    "PixelTransform",
    "RandAugment",
    "RandomErasing",
    "RandomResizedCrop",
    "RandomSquare",
    "ValueTransform",
]
