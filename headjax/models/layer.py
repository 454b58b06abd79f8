"""A Transformer layer: attention, optional cross-attention and feed-forward, each with its residual connection."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from headjax.attention.attend import Call
from headjax.attention.formulation import Attention, KeyValues, structure
from headjax.attention.operands import Attended, Dropout
from headjax.core.errors import DataError
from headjax.core.fields import Checked, Positive, Rate, Size
from headjax.core.norms import LayerNorm, Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Constant, Ones, Params, Tensor, Tensors, Zeros
from headjax.models.cache import LayerCache, append, is_empty, stored
from headjax.models.sublayers import FeedForward, fold

SubLayer = Callable[[jax.Array], jax.Array]
"""f, `[batch, length, width]` to the same shape, with its parameters and its dropout inside."""


class Residual(Checked, abc.ABC):
    """A residual connection around a sub-layer f."""

    @property
    @abc.abstractmethod
    def norm(self) -> Norm | None:
        """The normalisation it uses; None if it has none."""

    @abc.abstractmethod
    def tensors(self, width: int) -> Tensors:
        """Declare the parameters."""

    @abc.abstractmethod
    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        """Joins x and f, `[batch, length, width]` each."""

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (a, b) of the sum a x + b f that the stream becomes, before any norm: numbers or vectors `[width]`."""
        return 1.0, 1.0


@dataclasses.dataclass(frozen=True)
class Normalised(Residual):
    """Base of the residual connections with a normalisation.

    Attributes:
        norm: the normalisation.
    """

    norm: Norm = LayerNorm()

    def tensors(self, width: int) -> Tensors:
        return {"norm": self.norm.tensors(width)}


@kind("post_norm")
@dataclasses.dataclass(frozen=True)
class PostNorm(Normalised):
    """LN(x + f(x)) (Vaswani et al. 2017; BERT)."""

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.norm(params["norm"], x + f(x))


