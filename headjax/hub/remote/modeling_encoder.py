"""An encoder of texts (BERT, RoBERTa, MPNet, ...) or images (ViT, DeiT) whose layers have sizes of their own.

Written by headjax; needs PyTorch and `transformers`: `AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
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
from .layers_headjax import make_layers
from .parts_headjax import Embeddings, MaskedHead, Pooler, RelativeBias, ends, final_norm, small_norm, within


class HeadjaxConfig(PretrainedConfig):
    """`headjax` is what all layers share, `headjax_layers` has an entry for each layer."""

    model_type = "headjax_encoder"
    headjax: Any = None
    headjax_layers: Any = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0


class HeadjaxPreTrainedModel(PreTrainedModel):
    """Base of the models."""

    config_class = HeadjaxConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _no_split_modules = ("Layer",)


class HeadjaxModel(HeadjaxPreTrainedModel):
    """The model without a task. Texts are `input_ids`, images `pixel_values`."""

    def __init__(self, config: HeadjaxConfig) -> None:
        super().__init__(config)
        shared = config.headjax
        if shared["kind"] == "vision":
            self.patches, self.main_input_name = Patches(shared), "pixel_values"
            self.pooled_norm = small_norm(shared["norm"] if shared["pooled_norm"] else None, shared["width"])
        else:
            self.embeddings = Embeddings(shared, config.vocab_size)
        self.layers, self.final_norm = make_layers(config), final_norm(shared)
        self.position_bias = RelativeBias(shared["position_bias"]) if shared.get("position_bias") else None
        self.pooler = Pooler(shared) if shared["pooler"] else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.token if hasattr(self, "embeddings") else self.patches

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.token = value

    def positions_of(self, tokens: Tensor) -> Tensor:
        """Return the positions of tokens; those of RoBERTa leave out padding, whose token is offset - 1."""
        if self.embeddings.positions != "learned_present":
            return torch.arange(tokens.shape[1], device=tokens.device)[None]
        present = (tokens != self.embeddings.offset - 1).long()
        return present.cumsum(dim=1) * present - 1

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPooling:
        if pixel_values is not None:
            x = self.patches(pixel_values)
        else:
            tokens = input_ids if inputs_embeds is None else inputs_embeds[..., 0]
            position_ids = self.positions_of(tokens) if position_ids is None else position_ids
            x = self.embeddings.token(input_ids) if inputs_embeds is None else inputs_embeds
            x = self.embeddings(x, position_ids, token_type_ids)
        counted = torch.arange(x.shape[1], device=x.device)
        positions = counted[None] if position_ids is None or self.position_bias is not None else position_ids
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        if self.config.headjax.get("causal"):
            before = counted[:, None] >= counted
            mask = before[None, None] if mask is None else mask & before
        bias = None if self.position_bias is None else self.position_bias(counted)
        states = [x]
        for number, own in enumerate(self.config.headjax_layers):
            near = within(mask, own.get("window"), counted, counted)
            x = self.layers[number % len(self.layers)](x, near, positions, bias=bias)
            states.append(x)
        x = self.final_norm(x)
        pooled = self.pooled_norm(self.patches.pooled(x)) if pixel_values is not None else None
        if self.config.headjax.get("end_token") is not None:
            pooled = x[torch.arange(len(x), device=x.device), ends(tokens, self.config.headjax["end_token"])]
        if self.pooler is not None:
            pooled = self.pooler(x, attention_mask)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutputWithPooling(x, pooled, tuple(states) if wanted else None)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of labels; those of -100 do not count."""
    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())


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
        self.dropout = nn.Dropout(task.get("dropout", 0.0))
        self.classifier = nn.Linear(width, self.outputs or self.config.num_labels)

    def read(self, found: Any) -> Tensor:
        """Return what the map to logits reads; a pooler may be applied to each token."""
        pooled = found.pooler_output
        each = pooled is not None and pooled.dim() == 3
        if self.reads_pooled:
            return pooled[:, 0] if each else pooled
        return pooled if each else found.last_hidden_state

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **named: Any,
    ) -> Any:
        found = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **named)
        return self.answer(found, labels)


class HeadjaxForSequenceClassification(HeadjaxForTask):
    """Classes of texts, or numbers where `problem_type` is `regression`."""

    reads_pooled = True

    def answer(self, found: Any, labels: Tensor | None) -> SequenceClassifierOutput:
        logits = self.classifier(self.dropout(self.read(found)))
        return SequenceClassifierOutput(self.loss(logits, labels), logits, found.hidden_states)

    def loss(self, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        if labels is None:
            return None
        if self.config.problem_type == "regression" or logits.shape[-1] == 1:
            return functional.mse_loss(logits.float().flatten(), labels.float().flatten())
        return cross_entropy(logits, labels)


class HeadjaxForTokenClassification(HeadjaxForTask):
    """Classes of tokens."""

    def answer(self, found: Any, labels: Tensor | None) -> TokenClassifierOutput:
        logits = self.classifier(self.dropout(self.read(found)))
        loss = None if labels is None else cross_entropy(logits, labels)
        return TokenClassifierOutput(loss, logits, found.hidden_states)


class HeadjaxForQuestionAnswering(HeadjaxForTask):
    """First and last token of answers."""

    outputs = 2

    def forward(
        self, *inputs: Any, start_positions: Tensor | None = None, end_positions: Tensor | None = None, **named: Any
    ) -> QuestionAnsweringModelOutput:
        found = self.model(*inputs, **named)
        start, end = self.classifier(self.dropout(self.read(found))).unbind(-1)
        pairs = ((start, start_positions), (end, end_positions))
        losses = [cross_entropy(logits, at) for logits, at in pairs if at is not None]
        return QuestionAnsweringModelOutput(sum(losses) / 2.0 if losses else None, start, end, found.hidden_states)


class HeadjaxForMaskedLM(HeadjaxForTask):
    """Tokens in place of masks."""

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        self.lm_head = MaskedHead(self.config.headjax, self.config.vocab_size, task.get("masked", task))

    def answer(self, found: Any, labels: Tensor | None) -> MaskedLMOutput:
        logits = self.lm_head(self.read(found), self.model.embeddings.token.weight)
        loss = None if labels is None else cross_entropy(logits, labels)
        return MaskedLMOutput(loss, logits, found.hidden_states)


class HeadjaxForImageClassification(HeadjaxForSequenceClassification):
    """Classes of images; DeiT's are the mean of those of two tokens."""

    main_input_name = "pixel_values"

    def make_head(self, width: int, task: dict[str, Any]) -> None:
        super().make_head(width, task)
        if task["kind"] == "distilled_classification":
            labels = self.config.num_labels
            self.classifier = nn.ModuleDict({n: nn.Linear(width, labels) for n in ("class", "distillation")})

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **named: Any) -> ImageClassifierOutput:
        found = self.model(pixel_values=pixel_values, **named)
        if isinstance(self.classifier, nn.ModuleDict):
            hidden = found.last_hidden_state
            logits = sum(head(hidden[:, at]) for at, head in enumerate(self.classifier.values())) / 2.0
        else:
            logits = self.classifier(self.dropout(self.read(found)))
        return ImageClassifierOutput(self.loss(logits, labels), logits, found.hidden_states)
