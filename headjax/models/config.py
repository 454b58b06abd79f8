"""The base of the families' configs, and the values that a forward pass takes and returns."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import jax

from headjax.core.errors import DataError, require
from headjax.core.fields import LISTED_MAX, Checked, Listed, Positive, Rate, Size
from headjax.core.kind import Kind
from headjax.core.modules import declared
from headjax.core.tensors import Initializer, Normal, Params, Tensors, initialize
from headjax.nn.block import ForwardOptions, LayerConfig
from headjax.nn.embeddings import Range
from headjax.nn.flops import product_flops
from headjax.nn.norms import LayerNorm, Norm, ResidualKind
from headjax.nn.projections import ActivationName
from headjax.nn.stack import StackConfig

Batch = Mapping[str, Any]
"""Arrays by Hugging Face's names: `input_ids [batch, length]`, `attention_mask [batch, length]`, `labels`, ...

    >>> model = headjax.demo_model()
    >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
    >>> {name: array.shape for name, array in batch.items()}
    {'input_ids': (1, 8), 'token_type_ids': (1, 8), 'attention_mask': (1, 8)}
"""


HEAD_STACKS = {
    "encoder": ("encoder", "attention"),
    "decoder": ("decoder", "attention"),
    "cross": ("decoder", "cross_attention"),
}
"""Place of each head stack in a model: (stack, slot of its layers)."""


class LayerSlot(NamedTuple):
    """Place of an attention layer in a model, see `HEAD_STACKS`."""

    head_stack: str
    stack: str
    slot: str  # of the layer
    layer: int  # number in its stack
    attention: Kind
    tied: tuple[int, ...]  # layers that share its parameters, itself included, ascending

    @property
    def first(self) -> bool:
        """Whether it is the first of the layers that share its parameters."""
        return self.layer == self.tied[0]


def head_stack_at(stack: str, slot: str) -> str:
    """Return the head stack of a slot (`attention` or `cross_attention`) of a stack."""
    return next(name for name, place in HEAD_STACKS.items() if place == (stack, slot))


class Output(NamedTuple):
    """The results of one forward pass.

    Attributes:
        hidden: `[batch, length, width]`, output of the last stack.
        logits: the task's logits, where the model has a task: `[batch, length, vocabulary]` for language models.
        pooled: `[batch, width]` where the model pools.
        attention: by head stack, a list over layers of `[batch, heads, query, key]` probabilities; on request.
        probes: by head stack, a list over layers of the probe function's results; on request.
        extra_logits: by Hugging Face's names, further logits of tasks with more than one kind
            (`seq_relationship_logits`, `start_logits`, ...).
        embeddings: `[batch, sentences, size]`, the sentence vectors of a model whose task is `SentenceSimilarity`.
    """

    hidden: jax.Array
    logits: jax.Array | None = None
    pooled: jax.Array | None = None
    attention: dict[str, list[Any]] | None = None
    probes: dict[str, list[Any]] | None = None
    extra_logits: dict[str, jax.Array] | None = None
    embeddings: jax.Array | None = None

    def require_logits(self, name: str | None = None) -> jax.Array:
        """Return the task's logits, or the extra logits of this name."""
        logits = self.logits if name is None else (self.extra_logits or {}).get(name)
        if logits is None:
            raise DataError(f"{name or 'logits'}: the model has no output for this task")
        return logits

    def require_embeddings(self) -> jax.Array:
        """Return the sentence vectors."""
        if self.embeddings is None:
            raise DataError("embeddings: the model's task is not sentence_similarity")
        return self.embeddings

    def require_probes(self) -> dict[str, list[Any]]:
        """Return the probe function's results, see `probes`."""
        if self.probes is None:
            raise DataError("probes: the forward was given no probe")
        return self.probes


class Loss(NamedTuple):
    """Per-example losses.

    Attributes:
        total: `[batch]` summed loss of each example's targets, in nats.
        weight: `[batch]` number of targets of each example.
    """

    total: jax.Array
    weight: jax.Array

    def mean(self) -> jax.Array:
        """Return the mean loss over all targets of the batch."""
        return self.total.sum() / jax.numpy.maximum(self.weight.sum(), 1.0)


