"""The decoder language model."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from headjax.attention.base import Call
from headjax.attention.mask import Mask
from headjax.errors import DataError, require
from headjax.models.base import Batch, Loss, ModelConfig, Options, Output
from headjax.models.dropout import fold
from headjax.models.embeddings import Embeddings
from headjax.models.outputs import IGNORED, Tied, TokenLogits, cross_entropy
from headjax.models.stack import Stack, StackCall
from headjax.serialize import kind
from headjax.tensors import Params, Tensors


@kind("decoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderModel(ModelConfig):
    """A causal language model: p(x_t | x_<t) = softmax(output(stack(embeddings(x))))_(t-1).

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `position_ids`, and
    `labels`, which are the `input_ids` unshifted (the model shifts), -100 where no loss is wanted; without labels every
    token that is not padding is one.

    Attributes:
        embeddings: token embeddings and positions.
        decoder: the layers, without cross-attention.
        output: how hidden states become logits.
    """

    embeddings: Embeddings
    decoder: Stack
    output: TokenLogits = Tied()

    def validate(self) -> None:
        crossed = self.decoder.layers[0].cross_attention is not None
        require(not crossed, "decoder", "cross_attention needs an encoder; this model has none")

    def tensors(self) -> Tensors:
        return {
            "embeddings": self.embeddings.tensors(self.width),
            "decoder": self.decoder.tensors(self.width, self.width),
            "output": self.output.tensors(self.width, self.embeddings.vocab_size),
        }

    def stacks(self) -> dict[str, Stack]:
        return {"decoder": self.decoder}

    def apply(self, params: Params, batch: Batch, options: Options) -> Output:
        tokens = batch_tokens(batch)
        self.embeddings.positions.check_length(tokens.shape[1])
        params = options.compute.cast(params)
        positions = batch["position_ids"] if "position_ids" in batch else jnp.arange(tokens.shape[1])[None, :]
        x = self.embeddings(params["embeddings"], tokens, positions=positions, key=fold(options.key, 0))
        present = batch["attention_mask"].astype(bool) if "attention_mask" in batch else None
        segments = batch.get("segment_ids")
        mask = Mask(causal=True, keys=present, query_segments=segments, key_segments=segments)
        gates = None if options.gates is None else options.gates.get("decoder")
        call = StackCall(
            attention=Call(mask=mask, gates=gates, positions=positions),
            query_mask=present,
            key=fold(options.key, 1),
            probe=options.probe,
            compute=options.compute,
        )
        hidden, probed = self.decoder(params["decoder"], x, call)
        logits = self.output(params["output"], hidden, params["embeddings"]["token"])
        probes = {"decoder": [layer["attention"] for layer in probed]} if options.probe is not None else None
        return Output(hidden=hidden, logits=logits, probes=probes)

    def loss(self, output: Output, batch: Batch) -> Loss:
        if output.logits is None:
            raise DataError("logits: the model has no language-model output")
        labels = batch["labels"] if "labels" in batch else batch["input_ids"]
        if "attention_mask" in batch:
            labels = jnp.where(batch["attention_mask"].astype(bool), labels, IGNORED)
        losses, counted = cross_entropy(output.logits[:, :-1], labels[:, 1:])
        return Loss(losses.sum(axis=1), counted.sum(axis=1))

    def flops(self, length: int) -> int:
        return self.decoder.flops(self.width, length) + 2 * length * self.width * self.embeddings.vocab_size


def batch_tokens(batch: Batch, name: str = "input_ids") -> jax.Array:
    """The batch's token ids.

    Raises:
        DataError: there are none, or they are no integers `[batch, length]`.
    """
    if name not in batch:
        raise DataError(f"{name}: missing from the batch, which has {', '.join(sorted(batch))}")
    tokens = jnp.asarray(batch[name])
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise DataError(f"{name}: expected integers [batch, length], got {tokens.dtype} {list(tokens.shape)}")
    return tokens
