"""Parts of Transformers: normalisations, rotary positions, feed-forwards, residuals, embeddings.

`headjax` of config.json, here `shared`, has what all layers share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "tanh": torch.tanh,
}
BEFORE = ("pre_norm", "scaled_pre_norm", "parallel_norm", "sandwich_norm")


def split(x: Tensor, heads: int) -> Tensor:
    """`[batch, length, heads * size]` to `[batch, heads, length, size]`."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


class Norm(nn.Module):
    """`layer_norm`, `rms_norm`, or `offset_rms_norm`, whose weight is added to one (Gemma)."""

    def __init__(self, norm: dict[str, Any], size: int) -> None:
        super().__init__()
        self.kind, self.epsilon = norm["kind"], norm["epsilon"]
        self.weight = nn.Parameter(torch.zeros(size) if self.kind == "offset_rms_norm" else torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if norm.get("bias") else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer_norm":
            return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)
        unit = functional.rms_norm(x.float(), x.shape[-1:], eps=self.epsilon)
        if self.kind == "offset_rms_norm":
            return (unit * (1.0 + self.weight.float())).to(x.dtype)
        return unit.to(x.dtype) * self.weight


def small_norm(norm: dict[str, Any] | None, size: int) -> nn.Module:
    """Return a norm of heads or latents, or nothing in its place."""
    return nn.Identity() if norm is None else Norm(norm, size)


