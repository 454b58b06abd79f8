"""Measure models around a conversion: captured variance, budgets of ranks, two terms of logits, differences, costs."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Collaborative, Gated, GroupedAttention, NoHeadsAttention
from headjax.attention.module import AttentionModule
from headjax.conversion.calibration import collect
from headjax.conversion.collaborative import roots, scaled_query_key, shared_key_fields, weighted
from headjax.conversion.decomposition import head_svd
from headjax.conversion.products import Products, in_float32
from headjax.conversion.target import (
    HeadLayer,
    Site,
    as_multi_head,
    find_layers,
    inside_gates,
    layers_at,
    multi_head_of,
)
from headjax.core import history, tensors
from headjax.core.blas import one_blas_thread
from headjax.core.errors import ConfigError, DataError, require
from headjax.heads.surgery import LayerModule, map_attention
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import counted_at
from headjax.models.model import Model

LONGEST = 1 << 24
"""Number of tokens up to which a break-even length is looked for."""


class Captured(NamedTuple):
    """Cumulative captured variance of one layer (Cordonnier et al. 2020, figure 1).

    Each curve holds the share of the squared Frobenius norm that the best approximation of rank 1, 2, ... captures. It
    is a NumPy array that increases to 1.

    Attributes:
        query, key: `[rank]`, for W_Q and W_K of all heads side by side.
        product: `[rank]`, for their product W_Q W_K^T, which is the sum over heads.
        query_by_head, key_by_head, product_by_head: `[heads, head_dim]`, for every W_Q^h, W_K^h and W_Q^h W_K^hT.
    """

    query: np.ndarray
    key: np.ndarray
    product: np.ndarray
    query_by_head: np.ndarray
    key_by_head: np.ndarray
    product_by_head: np.ndarray


def captured_variance(
    model: Model, *, stacks: Collection[str] | None = None, layers: Collection[int] | None = None
) -> dict[HeadLayer, Captured]:
    """Return the captured variance of every multi-head or grouped layer, by (head stack, layer), without centring.

    Raises:
        ConfigError: A chosen layer has no queries and keys per head.
    """
    with one_blas_thread():
        return {
            place: _captured(scaled_query_key(site)) for place, site in _multi_head_sites(model, stacks, layers).items()
        }


def rank_for(captured: np.ndarray, share: float) -> np.ndarray:
    """Return the smallest rank that captures at least this share, along the last dimension."""
    require(0.0 < share <= 1.0, "share", f"must be above 0 and at most 1, got {share}")
    return (np.asarray(captured) < share - 1e-6).sum(axis=-1) + 1


def rank_budget(
    model: Model,
    total: int,
    *,
    batches: Iterable[Batch] | None = None,
    stacks: Collection[str] | None = None,
    layers: Collection[int] | None = None,
    multiple: int = 8,
) -> dict[HeadLayer, int]:
    """Divide `total` dimensions among layers so that the sum of their squared relative errors is small.

    The heads' singular values bound every layer's error: with the largest kept, the error is at most the norm of the
    others (the concatenation start of the decomposition). Blocks of dimensions go one after another to the layer whose
    bound falls most. `convert(model, {place: ToCollaborative(shared_dim=rank) for place, rank in ranks.items()})`
    spends them. A dimension costs width + memory width + num_heads parameters in every layer, so a total of dimensions
    is a total of parameters.

    Args:
        model: Model to convert.
        total: Sum of all layers' dimensions.
        batches: Calibration batches; with them errors are those of centred logits.
        stacks: Head stacks; None is all.
        layers: Layers, counted from 0; None is all.
        multiple: Size of a block; every layer has whole blocks, of which the last may be smaller.

    Raises:
        ConfigError: The total is less than one block per layer, or more than the layers have.
    """
    return share_out(_spectra(_multi_head_sites(model, stacks, layers), model, batches), total, multiple)


def ranks_for_size(
    model: Model,
    parameters: int,
    *,
    batches: Iterable[Batch] | None = None,
    stacks: Collection[str] | None = None,
    layers: Collection[int] | None = None,
    multiple: int = 8,
) -> dict[HeadLayer, int]:
    """Return the largest `rank_budget` whose model, converted to collaborative attention, has at most this size.

    Args:
        model: Model to convert.
        parameters: Largest number of parameters of the whole converted model.
        batches, stacks, layers, multiple: See `rank_budget`.

    Raises:
        ConfigError: One block per layer makes a larger model already.
    """
    sites = _multi_head_sites(model, stacks, layers)
    spectra = _spectra(sites, model, batches)
    width, calibrated = model.config.width, batches is not None
    attentions = model.config.attentions()
    fixed, slopes = model.num_parameters, {}
    for place, site in sites.items():
        biased = calibrated or site.multi_head.projection_bias
        one, two = (
            tensors.count(Collaborative(shared_dim=rank, **fields).tensors(width, width))
            for fields in [shared_key_fields(site.multi_head, content_bias=biased)]
            for rank in (1, 2)
        )
        slopes[place] = two - one
        fixed += one - slopes[place] - tensors.count(attentions[place[0]][place[1]].tensors(width, width))
    least, most = sum(min(multiple, len(values)) for values in spectra.values()), sum(map(len, spectra.values()))

    def ranks_and_size(total: int) -> tuple[dict[HeadLayer, int], int]:
        ranks = share_out(spectra, total, multiple)
        return ranks, fixed + sum(slopes[place] * rank for place, rank in ranks.items())

    smallest = ranks_and_size(least)[1]
    require(smallest <= parameters, "parameters", f"must be at least {smallest} for these layers, got {parameters}")
    totals = range(least, most + 1)
    within = bisect.bisect_right(totals, parameters, key=lambda total: ranks_and_size(total)[1])
    return ranks_and_size(totals[within - 1])[0]


def share_out(spectra: Mapping[HeadLayer, np.ndarray], total: int, multiple: int) -> dict[HeadLayer, int]:
    """Divide `total` into blocks of `multiple`: first one for each layer, then for the largest values per dimension.

    Args:
        spectra: Share that each further dimension captures, decreasing, by layer.
        total, multiple: See `rank_budget`.
    """
    require(multiple >= 1, "multiple", f"must be at least 1, got {multiple}")
    most, least = sum(map(len, spectra.values())), sum(min(multiple, len(values)) for values in spectra.values())
    require(least <= total <= most, "total", f"must be from {least} to {most} for these layers, got {total}")
    blocks = [
        (float(values[start : start + multiple].mean()), place, min(multiple, len(values) - start), start == 0)
        for place, values in spectra.items()
        for start in range(0, len(values), multiple)
    ]
    ranks = dict.fromkeys(spectra, 0)
    left = total
    for _, place, size, _ in sorted(blocks, key=lambda block: (not block[3], -block[0])):
        if size <= left:
            ranks[place] += size
            left -= size
    return ranks


def _multi_head_sites(
    model: Model, stacks: Collection[str] | None, layers: Collection[int] | None
) -> dict[HeadLayer, Site]:
    sites = {}
    for place, module in layers_at(model, find_layers(model, stacks, layers)).items():
        inner = in_float32(inside_gates(module))
        try:
            multi_head_of(inner.config)
        except ConfigError as error:
            raise ConfigError(f"{place[0]}/{place[1]}: {error}") from None
        sites[place] = Site(as_multi_head(inner))
    return sites


def _spectra(
    sites: Mapping[HeadLayer, Site], model: Model, batches: Iterable[Batch] | None
) -> dict[HeadLayer, np.ndarray]:
    moments = {} if batches is None else collect(model, batches)
    with one_blas_thread():
        return {
            place: _spectrum(weighted(scaled_query_key(site), roots(site._replace(moments=moments.get(place)))))
            for place, site in sites.items()
        }


def _captured(products: Products) -> Captured:
    left, right = (factor.reshape(factor.shape[0], -1) for factor in products)
    by_head = products.by_head()
    singular = functools.partial(jnp.linalg.svd, compute_uv=False)
    with jax.default_matmul_precision("highest"):
        values = [
            singular(left),
            singular(right),
            singular(jnp.linalg.qr(left)[1] @ jnp.linalg.qr(right)[1].T),
            singular(by_head[0]),
            singular(by_head[1]),
            head_svd(products)[1],
        ]
    return Captured(*(_cumulative(np.asarray(value, np.float64)) for value in values))


def _cumulative(values: np.ndarray) -> np.ndarray:
    squares = np.square(values)
    return np.cumsum(squares, axis=-1) / np.maximum(squares.sum(axis=-1, keepdims=True), 1e-300)


def _spectrum(products: Products) -> np.ndarray:
    """Return the squared singular values of all heads, largest first, relative to their sum."""
    squares = np.square(np.asarray(head_svd(products)[1], np.float64)).reshape(-1)
    return np.sort(squares)[::-1] / max(squares.sum(), 1e-300)


def context_only(model: Model, stacks: Collection[str] | None = None, layers: Collection[int] | None = None) -> Model:
    """Return the model whose logits keep the context term alone: x W_Q^h W_K^hT y^T, with b_Q = b_K = 0.

    Cordonnier et al. (2020, section 3.3) split logits into this term, which depends on query and key, and the content
    term of `content_only`. The other terms of the biases are the same for all keys.

    Args:
        model: Model to change.
        stacks: Head stacks to change; None changes all.
        layers: Layers to change; None changes all.

    Raises:
        ConfigError: A chosen layer has no biases of queries and keys.
    """
    return _zeroed(model, "context_only", ("query_bias", "key_bias"), stacks, layers)


def content_only(model: Model, stacks: Collection[str] | None = None, layers: Collection[int] | None = None) -> Model:
    """Return the model whose logits keep the content term alone: b_Q^h W_K^hT y^T, with W_Q = 0 and b_K = 0.

    All queries of a sequence then attend alike. Arguments and errors are those of `context_only`.
    """
    return _zeroed(model, "content_only", ("query", "key_bias"), stacks, layers)


def _zeroed(
    model: Model,
    action: str,
    names: tuple[str, ...],
    stacks: Collection[str] | None,
    layers: Collection[int] | None,
) -> Model:
    def zero(found: LayerModule) -> AttentionModule:
        module: AttentionModule = found.module
        if isinstance(module, NoHeadsAttention):
            return module
        if not isinstance(module, GroupedAttention) or not module.config.projection_bias:
            where = f"{found.stack}/{found.layer}"
            raise ConfigError(f"{where}: attention: the split needs per-head queries and keys with biases")
        params = module.params
        return module.like(module.config, params | {name: jnp.zeros_like(params[name]) for name in names})

    changed = map_attention(model, zero, stacks, layers)
    return changed.replace(history=(*model.history, history.entry(action)))


def output_difference(before: Model, after: Model, batches: Iterable[Batch]) -> float:
    """Return ||y - y'|| / ||y|| of the last hidden states `[batch, length, width]`, over all tokens of the batches.

    Raises:
        DataError: There are no batches.
    """
    distances, sizes = [], []
    for batch in batches:
        old, new = (model(batch).hidden.astype(jnp.float32) for model in (before, after))
        present = counted_at(before.config.counted(batch), old.shape[:2])[:, :, None]
        distances.append(float((present * jnp.square(old - new)).sum()))
        sizes.append(float((present * jnp.square(old)).sum()))
    if not sizes:
        raise DataError("batches: no batch to compare the models on")
    return float((sum(distances) / max(sum(sizes), 1e-30)) ** 0.5)


class Cost(NamedTuple):
    """Cost of all attention layers of a model at one sequence length.

    Attributes:
        length: Number of tokens.
        flops: Floating-point operations of one forward pass, two a multiply-add, with the mixing of queries.
        cache: Scalars in a decoding cache for all tokens.
    """

    length: int
    flops: int
    cache: int


def model_costs(config: ModelConfig, lengths: Sequence[int]) -> list[Cost]:
    """Return the cost of all attention layers of a model; only layers of a decoder have a cache."""
    width, stacks = config.width, config.attentions()
    per_token = sum(
        attention.cache_size(width, width) for name, found in stacks.items() if name != "encoder" for attention in found
    )
    return [Cost(length, _operations(config, length), per_token * length) for length in lengths]


def model_break_even(config: ModelConfig, other: ModelConfig) -> int | None:
    """Return the longest sequence for which a model's attention takes no more FLOPs than another's.

    For collaborative attention of shared_dim 384 in place of BERT-base's it is 152: projections become cheaper, and the
    num_heads * shared_dim products of every pair of tokens dearer.

    Returns:
        Length in tokens; 0 if `config` takes more FLOPs from the first token on, None if it never does.
    """

    def dearer(length: int) -> bool:
        return _operations(config, length) > _operations(other, length)

    if dearer(1):
        return 0
    low, high = 1, 2
    while not dearer(high):
        low, high = high, 2 * high
        if high > LONGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if dearer(middle) else (middle, high)
    return low


def _operations(config: ModelConfig, length: int) -> int:
    """Return the FLOPs of all attention layers for `length` tokens.

    `Attention.flops` counts matrix products only. Here, as in Cordonnier et al. (2020), the heads * shared_dim
    multiplications that mix one query count too.
    """
    total, width = 0, config.width
    for name, attentions in config.attentions().items():
        queries, keys = config.attention_lengths(name, length)
        for attention in attentions:
            inner = attention.inner if isinstance(attention, Gated) else attention
            mixing = inner.num_heads * inner.shared_dim if isinstance(inner, Collaborative) else 0
            total += attention.flops(width, width, queries, keys) + 2 * queries * mixing
    return total
