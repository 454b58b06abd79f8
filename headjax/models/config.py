"""The base of the architectures, and the values that a forward pass takes and returns."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.core import tensors as declared
from headjax.core.errors import DataError
from headjax.core.fields import Size
from headjax.core.kind import Kind
from headjax.core.modules import Spec
from headjax.core.tensors import Initializer, Normal, Params
from headjax.models.cache import DecodingState, Prompt
from headjax.models.compute import Compute, StackCall
from headjax.models.layer import Join, ProbeFunction
from headjax.models.ranges import Range
from headjax.models.stack import Stack

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


class Site(NamedTuple):
    """Place of an attention layer in a model.

    Attributes:
        head_stack: `encoder`, `decoder` or `cross`.
        stack: name of the stack of layers.
        slot: name of the attention in its layer: `attention` or `cross_attention`.
        layer: number of the layer, counted from 0.
        attention: formulation.
        tied: the layers that share its parameters, itself included, ascending.
    """

    head_stack: str
    stack: str
    slot: str
    layer: int
    attention: Kind
    tied: tuple[int, ...]

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
    """

    hidden: jax.Array
    logits: jax.Array | None = None
    pooled: jax.Array | None = None
    attention: dict[str, list[Any]] | None = None
    probes: dict[str, list[Any]] | None = None
    extra_logits: dict[str, jax.Array] | None = None

    def require_logits(self, name: str | None = None) -> jax.Array:
        """Return the task's logits, or the extra logits of this name."""
        logits = self.logits if name is None else (self.extra_logits or {}).get(name)
        if logits is None:
            raise DataError(f"{name or 'logits'}: the model has no output for this task")
        return logits

    def require_probes(self) -> dict[str, list[Any]]:
        """Return the probe function's results, see `probes`."""
        if self.probes is None:
            raise DataError("probes: the forward was given no probe")
        return self.probes


