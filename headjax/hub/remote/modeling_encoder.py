"""An encoder of texts (BERT, RoBERTa, MPNet, ...) or images (ViT, DeiT) whose layers have sizes of their own.

Written by headjax; needs PyTorch and `transformers`: `AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .images_headjax import Patches
from .layers_headjax import HeadjaxBase
from .parts_headjax import Embeddings, MaskedHead, Pooler, RelativeBias, ends, final_norm, small_norm


class HeadjaxConfig(PretrainedConfig):
    """`headjax` is what all layers share, `headjax_layers` has an entry for each layer."""

    model_type = "headjax_encoder"
    headjax: Any = None
    headjax_layers: Any = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    tie_word_embeddings: bool = True


class HeadjaxPreTrainedModel(HeadjaxBase):
    """Base of the models."""

    config_class = HeadjaxConfig


class HeadjaxModel(HeadjaxPreTrainedModel):
    """The model without a task. Texts are `input_ids`, images `pixel_values`."""

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        shared = config.headjax
        self.images = shared["kind"] == "vision"
        if self.images:
            self.patches, self.main_input_name = Patches(shared), "pixel_values"
            self.pooled_norm = small_norm(shared["norm"] if shared["pooled_norm"] else None, shared["width"])
        else:
            self.embeddings = Embeddings(shared, config.vocab_size)
        self.layers, self.final_norm = self.make_layers(), final_norm(shared)
        self.position_bias = RelativeBias(shared["position_bias"]) if shared.get("position_bias") else None
        self.pooler = Pooler(shared) if shared["pooler"] else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.patches if self.images else self.embeddings.token

    def set_input_embeddings(self, value: nn.Module) -> None:
        if self.images:
            self.patches = value
        else:
            self.embeddings.token = value

    def positions_of(self, input_ids: Tensor | None, indices: Tensor) -> Tensor:
        """Return the positions of tokens; those of RoBERTa leave out padding, whose token is offset - 1."""
        if input_ids is None or self.embeddings.positions != "learned_present":
            return indices[None]
        present = (input_ids != self.embeddings.offset - 1).long()
        return present.cumsum(dim=1) * present - 1

    def mask_of(self, attention_mask: Tensor | None, indices: Tensor) -> Tensor | None:
        """Return a mask of `[batch or 1, 1, query or 1, key]`, of one that may be `[batch, key]` or whole."""
        mask = attention_mask
        if mask is not None and mask.dim() != 4:
            mask = (mask[:, None] if mask.dim() == 3 else mask[:, None, None]).bool()
        if not self.config.headjax.get("causal") or (mask is not None and mask.dtype != torch.bool):
            return mask
        before = (indices[:, None] >= indices)[None, None]
        return before if mask is None else mask & before

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        of_texts = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if (pixel_values is not None) != self.images or (self.images and any(each is not None for each in of_texts)):
            raise ValueError(f"the model reads {'pixel_values alone' if self.images else 'texts, not pixel_values'}")
        x = self.patches(pixel_values) if self.images else self.embeddings.vectors(input_ids, inputs_embeds)
        indices = torch.arange(x.shape[1], device=x.device)
        if not self.images:
            position_ids = self.positions_of(input_ids, indices) if position_ids is None else position_ids
            x = self.embeddings(x, position_ids, token_type_ids)
        positions = indices[None] if self.images or self.position_bias is not None else position_ids
        bias = None if self.position_bias is None else self.position_bias(indices)
        keep = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        mask = self.mask_of(attention_mask, indices)
        before, states, weights = self.apply_layers(x, mask, indices, positions, bias=bias, **keep)
        x = self.final_norm(before)
        states = None if states is None else (*states, before if self.images else x)  # as in transformers
        return BaseModelOutputWithPooling(x, self.pooled(x, input_ids, attention_mask), states, weights)

    def pooled(self, x: Tensor, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return the vector of each text or image, if the model makes one."""
        if self.pooler is not None:
            return self.pooler(x, attention_mask)
        if self.images:
            return self.pooled_norm(self.patches.pooled(x))
        end = self.config.headjax.get("end_token")
        if end is None:
            return None
        if input_ids is None:
            raise ValueError("input_ids: the model reads where a text ends from them, not from inputs_embeds")
        return x[torch.arange(len(x), device=x.device), ends(input_ids, end)]