@kind("scaled_post_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPostNorm(Normalised):
    """LN(omega * x + f(x)) with a learned vector omega `[width]` on the shortcut: Admin (Liu et al. 2020, section 4).

    Omega starts as ones, which is `PostNorm`; `headjax.initialization` sets it. `headjax.initialization.fold_shortcuts`
    folds it into the weights around it.
    """

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"shortcut": Tensor((width,), ("embed",), Ones, decay=False)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.norm(params["norm"], _row(params["shortcut"]) * x + f(x))

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return params["shortcut"], 1.0


@kind("constant_post_norm")
@dataclasses.dataclass(frozen=True)
class ConstantPostNorm(Normalised):
    """LN(alpha x + f(x)) with a constant alpha: DeepNorm (Wang et al. 2022, section 3).

    Attributes:
        alpha: multiplies the shortcut; more than one makes updates of deep models small.
    """

    alpha: Positive = 1.0

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.norm(params["norm"], self.alpha * x + f(x))

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return self.alpha, 1.0


@kind("pre_norm")
@dataclasses.dataclass(frozen=True)
class PreNorm(Normalised):
    """x + f(LN(x)) (GPT-2, ViT). The stack needs a final norm."""

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + f(self.norm(params["norm"], x))


@kind("sandwich_norm")
@dataclasses.dataclass(frozen=True)
class SandwichNorm(PreNorm):
    """x + LN'(f(LN(x))) with a norm on both sides of f (Sandwich-LN, Ding et al. 2021; Gemma 2 and 3)."""

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"after": self.norm.tensors(width)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + self.norm(params["after"], f(self.norm(params["norm"], x)))

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (0, 1): the norm behind f reads f alone."""
        return 0.0, 1.0


@kind("scaled_pre_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPreNorm(PreNorm):
    """x + lambda * f(LN(x)) with a learned vector lambda `[width]`: LayerScale (Touvron et al. 2021, equation 4).

    Attributes:
        initial: value of every entry of lambda at the start.
    """

    initial: float = 1e-5

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"scale": Tensor((width,), ("embed",), Constant(self.initial), decay=False)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + _row(params["scale"]) * f(self.norm(params["norm"], x))

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return 1.0, params["scale"]


@kind("no_norm")
@dataclasses.dataclass(frozen=True)
class NoNorm(Residual):
    """x + f(x) (T-Fixup, Huang et al. 2020, removes every normalisation)."""

    @property
    def norm(self) -> None:
        return None

    def tensors(self, width: int) -> Tensors:
        return {}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + f(x)


@kind("scaled_no_norm")
@dataclasses.dataclass(frozen=True)
class ScaledNoNorm(NoNorm):
    """x + alpha f(x) with one learned alpha that starts as 0: ReZero (Bachlechner et al. 2020, equation 1).

    A fresh stack is the identity, however deep.
    """

    def tensors(self, width: int) -> Tensors:
        return {"scale": Tensor((), (), Zeros(), inputs=(), decay=False)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + params["scale"] * f(x)

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return 1.0, params["scale"]


def _row(vector: jax.Array) -> jax.Array:
    return vector[None, None, :]


class Probe(NamedTuple):
    """One attention call as a probe function sees it.

    Attributes:
        slot: `attention` or `cross_attention`.
        attention: the formulation.
        params: its parameters.
        inputs: `[batch, query, width]`, from which queries are computed.
        attended: contexts and probabilities.
        mask: which keys each query may see.
        query_mask: `[batch, query]` bool, False at padding; None without padding.
        memory_inputs: `[batch, key, width]`, from which keys and values are computed; None if they come from a cache.
    """

    slot: str
    attention: Attention
    params: Params
    inputs: jax.Array
    attended: Attended
    mask: Any
    query_mask: jax.Array | None
    memory_inputs: jax.Array | None = None


ProbeFunction = Callable[[Probe], Any]
"""Reduces one attention call to the statistics wanted; stacked over layers by the model."""


class LayerCall(NamedTuple):
    """Everything about one layer call that is neither parameter nor input.

    Attributes:
        attention: the self-attention call (its gates are this layer's).
        cross_attention: the cross-attention call, in decoders that have one.
        encoder_output: `[batch, key, width]`, for cross-attention.
        query_mask: `[batch, length]` bool, False at padding.
        key: PRNG key of this layer's dropout, None outside training.
        probe: see `Probe`.
        number: of the layer within its stack, a scalar that may be traced.
        depth: number of layers of the stack.
        cache: keys and values of the tokens before, when decoding.
        used: number of tokens in the cache.
    """

    attention: Call
    cross_attention: Call = Call()
    encoder_output: jax.Array | None = None
    query_mask: jax.Array | None = None
    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    number: jax.Array | int = 0
    depth: int = 1
    cache: LayerCache | None = None
    used: jax.Array | int = 0


CACHE = "cache"
"""Key under which a decoding layer reports the keys and values of its self-attention, beside the probe's results."""


@kind("layer")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer(Checked):
    """One layer.

    Attributes:
        attention: self-attention formulation.
        feed_forward: feed-forward sub-layer.
        cross_attention: attention to an encoder's output, or None.
        residual: how each sub-layer joins the stream.
        dropout: rate on each sub-layer's output.
        attention_dropout: rate on attention probabilities.
        feed_forward_dropout: rate on the inner feed-forward activations.
        window: self-attention sees only keys at a distance below this, before and after (sliding window); None is any.
        stochastic_depth: rate at which an example skips a sub-layer of the stack's last layer in training; rates grow
            evenly from 0 at the first layer (Huang et al. 2016; DeiT).
    """

    attention: Attention
    feed_forward: FeedForward
    cross_attention: Attention | None = None
    residual: Residual = PostNorm()
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    feed_forward_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    window: Size | None = None

    @property
    def residual_slots(self) -> tuple[str, ...]:
        """Keys of the residual connections among the parameters, in the order of computation."""
        crossed = () if self.cross_attention is None else ("cross_attention_residual",)
        return ("attention_residual", *crossed, "feed_forward_residual")

    def tensors(self, width: int, memory_width: int) -> Tensors:
        """Declare the parameters; `memory_width` is the width of the encoder output, for cross-attention."""
        tensors = {
            "attention": self.attention.tensors(width, width),
            "attention_residual": self.residual.tensors(width),
        }
        if self.cross_attention is not None:
            tensors["cross_attention"] = self.cross_attention.tensors(width, memory_width)
            tensors["cross_attention_residual"] = self.residual.tensors(width)
        tensors["feed_forward"] = self.feed_forward.tensors(width)
        tensors["feed_forward_residual"] = self.residual.tensors(width)
        return tensors

    def __call__(self, params: Params, x: jax.Array, call: LayerCall) -> tuple[jax.Array, dict[str, Any]]:
        """Return the layer's output `[batch, length, width]`, and by slot the probe's results."""
        reports: dict[str, Any] = {}

        def sublayer_of(slot: str, attention: Attention, options: Call, index: int) -> Callable[[jax.Array], jax.Array]:
            weights = params[slot]
            dropout = Dropout(self.attention_dropout, fold(call.key, index))

            def sublayer(inputs: jax.Array) -> jax.Array:
                key_values = _key_values(slot, attention, weights, inputs, call)
                if call.cache is not None and slot == "attention":
                    before, used = call.cache.attention, call.used
                    if before.keys() != key_values.keys():
                        key_values = attention.rebuilt(weights, key_values)
                    held = {name: append(before[name], array, used) for name, array in key_values.items()}
                    reports[CACHE] = held
                    if not is_empty(used):
                        key_values = {name: stored(array) for name, array in held.items()}
                probed_or_not = options._replace(dropout=dropout, probabilities=call.probe is not None)
                attended = attention.attend(weights, inputs, key_values, probed_or_not)
                if call.probe is not None:
                    read = _memory_inputs(slot, inputs, call)
                    seen = Probe(slot, attention, weights, inputs, attended, options.mask, call.query_mask, read)
                    reports[slot] = call.probe(seen)
                outputs = attention.combine(weights, attended.context)
                return self._dropped(outputs, call, index + 1)

            return sublayer

        def feed_forward(inputs: jax.Array) -> jax.Array:
            inner = Dropout(self.feed_forward_dropout, fold(call.key, 4))
            outputs = self.feed_forward(params["feed_forward"], inputs, inner)
            return self._dropped(outputs, call, 5)

        near = call.attention if self.window is None else call.attention.within(self.window)
        x = self.residual(params["attention_residual"], x, sublayer_of("attention", self.attention, near, 0))
        if self.cross_attention is not None:
            cross = sublayer_of("cross_attention", self.cross_attention, call.cross_attention, 2)
            x = self.residual(params["cross_attention_residual"], x, cross)
        return self.residual(params["feed_forward_residual"], x, feed_forward), reports

    def _dropped(self, outputs: jax.Array, call: LayerCall, index: int) -> jax.Array:
        """Return a sub-layer's outputs after dropout, as they join the stream."""
        outputs = Dropout(self.dropout, fold(call.key, index))(outputs)
        if call.key is None or self.stochastic_depth == 0.0 or call.depth == 1:
            return outputs
        rate = self.stochastic_depth * call.number / (call.depth - 1)
        return Dropout(rate, jax.random.fold_in(call.key, index + 6)).of_examples(outputs)

    def flops(self, width: int, length: int, memory_width: int = 0, memory_length: int = 0) -> int:
        """Count the floating-point operations of one forward of one sequence, and its encoder output if crossed."""
        total = self.attention.flops(width, width, length, length) + self.feed_forward.flops(width, length)
        if self.cross_attention is not None:
            total += self.cross_attention.flops(width, memory_width, length, memory_length)
        return total

    def structure(self) -> Layer:
        """Return the layer without its heads' original numbers; layers of equal structure form one group."""
        return dataclasses.replace(
            self, attention=structure(self.attention), cross_attention=structure(self.cross_attention)
        )


def _memory_inputs(slot: str, inputs: jax.Array, call: LayerCall) -> jax.Array | None:
    """Return the inputs of keys and values; None if they come from a cache."""
    if call.cache is not None:
        return None
    return inputs if slot == "attention" else call.encoder_output


def _key_values(slot: str, attention: Attention, params: Params, inputs: jax.Array, call: LayerCall) -> KeyValues:
    """Return the keys and values of the attention in this slot; in self-attention those of the new tokens."""
    if slot == "cross_attention":
        if call.cache is not None and call.cache.cross_attention is not None:
            return call.cache.cross_attention
        if call.encoder_output is None:
            raise DataError("encoder_output: cross-attention needs an encoder's output to attend to")
        return attention.key_values(params, call.encoder_output, None)
    return attention.key_values(params, inputs, call.attention.positions)
