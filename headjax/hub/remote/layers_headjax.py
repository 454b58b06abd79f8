"""Layers of a Transformer, each with an attention and sizes of its own.

`headjax_layers` of config.json has an entry for each layer, here `config`: the `kind` of its attention, the number of
its heads, their sizes, the units (`hidden`) of its feed-forward. Queries, keys, values and contexts are
`[batch, heads, length, size]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .parts_headjax import FeedForward, Norm, Residual, rotate, small_norm, split, within


class Call:
    """One pass through an attention: its mask, biases and cap of logits, positions, dropout; afterwards its weights.

    The mask `[batch or 1, 1, query or 1, key]` is True where queries attend, or a number that is added to logits.
    """

    def __init__(
        self, mask: Any, bias: Any, positions: Tensor, dropout: float, cap: float | None, keep_weights: bool
    ) -> None:
        self.mask, self.bias, self.positions, self.dropout, self.cap = mask, bias, positions, dropout, cap
        self.keep_weights, self.weights = keep_weights, None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, content_bias: Tensor | None = None
    ) -> Tensor:
        """Return the contexts of queries; `content_bias` is added to `bias`."""
        biases = [bias for bias in (self.bias, content_bias) if bias is not None]
        if self.cap is None and not self.keep_weights:
            mask = masked(sum(biases), self.mask) if biases else self.mask
            mask = mask if mask is None or mask.dtype == torch.bool else mask.to(query.dtype)
            return functional.scaled_dot_product_attention(query, key, value, mask, self.dropout, scale=scale)
        logits = sum(biases, scale * query @ key.transpose(2, 3)).float()
        logits = logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)
        weights = functional.dropout(masked(logits, self.mask).softmax(dim=-1).to(value.dtype), self.dropout)
        self.weights = weights if self.keep_weights else None
        return weights @ value


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return the logits, far below others where the mask is False; a mask of numbers is added."""
    if mask is None:
        return logits
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min) if mask.dtype == torch.bool else logits + mask


class Attention(nn.Module):
    """Base of the formulations: `combine(attend(x, *key_values(memory, positions), call))`.

    `key_values` computes two tensors from the tokens that are attended to; a cache can keep them. `attend` computes the
    contexts of all heads, `combine` maps them to the width of the stream.
    """

    def __init__(self, config: dict[str, Any], width: int, value_size: int) -> None:
        super().__init__()
        self.options, self.heads = config, config["num_heads"]
        self.output = nn.Linear(self.heads * value_size, width, bias=config["output_bias"])

    def combine(self, contexts: Tensor) -> Tensor:
        return self.output(contexts.transpose(1, 2).flatten(2))


