"""Images as sequences of patches."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from headjax.attention.projections import into_heads
from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Rate, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensor, Tensors, Zeros
from headjax.models.dropout import Dropper


@kind("patches")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Patches(Checked):
    """dropout([class token, distillation token, patch_1 W + b, patch_2 W + b, ...] + positions).

    The image is cut into squares, row by row (Dosovitskiy et al. 2021, equation 1). The distillation token (Touvron et
    al. 2021) is optional.

    Attributes:
        image_size: height and width of an image, in pixels.
        patch_size: height and width of a patch, in pixels.
        channels: values per pixel.
        distillation_token: whether there is a distillation token.
        dropout: rate on the result.
    """

    image_size: Size = 224
    patch_size: Size = 16
    channels: Size = 3
    distillation_token: bool = False
    dropout: Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.image_size % self.patch_size == 0,
            "patch_size",
            f"{self.patch_size} does not divide the image_size {self.image_size}",
        )

    @property
    def count(self) -> int:
        """Number of patches."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def length(self) -> int:
        """Number of vectors: the patches and the tokens before them."""
        return self.count + 1 + self.distillation_token

    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""
        square = (self.channels, self.patch_size, self.patch_size)
        token = Tensor((width,), ("embed",))
        tensors = {
            "kernel": Tensor((*square, width), (None, None, None, "embed"), inputs=(0, 1, 2)),
            "bias": Tensor((width,), ("embed",), Zeros(), decay=False),
            "class_token": token,
            "position": Tensor((self.length, width), (None, "embed")),
        }
        return tensors | ({"distillation_token": token} if self.distillation_token else {})

    def __call__(self, params: Params, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """`[batch, channels, height, width]` pixels to `[batch, length, width]`."""
        tokens = [params["class_token"]]
        if self.distillation_token:
            tokens.append(params["distillation_token"])
        kernel = params["kernel"].reshape(-1, params["kernel"].shape[-1])
        patches = into_heads(self.cut(images).astype(kernel.dtype), kernel, params["bias"])
        first = jnp.broadcast_to(jnp.stack(tokens)[None], (images.shape[0], len(tokens), kernel.shape[-1]))
        x = jnp.concatenate([first, patches], axis=1) + params["position"][None]
        return Dropper(self.dropout, key)(x)

    def cut(self, images: jax.Array) -> jax.Array:
        """`[batch, channels, height, width]` pixels to `[batch, patches, channels * patch_size^2]`.

        Raises:
            DataError: the images have another shape.
        """
        expected = (self.channels, self.image_size, self.image_size)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise DataError(
                f"pixel_values: expected [batch, {', '.join(map(str, expected))}], got {list(images.shape)}"
            )
        batch, side = images.shape[0], self.image_size // self.patch_size
        grid = images.reshape(batch, self.channels, side, self.patch_size, side, self.patch_size)
        return grid.transpose(0, 2, 4, 1, 3, 5).reshape(batch, self.count, -1)

    def flops(self, width: int) -> int:
        """Floating-point operations for one image."""
        return 2 * self.count * self.channels * self.patch_size**2 * width
