"""Patches of images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .parts_headjax import embedding_dropout, small_norm


class Patches(nn.Module):
    """Squares of an image behind the class token, and the distillation token of DeiT."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        width, patch, self.patch_mean = shared["width"], shared["patch_size"], shared["patch_mean"]
        self.projection = nn.Conv2d(shared["channels"], width, patch, stride=patch, bias=shared["patch_bias"])
        distilled = shared["distillation_token"]
        length = (shared["image_size"] // patch) ** 2 + 1 + distilled
        self.class_token, self.position = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(length, width))
        self.distillation_token = nn.Parameter(torch.zeros(width)) if distilled else None
        self.norm = small_norm(shared["norm"] if shared["embedding_norm"] else None, width)
        self.dropout = embedding_dropout(shared)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.projection(pixels.to(self.position.dtype))
        tokens = [token for token in (self.class_token, self.distillation_token) if token is not None]
        first = torch.stack(tokens)[None].expand(len(pixels), -1, -1)
        x = torch.cat([first, patches.flatten(2).transpose(1, 2)], dim=1)
        return self.dropout(self.norm(x + self.positions(len(tokens), patches.shape[2:])))

    def positions(self, tokens: int, sides: torch.Size) -> Tensor:
        """Return the embeddings of the tokens' and patches' positions, resized to a grid of `sides` patches."""
        first, grid = self.position[:tokens], self.position[tokens:]
        square = math.isqrt(len(grid))
        if sides == (square, square):
            return self.position
        grid = grid.T.unflatten(1, (square, square))[None].float()
        resized = functional.interpolate(grid, size=tuple(sides), mode="bicubic", align_corners=False)
        return torch.cat([first, resized[0].flatten(1).T.to(first.dtype)])

    def pooled(self, x: Tensor) -> Tensor:
        """Return the class token, beside the mean of the patches with `patch_mean` (DINOv2)."""
        if not self.patch_mean:
            return x[:, 0]
        return torch.cat([x[:, 0], x[:, 1 + (self.distillation_token is not None) :].mean(dim=1)], dim=1)