class NoHeads(nn.Module):
    """A layer that has lost all heads. It gives a cache one zero a token, so that the cache has the right length."""

    def __init__(self, config: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__()
        self.output = nn.Module()
        self.output.bias = nn.Parameter(torch.zeros(width)) if config["output_bias"] else None

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(*x.shape[:2], 1)[:, None], x.new_zeros(*x.shape[:2], 1)[:, None]

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        call.weights = x.new_zeros(len(x), 0, x.shape[1], key.shape[2]) if call.keep_weights else None
        return torch.zeros_like(x)

    def combine(self, contexts: Tensor) -> Tensor:
        return contexts if self.output.bias is None else contexts + self.output.bias


class Heads(Attention):
    """Heads of any number and size, of which several may read one key and value (`kv_index`)."""

    def __init__(self, config: dict[str, Any], width: int, memory_width: int) -> None:
        size, bias = config["head_dim"], config["projection_bias"]
        value_size = config["value_dim"] or size
        super().__init__(config, width, value_size)
        self.kv_heads = config.get("kv_heads", self.heads)
        self.index = config.get("kv_index") or [head * self.kv_heads // self.heads for head in range(self.heads)]
        self.query = nn.Linear(width, self.heads * size, bias=bias)
        self.key = nn.Linear(memory_width, self.kv_heads * size, bias=bias)
        self.value = nn.Linear(memory_width, self.kv_heads * value_size, bias=bias)
        self.query_norm = small_norm(config.get("query_norm"), size)
        self.key_norm = small_norm(config.get("key_norm"), size)

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key_norm(split(self.key(x), self.kv_heads))
        return self.rotated(key, positions), split(self.value(x), self.kv_heads)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions, self.options["rotary"], self.options.get("frequencies"))

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        query = self.rotated(self.query_norm(split(self.query(x), self.heads)), call.positions)
        if self.index != list(range(self.kv_heads)):
            key, value = (torch.stack([each[:, g] for g in self.index], dim=1) for each in (key, value))
        return call.attend(query, key, value, self.options["scale"])


class Collaborative(Attention):
    """Heads that share one query and one key, each with its own mixing of their dimensions."""

    def __init__(self, config: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__(config, width, config["value_dim"])
        shared, bias = config["shared_dim"], config["projection_bias"]
        self.query, self.key = nn.Linear(width, shared, bias=bias), nn.Linear(memory_width, shared, bias=bias)
        self.mixing = nn.Parameter(torch.ones(self.heads, shared))
        self.value = nn.Linear(memory_width, self.heads * config["value_dim"], bias=config["value_bias"])
        self.content_bias = nn.Linear(memory_width, self.heads, bias=False) if config["content_bias"] else None

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(x)
        if self.content_bias is not None:
            key = torch.cat([key, self.content_bias(x)], dim=-1)
        return key[:, None], self.value(x)[:, None]  # a static cache has as many keys as values

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        scale, shared = self.options["head_dim"] ** -0.5, self.options["shared_dim"]
        query = self.query(x)[:, None] * self.mixing[None, :, None]
        bias = scale * key[:, 0, :, shared:].transpose(1, 2)[:, :, None] if self.content_bias is not None else None
        key, value = key[..., :shared].expand(-1, self.heads, -1, -1), split(value[:, 0], self.heads)
        return call.attend(query, key, value, scale, bias)


class Latent(Attention):
    """Keys and values of all heads are computed from one short latent a token.

    A cache holds the latent, and the rotary key that all heads share.
    """

    def __init__(self, config: dict[str, Any], width: int, memory_width: int) -> None:
        size, bias = config["head_dim"], config["projection_bias"]
        value_size = config["value_dim"] or size
        super().__init__(config, width, value_size)
        rank, query_rank, rotary_dim = config["rank"], config["query_rank"], config["rotary_dim"]
        self.latent = nn.Linear(memory_width, rank, bias=False)
        self.latent_norm = small_norm(config["latent_norm"], rank)
        self.query_latent = nn.Identity() if query_rank is None else nn.Linear(width, query_rank, bias=False)
        self.query_norm = small_norm(config["query_norm"], query_rank)
        self.query = nn.Linear(query_rank or width, self.heads * (size + rotary_dim), bias=bias)
        self.rotary_key = nn.Linear(memory_width, rotary_dim, bias=False) if rotary_dim else None
        self.key = nn.Linear(rank, self.heads * size, bias=False)
        self.value = nn.Linear(rank, self.heads * value_size, bias=bias)

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.latent_norm(self.latent(x))[:, None]
        if self.rotary_key is None:
            return latent, latent[..., :0]
        return latent, rotate(self.rotary_key(x)[:, None], positions, self.options["rotary"])

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        latent, rotary_key, size = key, value, self.options["head_dim"]
        query = split(self.query(self.query_norm(self.query_latent(x))), self.heads)
        rotated = rotate(query[..., size:], call.positions, self.options["rotary"])
        rank = latent.shape[-1]
        if x.shape[1] == 1 and latent.shape[2] > rank and not self.training:
            return self.attend_latents(query[..., :size], rotated, latent, rotary_key, call)
        keys, values = split(self.key(latent[:, 0]), self.heads), split(self.value(latent[:, 0]), self.heads)
        query, keys = torch.cat([query[..., :size], rotated], -1), [keys, rotary_key.expand(-1, self.heads, -1, -1)]
        return call.attend(query, torch.cat(keys, dim=-1), values, self.options["scale"])

    def attend_latents(self, query: Tensor, rotated: Tensor, latent: Tensor, rotary_key: Tensor, call: Call) -> Tensor:
        """Return the contexts of a single query without the keys and values of all tokens.

        With keys W_k c and values W_v c of latents c, the logits are (W_k^T q)^T c, and a context is W_v times the mean
        of the latents by the attention weights. This is cheaper where there are more tokens than `rank`.

        Both maps are called as modules, so that adapters, hooks and quantised weights have their effect: the map of
        keys of the identity, which is W_k; the map of values of each head's mean, of whose result the head takes its
        own values.
        """
        rank = latent.shape[-1]
        from_latents = split(self.key(torch.eye(rank, dtype=latent.dtype, device=latent.device)[None]), self.heads)
        query = torch.cat([query @ from_latents.transpose(2, 3), rotated], dim=-1)
        read = torch.cat([latent, rotary_key], dim=-1).expand(-1, self.heads, -1, -1)
        means = call.attend(query, read, latent.expand(-1, self.heads, -1, -1), self.options["scale"])
        values = self.value(means[:, :, 0]).unflatten(-1, (self.heads, -1))  # [batch, head, head, size]
        return values.diagonal(dim1=1, dim2=2).transpose(1, 2)[:, :, None]


class Compressed(nn.Module):
    """An attention (`inner`) that reads a latent of each token in place of the token.

    A cache holds the latents, and the positions of their tokens in place of values.
    """

    def __init__(self, config: dict[str, Any], width: int, memory_width: int) -> None:
        super().__init__()
        self.inner = attention(config["inner"], width, config["rank"])
        self.latent = nn.Linear(memory_width, config["rank"], bias=False)

    def key_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.latent(x)[:, None]
        # Digits to the base 256: a cache holds one type, and bfloat16 has no whole numbers beyond 256 without gaps.
        digits = torch.stack([positions // 256**place % 256 for place in range(3)], dim=-1)
        return latent, digits[:, None].to(latent.dtype).expand(len(x), -1, -1, -1)

    def attend(self, x: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        positions = (value[:, 0].float() @ torch.tensor([1.0, 256.0, 65536.0], device=value.device)).long()
        return self.inner.attend(x, *self.inner.key_values(key[:, 0], positions), call)

    def combine(self, contexts: Tensor) -> Tensor:
        return self.inner.combine(contexts)


KINDS = {
    "multi_head": Heads,
    "grouped": Heads,
    "collaborative": Collaborative,
    "latent": Latent,
    "compressed": Compressed,
    "no_heads": NoHeads,
}


def attention(config: dict[str, Any], width: int, memory_width: int) -> nn.Module:
    """Return the attention of an entry of `headjax_layers`."""
    return KINDS[config["kind"]](config, width, memory_width)


def head_ids(config: dict[str, Any]) -> list[int]:
    """Return the original numbers of an attention's heads."""
    if "inner" in config:
        return head_ids(config["inner"])
    return config.get("head_ids") or list(range(config.get("num_heads", 0)))


class Layer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with its residual connection."""

    def __init__(self, shared: dict[str, Any], config: dict[str, Any], number: int) -> None:
        super().__init__()
        self.number, self.head_ids = number, head_ids(config)
        self.attention_dropout, self.softcap = shared["attention_dropout"], shared.get("attention_softcap")
        self.attention = attention(config, shared["width"], shared["width"])
        self.feed_forward = FeedForward(shared, config["hidden"])
        self.attention_residual = Residual(shared, config.get("attention_norm", True))
        self.feed_forward_residual = Residual(shared)

    def forward(
        self, x: Tensor, mask: Any, positions: Tensor, cache: Any = None, bias: Any = None, keep_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the stream and, on request, attention weights; `bias` is of all original heads."""
        bias = None if bias is None else bias[:, self.head_ids]
        dropout = self.attention_dropout if self.training else 0.0
        call = Call(mask, bias, positions, dropout, self.softcap, keep_weights)

        def attended(inputs: Tensor) -> Tensor:
            key, value = self.attention.key_values(inputs, positions)
            if cache is not None:
                key, value = cache.update(key, value, self.number)
            return self.attention.combine(self.attention.attend(inputs, key, value, call))

        return self.feed_forward_residual(self.attention_residual(x, attended, x), self.feed_forward, x), call.weights


class HeadjaxBase(PreTrainedModel):
    """Base of all models."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _input_embed_layer = "token"
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _no_split_modules = ["Layer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Norm):
            (init.zeros_ if module.kind == "offset_rms_norm" else init.ones_)(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)

    def make_layers(self) -> nn.ModuleList:
        """Return the layers; with `shared_layers` there is one, applied again and again (ALBERT)."""
        shared, layers = self.config.headjax, self.config.headjax_layers
        layers = layers[:1] if shared.get("shared_layers") else layers
        return nn.ModuleList(Layer(shared, config, number) for number, config in enumerate(layers))

    def apply_layers(
        self, x: Tensor, mask: Any, queries: Tensor, positions: Tensor, cache: Any = None, bias: Any = None, **keep: Any
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, tuple[Tensor, ...] | None]:
        """Return the stream behind the last layer, the streams before every layer, and attention weights.

        The latter two are None unless asked for: by `output_hidden_states` and `output_attentions` in `keep`, or by the
        config where those are None. `queries` are the numbers of the tokens, counted from the first in the cache;
        windows are distances of these.
        """
        keep_states, keep_weights = (
            getattr(self.config, name) if keep.get(name) is None else keep[name]
            for name in ("output_hidden_states", "output_attentions")
        )
        states, weights = [], []
        for number, config in enumerate(self.config.headjax_layers):
            states.append(x)
            near = within(mask, config.get("window"), queries)
            layer = self.layers[number % len(self.layers)]
            x, layer_weights = layer(x, near, positions, cache, bias, keep_weights)
            weights.append(layer_weights)
        return x, tuple(states) if keep_states else None, tuple(weights) if keep_weights else None