class HeadjaxForTask(HeadjaxPreTrainedModel):
    """Base of the models with a task for texts; `answer` makes the results of the model's."""

    reads_pooled = False
    outputs = 0

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        shared = config.headjax
        pooled = shared["kind"] == "vision" or shared["pooler"] or shared["end_token"] is not None
        if self.reads_pooled and not pooled:
            config.headjax = shared | {"pooler": "tanh"}  # fresh, as the map to labels is
        self.model = HeadjaxModel(config)
        self.main_input_name = self.model.main_input_name
        self.make_head(shared["width"] * (1 + shared.get("patch_mean", False)), shared["task"])
        self.post_init()

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        self.dropout = nn.Dropout(task.get("dropout", self.config.headjax["dropout"]))
        self.classifier = nn.Linear(width, self.outputs or self.config.num_labels)

    def read(self, outputs: Any) -> Tensor:
        """Return what the map to logits reads; a pooler may be applied to each token."""
        pooled = outputs.pooler_output
        each = pooled is not None and pooled.dim() == 3
        if self.reads_pooled:
            return pooled[:, 0] if each else pooled
        return pooled if each else outputs.last_hidden_state

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> Any:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, None)
        return self.answer(self.model(*inputs, output_attentions, output_hidden_states, return_dict=True), labels)


class HeadjaxForSequenceClassification(HeadjaxForTask):
    """Classes of texts, several of them, or numbers, as `problem_type` says."""

    reads_pooled = True

    def answer(self, outputs: Any, labels: Tensor | None) -> SequenceClassifierOutput:
        logits, loss = self.classifier(self.dropout(self.read(outputs))), None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class HeadjaxForTokenClassification(HeadjaxForTask):
    """Classes of tokens."""

    def answer(self, outputs: Any, labels: Tensor | None) -> TokenClassifierOutput:
        logits = self.classifier(self.dropout(self.read(outputs)))
        loss = None if labels is None else self.loss_function(logits, labels, self.config)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class HeadjaxForQuestionAnswering(HeadjaxForTask):
    """First and last token of answers; a position outside the text carries no loss."""

    outputs = 2

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, None)
        outputs = self.model(*inputs, output_attentions, output_hidden_states, return_dict=True)
        start, end = self.classifier(self.dropout(self.read(outputs))).unbind(-1)
        loss = self.loss_function(start, end, start_positions, end_positions)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)


class HeadjaxForMaskedLM(HeadjaxForTask):
    """Tokens in place of masks."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.embeddings.token.weight"}  # noqa: RUF012

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        self.lm_head = MaskedHead(self.config.headjax, self.config.vocab_size, task.get("masked", task))

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head.decoder = value

    def answer(self, outputs: Any, labels: Tensor | None) -> MaskedLMOutput:
        logits, loss = self.lm_head(self.read(outputs)), None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class HeadjaxForImageClassification(HeadjaxForSequenceClassification):
    """Classes of images; DeiT's are the mean of those of two tokens."""

    main_input_name = "pixel_values"

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        super().make_head(width, task)
        if task["kind"] == "distilled_classification":
            labels = self.config.num_labels
            self.classifier = nn.ModuleDict({n: nn.Linear(width, labels) for n in ("class", "distillation")})

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> ImageClassifierOutput:
        keep = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        outputs = self.model(pixel_values=pixel_values, **keep, return_dict=True)
        if isinstance(self.classifier, nn.ModuleDict):
            hidden, loss = outputs.last_hidden_state, None
            logits = sum(head(hidden[:, at]) for at, head in enumerate(self.classifier.values())) / 2.0
        else:
            logits, loss = self.classifier(self.dropout(self.read(outputs))), None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return ImageClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)
