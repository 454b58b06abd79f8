"""A decoder of text (GPT-2, Llama, Mistral, Qwen, Gemma and their kin) whose layers have sizes of their own.

Written by headjax; needs PyTorch and `transformers`: `AutoModelForCausalLM.from_pretrained(FOLDER,
trust_remote_code=True)`, or `AutoModelForSequenceClassification`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
)
from transformers.utils.generic import can_return_tuple

from .layers_headjax import make_layers
from .parts_headjax import Embeddings, final_norm, within


class HeadjaxConfig(PretrainedConfig):
    """`headjax` is what all layers share, `headjax_layers` has an entry for each layer."""

    model_type = "headjax_decoder"
    keys_to_ignore_at_inference = ("past_key_values",)
    headjax: Any = None
    headjax_layers: Any = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None
    pad_token_id: int | None = None


class HeadjaxPreTrainedModel(PreTrainedModel):
    """Base of the models."""

    config_class = HeadjaxConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ("Layer",)
    _skip_keys_device_placement = ("cache",)


class HeadjaxModel(HeadjaxPreTrainedModel):
    """The model without logits."""

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config.headjax, config.vocab_size)
        self.layers, self.final_norm = make_layers(config), final_norm(config.headjax)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.token

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.token = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        x = self.embeddings.token(input_ids) if inputs_embeds is None else inputs_embeds
        cached = self.config.use_cache and not self.training if use_cache is None else use_cache
        if cached and past_key_values is None:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        keys = torch.arange(past + x.shape[1], device=x.device)
        queries = keys[past:]
        if position_ids is None:
            position_ids = queries[None]
            if attention_mask is not None:  # padding does not count
                position_ids = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, past:]
        mask = causal(attention_mask, queries, keys)
        x, states = self.embeddings(x, position_ids), []
        for layer, own in zip(self.layers, self.config.headjax_layers, strict=True):
            states.append(x)
            x = layer(x, within(mask, own["window"], queries, keys), position_ids, past_key_values)
        x = self.final_norm(x)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutputWithPast(x, past_key_values if cached else None, (*states, x) if wanted else None)


def causal(present: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor:
    """Return which keys queries see: themselves, and tokens before them that are present."""
    mask = (keys[None] <= queries[:, None])[None, None]
    if present is None:
        return mask
    itself = (keys[None] == queries[:, None])[None, None]  # so that padding, which nobody reads, has a finite result
    return (mask & present[:, None, None].bool()) | itself


class HeadjaxForCausalLM(HeadjaxPreTrainedModel, GenerationMixin):
    """The model with the logits of the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.token.weight"}  # noqa: RUF012

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        self.model = HeadjaxModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.headjax["output_bias"])
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **named: Any,
    ) -> CausalLMOutputWithPast:
        found = self.model(input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, **named)
        logits, cap = self.lm_head(found.last_hidden_state[:, -logits_to_keep:]), self.config.headjax["softcap"]
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **named)
        return CausalLMOutputWithPast(loss, logits, found.past_key_values, found.hidden_states)


class HeadjaxForSequenceClassification(HeadjaxPreTrainedModel):
    """Classes of texts, or numbers, by the last token that is no padding."""

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        shared, task = config.headjax, config.headjax["task"] or {}
        self.model, self.dropout = HeadjaxModel(config), nn.Dropout(task.get("dropout", 0.0))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels, bias=shared["output_bias"])
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **named: Any,
    ) -> SequenceClassifierOutputWithPast:
        found = self.model(input_ids, attention_mask, position_ids, **named)
        present, padding = torch.ones_like(input_ids), self.config.headjax["padding_token"]
        present = present if attention_mask is None else attention_mask.long()
        present = present if padding is None else present * (input_ids != padding)
        last = (present * torch.arange(input_ids.shape[1], device=input_ids.device)).argmax(dim=1)
        pooled = found.last_hidden_state[torch.arange(len(last), device=last.device), last]
        logits, loss = self.classifier(self.dropout(pooled)), None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutputWithPast(loss, logits, found.past_key_values, found.hidden_states)
