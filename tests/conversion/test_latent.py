"""Latent attention from trained layers: the best factorisation, and keys that are rebuilt before they turn."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.conversion.calibration import Moments
from headjax.conversion.latent import low_rank
from headjax.conversion.rope import DISTANCES
from headjax.conversion.target import ConversionInput
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import ROTARY
from tests.hub.directories import LLAMA, model_of
from tests.nn.formulations import WIDTH, random_params
from tests.tiny import flatten

PART = tiny.multi_head(2, 6, value_dim=3, rotary=headjax.nn.RotaryInterleaved(dim=4))


@pytest.mark.whole
@pytest.mark.parametrize("source", [ROTARY["llama"], PART], ids=["whole heads", "a part"])
def test_the_first_criterion_is_the_error_of_logits_over_all_distances_and_of_outputs(source) -> None:
    """Of inputs that are independent, with queries turned one position at a time; logits and outputs count alike."""
    params = {name: np.asarray(array, np.float64) for name, array in flatten(random_params(source)).items()}
    places = jnp.arange(DISTANCES)[None]
    turned = [
        np.asarray(source.rotary(jnp.repeat(row[None, None], DISTANCES, 1), places), np.float64)[0]
        for row in jnp.asarray(params["query"], jnp.float32)
    ]  # of each input, `[distances, heads, head_dim]`

    def cost(target: headjax.conversion.Target) -> float:
        (found,) = target.convert([ConversionInput(tiny.bound(source, random_params(source), WIDTH, WIDTH))], seed=0)
        inner, total = found.params.get("inner", found.params), 0.0
        for name, readers in (("key", turned), ("value", None)):
            rebuilt = np.einsum("mr,rhd->mhd", found.params["latent"], inner[name])
            shares = []
            for array in (params[name], params[name] - rebuilt):
                spread = array[:, list(source.groups)]  # a key or value of every query head
                read = (
                    [np.einsum("thd,mhd->tmh", one, spread) for one in readers]
                    if readers
                    else [np.einsum("mhd,hdw->mhw", spread, params["output/kernel"])]
                )
                shares.append(sum(float(np.square(one).sum()) for one in read))
            total += shares[1] / shares[0]
        return total

    of_logits, of_keys = map(cost, headjax.conversion.ToLatent(rank=4).criteria())
    assert of_logits < 0.99 * of_keys


@pytest.mark.whole
def test_calibration_keeps_the_mean_key_and_lowers_the_error_of_outputs() -> None:
    model = model_of(LLAMA)
    batches = [{"input_ids": np.random.default_rng(seed).integers(1, 20, (4, 8))} for seed in range(4)]
    unseen = {"input_ids": np.random.default_rng(9).integers(1, 20, (4, 8))}

    def difference(converted):
        return float(jnp.square(converted.model(unseen).hidden - model(unseen).hidden).mean())

    target = "latent:rank=5"
    assert difference(headjax.convert(model, target, batches=batches)) < 0.8 * difference(
        headjax.convert(model, target)
    )


@pytest.mark.parametrize("source", [ROTARY["llama"], tiny.multi_head(2, 4)], ids=["turned", "plain"])
def test_the_second_criterion_is_the_error_of_keys_and_values(source) -> None:
    """Keys and values count alike, whatever their size."""
    params, generator = random_params(source), np.random.default_rng(1)
    inputs = (
        generator.standard_normal((500, WIDTH)) @ generator.standard_normal((WIDTH, WIDTH)) * np.arange(1, WIDTH + 1)
    )
    covariance = np.cov(inputs, rowvar=False, bias=True)
    moments = Moments(*[inputs.mean(axis=0), covariance] * 2, key_within=covariance)
    root = np.linalg.cholesky(covariance).T

    def cost(target: headjax.conversion.Target) -> float:
        (found,) = target.convert([ConversionInput(tiny.bound(source, params, WIDTH, WIDTH), moments)], seed=0)
        inner, total = found.params.get("inner", found.params), 0.0
        for name in ("key", "value"):
            lost = params[name] - np.einsum("mr,rhd->mhd", found.params["latent"], inner[name])
            of_all, of_lost = (np.tensordot(root, array, 1) for array in (params[name], lost))
            total += float(np.square(of_lost).sum() / np.square(of_all).sum())
        return total

    of_logits, of_keys = map(cost, headjax.conversion.ToLatent(rank=4).criteria())
    assert of_keys < 0.99 * of_logits


def test_a_rank_beyond_the_keys_and_values_is_refused() -> None:
    with pytest.raises(headjax.ConfigError, match=r"^rank:"):
        headjax.conversion.ToLatent(rank=17).check(ROTARY["llama"], WIDTH, WIDTH)


def test_low_rank_is_the_best_of_its_rank() -> None:
    matrix = np.random.default_rng(0).standard_normal((9, 20)).astype(np.float32)
    left, right = low_rank(jnp.asarray(matrix), 4)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert_close(np.linalg.norm(matrix - left @ right), np.sqrt(np.square(values[4:]).sum()), sums=tiny.SUMS)
    left, right = low_rank(jnp.asarray(matrix), 12)
    assert left.shape == (9, 12)
    assert_close(left @ right, matrix, sums=tiny.SUMS)