def rates(rotary: dict[str, Any], size: int, device: torch.device) -> Tensor:
    """Return the radians a position by which each pair of dimensions turns."""
    dim, base, scaling = rotary["dim"] or size, rotary["base"], rotary["scaling"]
    frequencies = base ** -(torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    if scaling is None:
        return frequencies
    factor = scaling["factor"]
    if scaling["kind"] == "linear_scaling":
        return frequencies / factor
    length = scaling["original_length"]
    if scaling["kind"] == "llama3_scaling":
        low, high = scaling["low_frequency"], scaling["high_frequency"]
        weight = ((length * frequencies / (2.0 * math.pi) - low) / (high - low)).clamp(0.0, 1.0)
        return weight * frequencies + (1.0 - weight) * frequencies / factor
    turns = (scaling["fast"], scaling["slow"])  # YaRN
    first, last = (dim * math.log(length / (2.0 * math.pi * t)) / (2.0 * math.log(base)) for t in turns)
    if scaling["whole_pairs"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = (torch.arange(dim // 2, device=device) - first) / (last - first if last != first else 0.001)
    return (1.0 - ramp.clamp(0.0, 1.0)) * frequencies + ramp.clamp(0.0, 1.0) * frequencies / factor


def rotate(x: Tensor, positions: Tensor, rotary: dict[str, Any] | None, pairs: Any = None) -> Tensor:
    """Turn queries or keys at positions `[batch or 1, length]`; `pairs` are those that each head has kept."""
    if rotary is None:
        return x
    angles = positions[:, None, :, None].float() * rates(rotary, x.shape[-1], x.device)
    if pairs is not None:
        angles = torch.cat([angles[..., indices] for indices in pairs], dim=1)
    dim = 2 * angles.shape[-1]
    cos, sin, turning = angles.cos(), angles.sin(), x[..., :dim].float()
    if rotary["kind"] == "rotary_interleaved":
        first, second = turning[..., 0::2], turning[..., 1::2]
        rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2)
    else:
        first, second = turning.chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return torch.cat([rotated.to(x.dtype), x[..., dim:]], dim=-1)


class FeedForward(nn.Module):
    """`down(phi(up(x)))`, gated `down(phi(gate(x)) * up(x))`."""

    def __init__(self, shared: dict[str, Any], hidden: int) -> None:
        super().__init__()
        width, bias = shared["width"], shared["feed_forward_bias"]
        self.activation, self.dropout = ACTIVATIONS[shared["activation"]], nn.Dropout(shared["feed_forward_dropout"])
        self.gate = nn.Linear(width, hidden, bias=bias) if shared["gated"] else None
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inner = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.down(self.dropout(inner))


class Residual(nn.Module):
    """How a sub-layer joins the stream x: before or behind a norm, or between two (`sandwich_norm`).

    In parallel layers (`parallel_norm`) it reads `entered`, the stream before the layer.
    """

    def __init__(self, shared: dict[str, Any], normed: bool = True) -> None:
        super().__init__()
        width, self.kind, self.alpha = shared["width"], shared["residual"], shared["alpha"]
        self.norm, self.dropout = small_norm(shared["norm"] if normed else None, width), nn.Dropout(shared["dropout"])
        self.after = Norm(shared["norm"], width) if self.kind == "sandwich_norm" else None
        self.shortcut = nn.Parameter(torch.ones(width)) if self.kind == "scaled_post_norm" else None
        self.branch = nn.Parameter(torch.ones(width)) if self.kind == "scaled_pre_norm" else None

    def forward(self, x: Tensor, sub_layer: Callable[[Tensor], Tensor], entered: Tensor) -> Tensor:
        if self.kind in BEFORE:
            outputs = self.dropout(sub_layer(self.norm(entered if self.kind == "parallel_norm" else x)))
            outputs = outputs if self.branch is None else self.branch * outputs
            return self.alpha * x + outputs if self.after is None else x + self.after(outputs)
        shortcut = self.alpha * x if self.shortcut is None else self.shortcut * x
        return self.norm(shortcut + self.dropout(sub_layer(x)))


def final_norm(shared: dict[str, Any]) -> nn.Module:
    """Return the norm behind the last layer, where layers do not normalise the stream."""
    normed = shared["residual"] in BEFORE and not shared.get("pooled_norm")
    return small_norm(shared["norm"] if normed else None, shared["width"])


def embedding_dropout(shared: dict[str, Any]) -> nn.Module:
    """Return the dropout of embeddings, whose rate is that of sub-layers unless it has one of its own."""
    rate = shared["embedding_dropout"]
    return nn.Dropout(shared["dropout"] if rate is None else rate)


class Embeddings(nn.Module):
    """Tokens, positions and segments."""

    def __init__(self, shared: dict[str, Any], vocab_size: int) -> None:
        super().__init__()
        width, self.positions, self.offset = shared["width"], shared["positions"], shared["position_offset"]
        size, segments = shared.get("embedding_size") or width, shared.get("segments", 0)
        rows = (shared["max_length"] or 0) + self.offset
        self.scale = math.sqrt(size) if shared.get("scale_embeddings") else 1.0
        self.token = nn.Embedding(vocab_size, size)
        self.position = nn.Embedding(rows, size) if self.positions.startswith("learned") else None
        self.segment = nn.Embedding(segments, size) if segments else None
        self.norm = Norm(shared["norm"], size) if shared["embedding_norm"] else nn.Identity()
        self.dropout = embedding_dropout(shared)
        self.projection = nn.Linear(size, width) if shared.get("embedding_size") else nn.Identity()

    def vectors(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Return the vectors of tokens, which a caller may pass in their place."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass one of input_ids and inputs_embeds")
        return self.token(input_ids) if inputs_embeds is None else inputs_embeds

    def forward(self, x: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the embeddings of tokens with these vectors `[batch, length, size]`."""
        x = x * self.scale
        if self.position is not None:
            x = x + self.position(positions + self.offset)
        elif self.positions != "none":
            x = x + self.waves(positions, x.shape[-1]).to(x.dtype)
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(x[..., 0], dtype=torch.long) if segments is None else segments)
        elif segments is not None and not torch.compiler.is_compiling() and segments.any():
            raise ValueError("token_type_ids: the model has one segment, whose number is 0")
        return self.projection(self.dropout(self.norm(x)))

    def waves(self, positions: Tensor, size: int) -> Tensor:
        half = size // 2
        steps = max(half - (self.positions == "sinusoidal_endpoint"), 1)
        angles = positions[..., None].float() * torch.exp(
            torch.arange(half, device=positions.device) * (-math.log(10000.0) / steps)
        )
        return functional.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, size - 2 * half))


class Pooler(nn.Module):
    """`norm(phi(dense(h)))` of the first token, of the mean of all, or of each (`pooler_reads`)."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__()
        self.dense = nn.Linear(shared["width"], shared["width"], bias=shared.get("pooler_bias", True))
        self.activation, self.reads = ACTIVATIONS[shared["pooler"]], shared.get("pooler_reads", "first")
        self.dropout = nn.Dropout(shared.get("pooler_dropout", 0.0))
        self.norm = small_norm(shared.get("pooler_norm"), shared["width"])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.reads == "first":
            x = x[:, 0]
        elif self.reads == "mean":
            if mask is not None and mask.dim() != 2:
                raise ValueError("attention_mask: the mean of all tokens needs one of [batch, length]")
            shown = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
            x = (x * shown[..., None]).sum(dim=1) / shown.sum(dim=1, keepdim=True).clamp(min=1)
        return self.norm(self.activation(self.dense(self.dropout(x))))


class MaskedHead(nn.Module):
    """Logits of tokens; the weights of `decoder` are the token embeddings, where they are tied."""

    def __init__(self, shared: dict[str, Any], vocab_size: int, task: dict[str, Any]) -> None:
        super().__init__()
        width, size = shared["width"], shared["embedding_size"] or shared["width"]
        self.activation = ACTIVATIONS[task.get("activation", "gelu")]
        self.transform = nn.Linear(width, size, bias=task.get("transform_bias", True))
        self.norm = Norm(task.get("norm", shared["norm"]), size)
        self.decoder = nn.Linear(size, vocab_size, bias=task.get("bias", True))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.transform(hidden))))


class RelativeBias(nn.Module):
    """One number for each head and bucket of distance; far distances share buckets (MPNet, T5)."""

    def __init__(self, bias: dict[str, Any]) -> None:
        super().__init__()
        self.max_distance = bias["max_distance"]
        self.table = nn.Parameter(torch.zeros(bias["buckets"], bias["num_heads"]))

    def forward(self, positions: Tensor) -> Tensor:
        """Return `[1, heads, query, key]`, of positions `[length]`."""
        distance, count = positions[None] - positions[:, None], len(self.table) // 2
        size, exact = distance.abs(), count // 2
        growth = torch.log(size.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (count - exact)).long()).clamp(max=count - 1)
        return self.table[torch.where(size < exact, size, far) + count * (distance > 0)].permute(2, 0, 1)[None]


def within(mask: Tensor | None, window: int | None, queries: Tensor) -> Tensor | None:
    """Return the mask without keys at a distance of `window` and more; `queries` are numbered as the keys are."""
    if window is None:
        return mask
    keys = torch.arange(len(queries) if mask is None else mask.shape[-1], device=queries.device)
    near = ((queries[:, None] - keys[None]).abs() < window)[None, None]
    if mask is None or mask.dtype == torch.bool:
        return near if mask is None else mask & near
    return mask.masked_fill(~near, torch.finfo(mask.dtype).min)
