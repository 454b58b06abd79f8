"""Layers of a Transformer, each with an attention and sizes of its own.

`headjax_layers` of config.json has an entry for each layer, here `own`: the `kind` of its attention, the number of its
heads, their sizes, the units (`hidden`) of its feed-forward. Queries, keys, values and contexts are
`[batch, heads, length, size]`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_layers import GradientCheckpointingLayer

from .parts_headjax import FeedForward, Residual, small_norm, split, turn


class Call:
    """What an attention is told: mask `[batch or 1, 1, query or 1, key]`, logits' bias and cap, positions, dropout."""

    def __init__(self, mask: Any, bias: Any, positions: Tensor, dropout: float, cap: float | None = None) -> None:
        self.mask, self.bias, self.positions, self.dropout, self.cap = mask, bias, positions, dropout, cap

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, own: Tensor | None = None) -> Tensor:
        mask, biases = self.mask, [bias for bias in (self.bias, own) if bias is not None]
        if self.cap is not None:
            logits = self.cap * torch.tanh(sum(biases, scale * query @ key.transpose(2, 3)).float() / self.cap)
            logits = logits if mask is None else logits.where(mask, -math.inf)
            return functional.dropout(logits.softmax(dim=-1).to(value.dtype), self.dropout) @ value
        if biases:
            mask = sum(biases) if mask is None else sum(biases).where(mask, -math.inf)
        return functional.scaled_dot_product_attention(query, key, value, mask, self.dropout, scale=scale)


class Attention(nn.Module):
    """`key_values` are two tensors of what is attended to, which a cache can hold; `attend` has the heads' contexts."""

    def __init__(self, own: dict[str, Any], width: int, value_size: int) -> None:
        super().__init__()
        self.own, self.heads = own, own["num_heads"]
        self.output = nn.Linear(self.heads * value_size, width, bias=own["output_bias"])

    def combine(self, contexts: Tensor) -> Tensor:
        return self.output(contexts.transpose(1, 2).flatten(2))


