"""Means and covariances of the inputs of attention layers, collected from calibration batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError
from headjax.core.progress import Update
from headjax.heads.head_id import HeadLayer
from headjax.heads.sums import layer_steps
from headjax.models.config import Batch, head_stack_at
from headjax.models.inputs import counted_at
from headjax.models.model import Model
from headjax.nn.block import Probe

FOLDS = 4
"""Calibration batches of which one is held out."""


class Moments(NamedTuple):
    """Moments of one attention layer's inputs over all tokens except padding. NumPy, float64."""

    query_mean: np.ndarray  # [width]
    query_covariance: np.ndarray  # [width, width], about that mean
    key_mean: np.ndarray  # [memory width], of keys and values
    key_covariance: np.ndarray  # [memory width, memory width], about that mean
    key_within: np.ndarray  # about the mean of each sequence, which adds the same to all logits of a row

    def of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the covariance of the inputs of `query`, `key` or `value`."""
        return (self.query_mean, self.query_covariance) if name == "query" else (self.key_mean, self.key_covariance)

    def rooted(self) -> Moments:
        """Return the moments with the `Root` of each covariance, as compiled programs take them."""
        names = ("query_covariance", "key_covariance", "key_within")
        roots: dict[str, Any] = {name: covariance_root(getattr(self, name)) for name in names}
        return self._replace(**roots)


class Calibration(NamedTuple):
    """Calibration batches and their moments by (head stack, layer)."""

    batches: Sequence[Batch]
    eval_batches: Sequence[Batch]  # held out for choices: the last of every four
    moments: Mapping[HeadLayer, Moments]  # over all batches
    fit_moments: Mapping[HeadLayer, Moments]  # over the batches that are not held out


class Root(NamedTuple):
    """C^(1/2) and its inverse, float32."""

    root: Any
    inverse: Any


RIDGE = 1e-4
"""Share of a covariance's mean eigenvalue that is added to all: it weighs directions that no batch has."""


def covariance_root(covariance: np.ndarray | Root) -> Root:
    """Return the symmetric square root of a covariance: ||C^(1/2) (W - W')||^2 is the mean squared error of x W.

    A root is returned as it is, so that a program takes `Moments` with roots in place of covariances.
    """
    if isinstance(covariance, Root):
        return covariance
    return Root(*_root(np.ascontiguousarray(covariance, np.float64).tobytes()))


@functools.lru_cache(maxsize=8)  # the candidates for a layer need the same few
def _root(covariance: bytes) -> tuple[np.ndarray, ...]:
    matrix = np.frombuffer(covariance)
    size = math.isqrt(len(matrix))
    values, vectors = np.linalg.eigh(matrix.reshape(size, size))
    values = np.maximum(values, 0.0)
    roots = np.sqrt(values + max(RIDGE * values.mean(), 1e-30))
    return tuple(matrix.astype(np.float32) for matrix in ((vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T))


def calibrate(model: Model, batches: Iterable[Batch], progress: Update = lambda done, values: None) -> Calibration:
    """Run a model over calibration batches once; fewer than four of them are cut into four by their examples."""
    batches = list(batches)
    parts = batches if len(batches) >= FOLDS else []
    for batch in batches if len(batches) < FOLDS else ():
        folds = FOLDS if len(next(iter(batch.values()))) >= FOLDS else 1
        parts += [{name: array[number::folds] for name, array in batch.items()} for number in range(folds)]
    eval_batches = parts[FOLDS - 1 :: FOLDS]
    fit_batches = [part for number, part in enumerate(parts) if number % FOLDS != FOLDS - 1]
    fit_moments, moments = dict[HeadLayer, Moments](), dict[HeadLayer, Moments]()
    layers = sum(len(stack.layers) for stack in model.config.stacks().values())
    walks = [_sums(model, some) for some in (fit_batches, eval_batches) if some]
    for number, of_layer in enumerate(zip(*walks, strict=True), start=1):
        for place, sums in of_layer[0].items():
            fit_moments[place] = moments_of(sums)
            moments[place] = moments_of(*(each[place] for each in of_layer))
        progress(len(batches) * number // layers, {})
    return Calibration(batches, eval_batches, moments, fit_moments if eval_batches else {})


def collect(model: Model, batches: Iterable[Batch]) -> dict[HeadLayer, Moments]:
    """Return the moments of every attention layer's inputs; layers that share their parameters share their moments."""
    return {place: moments_of(sums) for of_layer in _sums(model, batches) for place, sums in of_layer.items()}


def _sums(model: Model, batches: Iterable[Batch]) -> Iterator[dict[HeadLayer, Mapping[str, np.ndarray]]]:
    """Yield the sums of `input_sums` of the attentions of one layer after another."""
    arrays = [model.device_batch(batch) for batch in batches]
    if not arrays:
        raise DataError("batches: calibration needs at least one batch")
    for step in layer_steps(model, arrays):
        probed = step.read(probe=input_sums).probed
        yield {(head_stack_at(step.block.stack, slot), n): sums for slot, sums in probed.items() for n in step.tied}


def input_sums(probe: Probe) -> dict[str, jax.Array]:
    """Probe: sums of inputs and of their outer products over the tokens of a batch, without padding."""
    if probe.memory_inputs is None:
        raise DataError("probe: inputs of keys are not known while decoding with a cache")
    queries, keys = probe.inputs.astype(jnp.float32), probe.memory_inputs.astype(jnp.float32)
    present = None if probe.mask is None else probe.mask.keys
    of_queries = counted_at(probe.query_mask, queries.shape[:2])[..., None]  # [batch, length, 1]
    of_keys = counted_at(probe.query_mask if probe.slot == "attention" else present, keys.shape[:2])[..., None]
    lengths = jnp.maximum(of_keys.sum(axis=1, keepdims=True), 1.0)
    centred = keys - (keys * of_keys).sum(axis=1, keepdims=True) / lengths
    return {
        "queries": of_queries.sum(),
        "query_sum": (queries * of_queries).sum(axis=(0, 1)),
        "query_second": _second(queries, of_queries),
        "keys": of_keys.sum(),
        "key_sum": (keys * of_keys).sum(axis=(0, 1)),
        "key_second": _second(keys, of_keys),
        "key_within": _second(centred, of_keys),
    }


def _second(inputs: jax.Array, present: jax.Array) -> jax.Array:
    """Return the sum of outer products, `[width, width]`."""
    tokens = (inputs * present).reshape(-1, inputs.shape[-1])
    return jnp.matmul(tokens.T, tokens, precision="highest")


def moments_of(*sums: Mapping[str, np.ndarray]) -> Moments:
    """Return the moments that the sums of `input_sums` over some batches give, all together."""
    total = {name: np.sum([each[name] for each in sums], axis=0) for name in sums[0]}
    queries, keys = np.maximum(total["queries"], 1.0), np.maximum(total["keys"], 1.0)
    query_mean, key_mean = total["query_sum"] / queries, total["key_sum"] / keys
    return Moments(
        query_mean=query_mean,
        query_covariance=total["query_second"] / queries - np.outer(query_mean, query_mean),
        key_mean=key_mean,
        key_covariance=total["key_second"] / keys - np.outer(key_mean, key_mean),
        key_within=total["key_within"] / keys,
    )