def by_head_stack(stack: str, probed: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the probe's results of a stack's layers, by slot, as lists by head stack."""
    return {head_stack_at(stack, slot): [layer[slot] for layer in probed] for slot in probed[0]}


class Options(NamedTuple):
    """Everything about one forward that is neither parameter nor batch.

    Attributes:
        key: PRNG key of dropout; None outside training.
        probe: statistics to take from each attention call.
        compute: how to compute.
        join: how sub-layers join the stream; None is as their residual connections do.
    """

    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    compute: Compute = Compute()
    join: Join | None = None

    def call(self, stack: str) -> StackCall:
        """Return the call of a stack with these options, without its mask."""
        return StackCall(Call(), probe=self.probe, compute=self.compute, stack=stack, join=self.join)


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

    def per_example(self) -> jax.Array:
        """Return the `[batch]` mean losses over each example's own targets."""
        return self.total / jax.numpy.maximum(self.weight, 1.0)


class Network(nnx.Module):
    """The module of an architecture, with its parts as attributes.

    Attributes:
        config: the architecture.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        for name, part in config.parts().items():
            setattr(self, name, part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Spec, abc.ABC):
    """Base of the architectures.

        >>> config = headjax.demo_model().config
        >>> config.width, len(config.attentions()["decoder"])
        (128, 4)
        >>> fresh = headjax.Model(config, rngs=nnx.Rngs(0))
        >>> isinstance(fresh.config, headjax.ModelConfig)
        True

    Attributes:
        width: size of the residual stream.
        initializer: of every tensor that names none.
    """

    width: Size
    initializer: Initializer = Normal(0.02)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.validate()

    def validate(self) -> None:
        """Raise `ConfigError` naming the field that cannot be used."""

    @abc.abstractmethod
    def parts(self) -> dict[str, nnx.Module]:
        """Return the modules that a model of this architecture consists of, their weights declared and not drawn."""

    def module(self) -> Network:
        """Return the model's module."""
        return Network(self)

    @abc.abstractmethod
    def stacks(self) -> dict[str, Stack]:
        """The stacks by name (`encoder`, `decoder`); their parameters lie under the same name."""

    @abc.abstractmethod
    def enter(self, model: Any, stack: str, batch: Batch, options: Options) -> jax.Array:
        """Return what enters the first layer of a stack, `[batch, length, width]`."""

    @abc.abstractmethod
    def call(self, stack: str, batch: Batch, options: Options, memory: jax.Array | None) -> StackCall:
        """Return the call of a stack; `memory` is the output of the stack before."""

    @abc.abstractmethod
    def finish(self, model: Any, hidden: jax.Array, batch: Batch, options: Options) -> Output:
        """Return the model's output, from that of its last stack."""

    def forward(self, model: Any, batch: Batch, options: Options) -> Output:
        """Compute the forward pass.

        Args:
            model: has the `parts` as attributes, in the type to compute in.
            batch: arrays by Hugging Face's names.
            options: of the forward.
        """
        hidden: Any = None
        probes: dict[str, list[Any]] = {}
        for name in self.stacks():
            x, call = self.enter(model, name, batch, options), self.call(name, batch, options, hidden)
            hidden, reports = getattr(model, name)(x, call)  # [batch, length, width]
            if options.probe is not None:
                probes |= by_head_stack(name, reports)
        return self.finish(model, hidden, batch, options)._replace(probes=probes or None)

    def apply(self, params: Params, batch: Batch, options: Options) -> Output:
        """Compute the forward pass with a nested dict of arrays."""
        return self.forward(options.compute.cast(self.bind(params)), batch, options)

    @abc.abstractmethod
    def loss(self, output: Output, batch: Batch) -> Loss:
        """Return the losses of the batch's `labels`."""

    @abc.abstractmethod
    def flops(self, length: int) -> int:
        """Count the floating-point operations of one forward of one example of this length."""

    @abc.abstractmethod
    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and types of a training batch: every array that the forward and the loss read.

        Args:
            batch_size: examples.
            length: tokens of each, of both sides in encoder-decoders. Vision models know their own.
        """

    def ranges(self) -> Mapping[str, Range]:
        """Return the range of integers of each array of a batch, by name, see `headjax.models.inputs.check_batch`."""
        return {}

    def counted(self, batch: Batch) -> jax.Array | None:
        """Return which positions of the last stack are no padding, `[batch, length or 1]` bool; None where all are."""
        mask = batch.get("attention_mask")
        return None if mask is None else jnp.asarray(mask).astype(bool)

    def count_tokens(self, batch: Batch) -> jax.Array:
        """Count the tokens of a batch that the model reads, without padding; to be traced."""
        if batch.get("attention_mask") is not None:
            return jnp.asarray(batch["attention_mask"]).astype(bool).sum()
        return jnp.asarray(jnp.size(batch["input_ids"]))

    def for_evaluation(self) -> ModelConfig:
        """Return the model with the loss that evaluation reports, without training's label smoothing."""
        return self

    def initialize(self, key: jax.Array) -> Params:
        """Draw fresh parameters."""
        return declared.initialize(self.tensors(), key, self.initializer)

    def attentions(self) -> dict[str, tuple[Kind, ...]]:
        """The formulation of every layer, by head stack."""
        stacks = self.stacks()
        return {
            name: stacks[stack].attentions(slot)
            for name, (stack, slot) in HEAD_STACKS.items()
            if stack in stacks and getattr(stacks[stack].layers[0], slot) is not None
        }

    def site(self, head_stack: str, layer: int) -> Site:
        """Return the place of one attention layer; the model has the head stack and the layer."""
        name, slot = HEAD_STACKS[head_stack]
        stack = self.stacks()[name]
        return Site(head_stack, name, slot, layer, getattr(stack.layers[layer], slot), stack.tied_layers(layer))

    def sites(self, head_stacks: Collection[str] | None = None) -> tuple[Site, ...]:
        """Return the places of all attention layers: head stack after head stack, layer after layer.

        Args:
            head_stacks: those of these head stacks alone; None is all.
        """
        return tuple(
            self.site(name, layer)
            for name, attentions in self.attentions().items()
            if head_stacks is None or name in head_stacks
            for layer in range(len(attentions))
        )

    def attention_lengths(self, head_stack: str, length: int) -> tuple[int, int]:
        """(queries, keys) of a head stack's attention for one example of this length, as `flops` counts it."""
        return length, length

    def replace_stacks(self, stacks: Mapping[str, Stack]) -> ModelConfig:
        """The config with these stacks, by name."""
        return dataclasses.replace(self, **stacks)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerativeModel(ModelConfig):
    """A model that predicts the next token from those before it."""

    @abc.abstractmethod
    def prompt(self, model: Any, batch: Batch, options: Options, new_tokens: int) -> Prompt:
        """Return the prompt of a batch, with room in the cache for this many new tokens."""

    @abc.abstractmethod
    def decode(
        self,
        model: Any,
        tokens: jax.Array,
        present: jax.Array,
        state: DecodingState,
        options: Options,
        at: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> tuple[jax.Array, DecodingState]:
        """Return logits `[batch, new, vocabulary]` after each new token, and the state that has seen them.

        The results are those of one forward over all tokens seen so far.
        """
