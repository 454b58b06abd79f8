"""An encoder of texts (BERT, RoBERTa, MPNet, ...) or images (ViT, DeiT) whose layers have sizes of their own.

Written by headjax; needs PyTorch and `transformers`: `AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
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

from .layers_headjax import HeadjaxBase
from .parts_headjax import Embeddings, MaskedHead, Pooler, RelativeBias, embedding_dropout, final_norm, small_norm


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


class HeadjaxModel(HeadjaxPreTrainedModel):
    """The model without a task. Texts are `input_ids`, images `pixel_values`."""

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        shared = config.headjax
        self.images = shared["kind"] == "vision"
        if self.images:
            self.patches, self.main_input_name, self._input_embed_layer = Patches(shared), "pixel_values", "patches"
            self.pooled_norm = small_norm(shared["norm"] if shared["pooled_norm"] else None, shared["width"])
        else:
            self.embeddings = Embeddings(shared, config.vocab_size)
        self.layers, self.final_norm = self.make_layers(), final_norm(shared)
        self.position_bias = RelativeBias(shared["position_bias"]) if shared.get("position_bias") else None
        self.pooler = Pooler(shared) if shared["pooler"] else None
        self.post_init()

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
        marks = input_ids if end == 2 else (input_ids == end).int()  # as in CLIP: 2 means the largest token
        return x[torch.arange(len(x), device=x.device), marks.argmax(dim=1)]


class HeadjaxForTask(HeadjaxPreTrainedModel):
    """Base of the models with a task: `logits_of` the model's outputs, `loss_of` logits and labels, and a `result`."""

    reads_pooled = False
    outputs = 0
    result: Any = None

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
        **keep: Any,
    ) -> Any:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return self.answer(self.model(*inputs, return_dict=True, **keep), labels)

    def answer(self, outputs: Any, labels: Tensor | None) -> Any:
        logits = self.logits_of(outputs)
        loss = None if labels is None else self.loss_of(logits, labels)
        return self.result(loss, logits, outputs.hidden_states, outputs.attentions)

    def logits_of(self, outputs: Any) -> Tensor:
        return self.classifier(self.dropout(self.read(outputs)))


class HeadjaxForSequenceClassification(HeadjaxForTask):
    """Classes of texts, several of them, or numbers, as `problem_type` says."""

    reads_pooled, result = True, SequenceClassifierOutput

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)


class HeadjaxForTokenClassification(HeadjaxForTask):
    """Classes of tokens."""

    result = TokenClassifierOutput

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss_function(logits, labels, self.config)


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
        **keep: Any,
    ) -> QuestionAnsweringModelOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **keep)
        start, end = self.logits_of(outputs).unbind(-1)
        loss = self.loss_function(start, end, start_positions, end_positions)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)


class HeadjaxForMaskedLM(HeadjaxForTask):
    """Tokens in place of masks."""

    result = MaskedLMOutput
    _tied_weights_keys = {"lm_head.decoder.weight": "model.embeddings.token.weight"}  # noqa: RUF012

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        self.lm_head = MaskedHead(self.config.headjax, self.config.vocab_size, task.get("masked", task))

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head.decoder = value

    def logits_of(self, outputs: Any) -> Tensor:
        return self.lm_head(self.read(outputs))

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)


class HeadjaxForImageClassification(HeadjaxForSequenceClassification):
    """Classes of images; DeiT's are the mean of those of two tokens."""

    main_input_name, result = "pixel_values", ImageClassifierOutput

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        super().make_head(width, task)
        if task["kind"] == "distilled_classification":
            labels = self.config.num_labels
            self.classifier = nn.ModuleDict({n: nn.Linear(width, labels) for n in ("class", "distillation")})

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **keep: Any) -> ImageClassifierOutput:
        return self.answer(self.model(pixel_values=pixel_values, return_dict=True, **keep), labels)

    def logits_of(self, outputs: Any) -> Tensor:
        if not isinstance(self.classifier, nn.ModuleDict):
            return super().logits_of(outputs)
        hidden = outputs.last_hidden_state
        return sum(head(hidden[:, at]) for at, head in enumerate(self.classifier.values())) / 2.0
