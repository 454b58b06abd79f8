"""Recipes: the few numbers a person writes down, from which a model's full config is built."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from headjax.attention.base import Attention
from headjax.errors import require, require_positive
from headjax.initializers import Initializer, Normal
from headjax.models.base import ModelConfig
from headjax.models.decoder import DecoderModel
from headjax.models.embeddings import Embeddings, Learned, Positions
from headjax.models.feed_forward import FeedForward
from headjax.models.layer import Layer
from headjax.models.norms import Norm
from headjax.models.outputs import Tied, TokenLogits
from headjax.models.residual import PreNorm, Residual
from headjax.models.stack import Stack
from headjax.serialize import kind
from headjax.tensors import Params


class Start(NamedTuple):
    """Where training starts.

    Attributes:
        config: the architecture.
        params: trained parameters, or None for fresh ones.
        tokenizer: the tokenizer that goes with trained parameters.
        history: what was done to them.
    """

    config: ModelConfig
    params: Params | None = None
    tokenizer: Any = None
    history: tuple[Mapping[str, Any], ...] = ()


class Recipe(abc.ABC):
    """What `config.model` of a config file holds."""

    def start(self) -> Start:
        """The model that training starts from."""
        return Start(self.build())

    @abc.abstractmethod
    def build(self) -> ModelConfig:
        """The full config.

        Raises:
            ConfigError: fields that do not fit together.
        """


@kind("language_model")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel(Recipe):
    """A decoder language model of equal layers.

    Attributes:
        vocab_size: number of tokens.
        max_length: longest sequence, in tokens.
        width: size of the residual stream.
        num_layers: number of layers.
        attention: formulation of every layer.
        feed_forward: feed-forward sub-layer of every layer.
        residual: how sub-layers join the stream; `pre_norm` adds a final norm.
        positions: how positions enter; None is one learned vector each.
        output: how hidden states become logits.
        dropout: rate on embeddings and sub-layer outputs.
        attention_dropout: rate on attention probabilities.
        attention_by_layer: formulations that differ from layer to layer, instead of `attention` for all.
        initializer: of weights.
    """

    vocab_size: int
    max_length: int
    width: int
    num_layers: int
    attention: Attention
    feed_forward: FeedForward
    residual: Residual = PreNorm()
    positions: Positions | None = None
    output: TokenLogits = Tied()
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_by_layer: tuple[Attention, ...] = ()
    initializer: Initializer = Normal(0.02)

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "max_length", "width", "num_layers")

    def build(self) -> DecoderModel:
        layers = equal_layers(
            Layer(
                attention=self.attention,
                feed_forward=self.feed_forward,
                residual=self.residual,
                dropout=self.dropout,
                attention_dropout=self.attention_dropout,
            ),
            self.num_layers,
            self.attention_by_layer,
        )
        positions = Learned(self.max_length) if self.positions is None else self.positions
        return DecoderModel(
            width=self.width,
            embeddings=Embeddings(vocab_size=self.vocab_size, positions=positions, dropout=self.dropout),
            decoder=Stack(layers=layers, final_norm=final_norm(self.residual)),
            output=self.output,
            initializer=self.initializer,
        )


@kind("directory")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory(Recipe):
    """A model directory: an imported, pruned or converted model to train further.

    Attributes:
        path: the directory.
    """

    path: str

    def build(self) -> ModelConfig:
        from headjax.models.directory import load_config

        return load_config(self.path)

    def start(self) -> Start:
        from headjax.models.directory import load

        model = load(self.path)
        return Start(model.config, model.params, model.tokenizer, model.history)


def equal_layers(layer: Layer, num_layers: int, attention_by_layer: tuple[Attention, ...]) -> tuple[Layer, ...]:
    """The layer `num_layers` times, each with its own formulation where they are given."""
    if not attention_by_layer:
        return (layer,) * num_layers
    require(
        len(attention_by_layer) == num_layers,
        "attention_by_layer",
        f"names {len(attention_by_layer)} layers, but num_layers is {num_layers}",
    )
    return tuple(dataclasses.replace(layer, attention=attention) for attention in attention_by_layer)


def final_norm(residual: Residual) -> Norm | None:
    """The normalisation that ends a pre-norm stack; None where the layers normalise their own output."""
    return residual.norm if isinstance(residual, PreNorm) else None
