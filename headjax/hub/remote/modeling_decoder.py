"""A decoder of text (GPT-2, Llama, Mistral, Qwen, Gemma and their kin) whose layers have sizes of their own.

Written by headjax; needs PyTorch and `transformers`: `AutoModelForCausalLM.from_pretrained(FOLDER,
trust_remote_code=True)`, or `AutoModelForSequenceClassification`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PretrainedConfig
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
)
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from .layers_headjax import HeadjaxBase
from .parts_headjax import Embeddings, final_norm


class HeadjaxConfig(PretrainedConfig):
    """`headjax` is what all layers share, `headjax_layers` has an entry for each layer."""

    model_type = "headjax_decoder"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012
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


class HeadjaxPreTrainedModel(HeadjaxBase):
    """Base of the models.

    `transformers` calls the cache `past_key_values` until 5.23 and `cache` since 5.24; here both names mean it.
    """

    config_class = HeadjaxConfig


class HeadjaxModel(HeadjaxPreTrainedModel):
    """The model without logits."""

    gradient_checkpointing = False

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config.headjax, config.vocab_size)
        self.layers, self.final_norm = self.make_layers(), final_norm(config.headjax)
        self.post_init()

    def cache_of(self, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        """Return the cache to fill, if any; by default outside of training."""
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            if cache is not None:
                raise ValueError("cache: gradient checkpointing runs layers twice, which would fill it twice")
            return None
        return DynamicCache() if use_cache and cache is None else cache

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast:
        x = self.embeddings.vectors(input_ids, inputs_embeds)
        cache = self.cache_of(past_key_values if cache is None else cache, use_cache)
        past = 0 if cache is None else cache.get_seq_length()
        queries = past + torch.arange(x.shape[1], device=x.device)
        # By position: the name of the cache changed. A mask is made in any case, since some layers have a window.
        mask = create_causal_mask(self.config, x, attention_mask, cache, position_ids, allow_is_causal_skip=False)
        if position_ids is None and attention_mask is not None and attention_mask.dim() == 2:
            position_ids = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -x.shape[1] :]  # without padding
        position_ids = queries[None] if position_ids is None else position_ids
        x = self.embeddings(x, position_ids)
        keep = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        x, states, weights = self.apply_layers(x, mask, queries, position_ids, cache, **keep)
        x = self.final_norm(x)
        return BaseModelOutputWithPast(x, cache, None if states is None else (*states, x), weights)


class HeadjaxForCausalLM(HeadjaxPreTrainedModel, GenerationMixin):
    """The model with the logits of the next token."""

    accepts_loss_kwargs = True
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
        cache: Cache | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **keep: Any,
    ) -> CausalLMOutputWithPast:
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        outputs = self.model(*inputs, use_cache, cache, return_dict=True, **keep)
        logits = self.lm_head(slice_logits_to_keep(outputs[0], logits_to_keep))
        cap, loss = self.config.headjax["softcap"], None
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        if labels is not None:
            options = {"num_items_in_batch": num_items_in_batch}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **options)
        return CausalLMOutputWithPast(loss, logits, *cache_and_rest(outputs))

    def _get_static_cache_init_shape(self) -> None:
        """Let layers of a static cache take their shapes from the first keys and values: they differ."""


class HeadjaxForSequenceClassification(HeadjaxPreTrainedModel):
    """Classes of texts, or numbers, by the last token that is no padding."""

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        shared, task = config.headjax, config.headjax["task"] or {}
        self.model, self.dropout = HeadjaxModel(config), nn.Dropout(task.get("dropout", shared["dropout"]))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels, bias=shared["output_bias"])
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
        **options: Any,
    ) -> SequenceClassifierOutputWithPast:
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **options)
        hidden, padding, loss = outputs[0], self.config.pad_token_id, None
        present = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        if attention_mask is not None and attention_mask.dim() == 2:
            present = present * attention_mask[:, -hidden.shape[1] :].bool()
        if padding is not None and input_ids is not None:
            present = present * (input_ids != padding)
        last = (present * torch.arange(hidden.shape[1], device=hidden.device)).argmax(dim=1)
        logits = self.classifier(self.dropout(hidden[torch.arange(len(last), device=last.device), last]))
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutputWithPast(loss, logits, *cache_and_rest(outputs))


def cache_and_rest(outputs: Any) -> tuple[Any, ...]:
    """Return the cache under either name, hidden states and attention weights."""
    return outputs.get("cache", outputs.get("past_key_values")), outputs.hidden_states, outputs.attentions