class NoHeads(nn.Module):
    """A layer that has lost all heads; a cache counts its tokens by a zero each."""

    def __init__(self, own: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__()
        self.output = nn.Module()
        self.output.bias = nn.Parameter(torch.zeros(width)) if own["output_bias"] else None

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(*x.shape[:2], 1)[:, None], x.new_zeros(*x.shape[:2], 1)[:, None]

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        return torch.zeros_like(x)

    def combine(self, contexts: Tensor) -> Tensor:
        return contexts if self.output.bias is None else contexts + self.output.bias


class Heads(Attention):
    """Heads of any number and size, of which several may read one key and value (`kv_index`)."""

    def __init__(self, own: dict[str, Any], width: int, memory_width: int) -> None:
        size, value_size, bias = own["head_dim"], own["value_dim"] or own["head_dim"], own["projection_bias"]
        super().__init__(own, width, value_size)
        self.kv_heads = own.get("kv_heads", self.heads)
        self.index = own.get("kv_index") or [head * self.kv_heads // self.heads for head in range(self.heads)]
        self.query = nn.Linear(width, self.heads * size, bias=bias)
        self.key = nn.Linear(memory_width, self.kv_heads * size, bias=bias)
        self.value = nn.Linear(memory_width, self.kv_heads * value_size, bias=bias)
        self.query_norm = small_norm(own.get("query_norm"), size)
        self.key_norm = small_norm(own.get("key_norm"), size)

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key_norm(split(self.key(x), self.kv_heads))
        return self.turned(key, positions), split(self.value(x), self.kv_heads)

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        return turn(x, positions, self.own["rotary"], self.own.get("frequencies"))

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        query = self.turned(self.query_norm(split(self.query(x), self.heads)), call.positions)
        if self.index != list(range(self.kv_heads)):
            key, value = (torch.stack([each[:, g] for g in self.index], dim=1) for each in (key, value))
        return call.attend(query, key, value, self.own["scale"])


class Collaborative(Attention):
    """Heads that share one query and one key, each with its own mixing of their dimensions."""

    def __init__(self, own: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__(own, width, own["value_dim"])
        shared, bias = own["shared_dim"], own["projection_bias"]
        self.query, self.key = nn.Linear(width, shared, bias=bias), nn.Linear(memory_width, shared, bias=bias)
        self.mixing = nn.Parameter(torch.ones(self.heads, shared))
        self.value = nn.Linear(memory_width, self.heads * own["value_dim"], bias=own["value_bias"])
        self.content_bias = nn.Linear(memory_width, self.heads, bias=False) if own["content_bias"] else None

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(x)
        if self.content_bias is not None:
            key = torch.cat([key, self.content_bias(x)], dim=-1)
        return key[:, None], split(self.value(x), self.heads)

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        scale, shared = self.own["head_dim"] ** -0.5, self.own["shared_dim"]
        query = self.query(x)[:, None] * self.mixing[None, :, None]
        bias = scale * key[:, 0, :, shared:].transpose(1, 2)[:, :, None] if self.content_bias is not None else None
        return call.attend(query, key[..., :shared].expand(-1, self.heads, -1, -1), value, scale, bias)


class Latent(Attention):
    """Keys and values of all heads come from one short latent, which a cache holds with its one rotary key."""

    def __init__(self, own: dict[str, Any], width: int, memory_width: int) -> None:
        size, value_size, bias = own["head_dim"], own["value_dim"] or own["head_dim"], own["projection_bias"]
        super().__init__(own, width, value_size)
        rank, query_rank, rotary = own["rank"], own["query_rank"], own["rotary_dim"]
        self.latent = nn.Linear(memory_width, rank, bias=False)
        self.latent_norm = small_norm(own["latent_norm"], rank)
        self.query_latent = nn.Identity() if query_rank is None else nn.Linear(width, query_rank, bias=False)
        self.query_norm = small_norm(own["query_norm"], query_rank)
        self.query = nn.Linear(query_rank or width, self.heads * (size + rotary), bias=bias)
        self.rotary_key = nn.Linear(memory_width, rotary, bias=False) if rotary else None
        self.key = nn.Linear(rank, self.heads * size, bias=False)
        self.value = nn.Linear(rank, self.heads * value_size, bias=bias)

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.latent_norm(self.latent(x))[:, None]
        if self.rotary_key is None:
            return latent, latent[..., :0]
        return latent, turn(self.rotary_key(x)[:, None], positions, self.own["rotary"])

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        latent, turned, size = key, value, self.own["head_dim"]
        query = split(self.query(self.query_norm(self.query_latent(x))), self.heads)
        query = torch.cat([query[..., :size], turn(query[..., size:], call.positions, self.own["rotary"])], dim=-1)
        if x.shape[1] == 1 and call.dropout == 0.0:  # a single query reads the latents themselves
            turning = query[..., size:]
            query = torch.cat([query[..., :size] @ self.key.weight.unflatten(0, (self.heads, size)), turning], dim=-1)
            read = torch.cat([latent, turned], dim=-1).expand(-1, self.heads, -1, -1)
            contexts = call.attend(query, read, latent.expand(-1, self.heads, -1, -1), self.own["scale"])
            contexts = contexts @ self.value.weight.unflatten(0, (self.heads, -1)).transpose(1, 2)
            return contexts if self.value.bias is None else contexts + self.value.bias.unflatten(0, (self.heads, 1, -1))
        keys, values = split(self.key(latent[:, 0]), self.heads), split(self.value(latent[:, 0]), self.heads)
        keys = torch.cat([keys, turned.expand(-1, self.heads, -1, -1)], dim=-1)
        return call.attend(query, keys, values, self.own["scale"])


class Wrapping(nn.Module):
    """Base of what stands around another formulation."""

    def __init__(self, own: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__()
        self.inner = attention(own["inner"], width, memory_width)
        self.heads = self.inner.heads

    def combine(self, contexts: Tensor) -> Tensor:
        return self.inner.combine(contexts)


class Compressed(Wrapping):
    """Heads that read a latent of what is attended to, which a cache holds with its positions."""

    def __init__(self, own: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__(own, width, own["rank"])
        self.latent = nn.Linear(memory_width, own["rank"], bias=False)

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.latent(x)[:, None]
        return latent, positions.float()[:, None, :, None].expand(*latent.shape[:3], 1)

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        return self.inner.attend(x, *self.inner.key_values(key[:, 0], value[:, 0, :, 0]), call)


KINDS = {
    "multi_head": Heads,
    "grouped": Heads,
    "collaborative": Collaborative,
    "latent": Latent,
    "compressed": Compressed,
    "no_heads": NoHeads,
}


def attention(own: dict[str, Any], width: int, memory_width: int) -> nn.Module:
    """Return the attention of an entry of `headjax_layers`."""
    return KINDS[own["kind"]](own, width, memory_width)


def head_ids(own: dict[str, Any]) -> list[int]:
    """Return the original numbers of an attention's heads."""
    return head_ids(own["inner"]) if "inner" in own else own.get("head_ids") or list(range(own.get("num_heads", 0)))


class Layer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with its residual connection."""

    def __init__(self, shared: dict[str, Any], own: dict[str, Any], number: int) -> None:
        super().__init__()
        self.number, self.head_ids = number, head_ids(own)
        self.attention_dropout, self.softcap = shared["attention_dropout"], shared.get("attention_softcap")
        self.attention = attention(own, shared["width"], shared["width"])
        self.feed_forward = FeedForward(shared, own["hidden"])
        self.attention_residual = Residual(shared, own.get("attention_norm", True))
        self.feed_forward_residual = Residual(shared)

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor, cache: Any = None, bias: Any = None) -> Tensor:
        """`mask` is True where queries may attend, `bias` of all original heads; `cache` holds the tokens before."""
        bias = None if bias is None else bias[:, self.head_ids]
        call = Call(mask, bias, positions, self.attention_dropout if self.training else 0.0, self.softcap)

        def attended(inputs: Tensor) -> Tensor:
            key, value = self.attention.key_values(inputs, positions)
            if cache is not None:
                key, value = cache.update(key, value, self.number)
            return self.attention.combine(self.attention.attend(inputs, key, value, call))

        return self.feed_forward_residual(self.attention_residual(x, attended, x), self.feed_forward, x)


def make_layers(config: Any) -> nn.ModuleList:
    """Return the layers of a config; with `shared_layers` there is one, applied again and again (ALBERT)."""
    count = 1 if config.headjax.get("shared_layers") else len(config.headjax_layers)
    return nn.ModuleList(Layer(config.headjax, own, number) for number, own in enumerate(config.headjax_layers[:count]))