STACK_FIELDS = {"num_layers": "num_layers", "attention": "attention", "hidden": "hidden", "alpha": "alpha"}
"""Fields of a family's only stack, or of its first one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked, abc.ABC):
    """Base of the families' configs, one flat dataclass each.

    `attention`, `hidden`, `window` and `attention_norm` are tuples with an entry for each layer; a single value is that
    of every layer.

        >>> config = headjax.demo_model().config
        >>> config.width, len(config.attention), config.hidden
        (128, 4, (512, 512, 512, 512))
        >>> fresh = headjax.Model(config, rngs=nnx.Rngs(0))
        >>> isinstance(fresh.config, headjax.ModelConfig)
        True

    Attributes:
        width: size of the residual stream.
        num_layers: number of layers.
        attention: formulation of each layer's self-attention.
        hidden: units of each layer's feed-forward.
        activation: nonlinearity of the feed-forward.
        gated: whether the feed-forward is gated (SwiGLU, GEGLU), see `FeedForward`.
        feed_forward_bias: whether the maps of the feed-forward have biases.
        residual: how sub-layers join the stream, see `Residual`; those with a norm before them add a final norm.
        norm: normalisation of the stream.
        alpha: multiplies the shortcut of `constant_post_norm`.
        dropout: rate on each sub-layer's output.
        embedding_dropout: rate on the embeddings; None is `dropout`.
        attention_dropout: rate on attention probabilities.
        feed_forward_dropout: rate on the inner feed-forward activations.
        stochastic_depth: rate at which an example skips a sub-layer of the last layer in training; rates grow evenly
            from 0 at the first layer (Huang et al. 2016; DeiT).
        initializer: of every tensor that names none.
    """

    model_class: ClassVar[Any] = None
    """The family's class of models, which names its class of configs: `class Decoder(Model, config=DecoderConfig)`."""

    STACKS: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """The stacks by name, each with the fields that describe it, by their names in `LayerConfig` and `StackConfig`."""

    width: Size
    num_layers: Listed
    attention: tuple[Kind, ...]
    hidden: tuple[Size, ...]
    activation: ActivationName = "gelu"
    gated: bool = False
    feed_forward_bias: bool = True
    residual: ResidualKind = "post_norm"
    norm: Norm = LayerNorm()
    alpha: Positive = 1.0
    dropout: Rate = 0.0
    embedding_dropout: Rate | None = None
    attention_dropout: Rate = 0.0
    feed_forward_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    initializer: Initializer = Normal(0.02)

    def __post_init__(self) -> None:
        for fields in self.STACKS.values():
            count = getattr(self, fields["num_layers"])
            for name in (fields[name] for name in BY_LAYER if name in fields):
                value = getattr(self, name)
                value = getattr(LayerConfig, name, ()) if value == () else value
                if not isinstance(value, tuple) and isinstance(count, int) and 0 < count <= LISTED_MAX:
                    object.__setattr__(self, name, (value,) * count)
        super().__post_init__()
        for fields in self.STACKS.values():
            count = getattr(self, fields["num_layers"])
            for name in (fields[name] for name in BY_LAYER if name in fields):
                entries = len(getattr(self, name))
                require(entries == count, name, f"names {entries} layers, but {fields['num_layers']} is {count}")
            name = fields.get("position_bias", "")
            bias = getattr(self, name, None)
            if bias is not None:
                last = max((head for kind in getattr(self, fields["attention"]) for head in kind.ids), default=0)
                enough = last < bias.num_heads
                require(enough, name, f"num_heads is {bias.num_heads}, but a layer has a head numbered {last}")
        self.validate()

    def validate(self) -> None:
        """Raise `ConfigError` naming the field that cannot be used."""

    @property
    def embeddings_rate(self) -> float:
        return self.dropout if self.embedding_dropout is None else self.embedding_dropout

    def stacks(self) -> Mapping[str, StackConfig]:
        """Return the stacks by name (`encoder`, `decoder`); their parameters lie under the same name."""
        return self._stacks

    @functools.cached_property
    def _stacks(self) -> dict[str, StackConfig]:
        ours = {field.name for field in dataclasses.fields(self)}
        same = [field.name for field in dataclasses.fields(LayerConfig) if field.name in ours.difference(BY_LAYER)]
        stacks = {}
        for stack, fields in self.STACKS.items():
            equal = {name: getattr(self, name) for name in same} | {"alpha": getattr(self, fields["alpha"])}
            varying = {name: getattr(self, fields[name]) for name in BY_LAYER if name in fields}
            by_layer = [dict(zip(varying, values, strict=True)) for values in zip(*varying.values(), strict=True)]
            stacks[stack] = StackConfig(
                layers=tuple(LayerConfig(**equal | values, depth=len(by_layer)) for values in by_layer),
                position_bias=getattr(self, fields["position_bias"]) if "position_bias" in fields else None,
                causal=stack == "decoder" or getattr(self, "causal", False),
                normed=not getattr(self, "pooled_norm", False),
                shared=getattr(self, "shared_layers", False),
            )
        return stacks

    def with_layers(self, layers: Mapping[str, Sequence[LayerConfig]]) -> Self:
        """Return the config with these layers of stacks, of which only the fields in `BY_LAYER` are read."""
        changes: dict[str, Any] = {}
        for stack, configs in layers.items():
            fields = self.STACKS[stack]
            changes[fields["num_layers"]] = len(configs)
            changes |= {fields[n]: tuple(getattr(layer, n) for layer in configs) for n in BY_LAYER if n in fields}
        return dataclasses.replace(self, **changes)

    def tensors(self) -> Tensors:
        """Return the declared weights of the family's model, which are shared: to be read, not changed."""
        return declared(declared_model(self))

    def initialize(self, key: jax.Array) -> Params:
        return initialize(self.tensors(), key, self.initializer)

    def flops(self, length: int) -> int:
        """Count the floating-point operations of one forward of one example of this length."""
        stacks = self.stacks()
        shallow = self.with_layers({name: stack.layers[:1] for name, stack in stacks.items()})
        groups = [group for stack in stacks.values() for group in stack.groups]
        layers = sum(group.count * group.layer.flops(self.example_length(length)) for group in groups)
        return _flops_beside_layers(shallow, length) + layers

    @abc.abstractmethod
    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and types of a training batch: every array that the forward and the loss read."""

    def output_description(self) -> str:
        """Return the model's output in words, such as `, task regression`, for the end of a line about the model."""
        config: Any = self
        return str(config.task.output_description())

    def ranges(self) -> Mapping[str, Range]:
        """Return the range of integers of each array of a batch, by name, see `headjax.models.inputs.check_batch`."""
        return {}

    def for_evaluation(self) -> Self:
        """Return the model with the loss that evaluation reports, without training's label smoothing."""
        task = getattr(self, "task", None)
        changes = {"label_smoothing": 0.0} if hasattr(self, "label_smoothing") else {}
        return dataclasses.replace(self, **changes if task is None else {"task": task.for_evaluation()})

    def attentions(self) -> dict[str, tuple[Kind, ...]]:
        """The formulation of every layer, by head stack."""
        stacks = self.stacks()
        return {
            name: stacks[stack].attentions(slot)
            for name, (stack, slot) in HEAD_STACKS.items()
            if stack in stacks and getattr(stacks[stack].layers[0], slot) is not None
        }

    def site(self, head_stack: str, layer: int) -> LayerSlot:
        """Return the place of one attention layer; the model has the head stack and the layer."""
        name, slot = HEAD_STACKS[head_stack]
        stack = self.stacks()[name]
        kind = getattr(stack.layers[layer], slot)
        return LayerSlot(head_stack, name, slot, layer, kind, stack.tied_layers(layer))

    def sites(self, head_stacks: Collection[str] | None = None) -> tuple[LayerSlot, ...]:
        """Return the places of all attention layers, or of these head stacks alone."""
        return tuple(
            self.site(name, layer)
            for name, attentions in self.attentions().items()
            if head_stacks is None or name in head_stacks
            for layer in range(len(attentions))
        )

    def example_length(self, length: int) -> int:
        """Return the number of vectors of each stack for one example of this length, as `flops` counts it."""
        return length


@functools.lru_cache(maxsize=256)
def declared_model(config: ModelConfig) -> Any:
    """Return a model whose weights are declared and not drawn, which is shared: to be read, not changed."""
    return config.model_class(config, DECLARED)


@functools.lru_cache(maxsize=256)
def _flops_beside_layers(config: ModelConfig, length: int) -> int:
    example = {name: array for name, array in config.example_batch(1, length).items() if name not in ADDED}
    if hasattr(config, "position_table"):  # a count does not ask whether the model has as many positions
        example["position_ids"] = jax.ShapeDtypeStruct((1, length), "int32")
    skipping = ForwardOptions(join=lambda step: step.x)
    return product_flops(lambda model, batch: model.forward(batch, skipping), declared_model(config), example)


ADDED = ("token_type_ids", "segment_ids")
"""Arrays that an example may go without; the look-up of the former is a product of matrices, though no work."""

DECLARED: Mapping[str, Any] = MappingProxyType({})
"""The parameters of a model whose weights stay declared."""

BY_LAYER = ("attention", "cross_attention", "hidden", "window", "attention_norm")
"""Fields of a `LayerConfig` that may differ from layer to layer."""
