"""Orders and repairs of other papers: their gradients, identities and least squares on a tiny model."""

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.heads.output_maps import matrix_of
from headjax.heads.program import prepare
from headjax.heads.site import ones
from results import query_key, rivals
from tests import tiny


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer()))


@pytest.fixture(scope="module")
def batches():
    mask = (np.arange(8)[None, :] < np.array([8, 5, 6, 8])[:, None]).astype(np.int32)
    return [tiny.tokens(4, 8, seed) | {"attention_mask": mask} for seed in (1, 2)]


@pytest.fixture(scope="module")
def scored(model, batches):
    program, state = prepare(model, None)
    return program, state, program.read(batches[0])


def losses(scored, factor):
    """Losses of the examples with all gates, or those of the first head alone, at a number."""
    program, state, batch = scored
    return np.asarray(
        program.value(
            state, {p: jnp.broadcast_to(factor, g.shape) for p, g in ones(program.sites).items()}, batch
        ).total
    )


def test_slopes_are_those_of_finite_differences_and_of_the_weights(scored):
    program, state, batch = scored
    found = np.asarray(rivals.slopes(program, state, ones(program.sites), batch))
    step = 1e-2
    difference = (losses(scored, 1 + step) - losses(scored, 1 - step)) / (2 * step)
    np.testing.assert_allclose(found.sum(axis=1), difference, rtol=2e-2, atol=2e-3)
    slope, model = (
        rivals.weight_slopes(program, state, ones(program.sites), batch),
        scored[0].gated(state, ones(program.sites)),
    )
    by_weights = [
        (matrix_of(slope, site, layer) * matrix_of(model, site, layer)).reshape(site.heads, -1).sum(axis=1)
        for site in program.sites
        for layer in range(len(site.places))
    ]
    np.testing.assert_allclose(np.concatenate(by_weights), found.sum(axis=0), rtol=1e-3, atol=1e-5)


def test_swaps_lower_the_fisher_information_of_what_goes(model, batches):
    program, state = prepare(model, None)
    found = [np.asarray(rivals.slopes(program, state, ones(program.sites), program.read(batch))) for batch in batches]
    by_head = dict(zip(rivals.heads_of(program.sites), np.concatenate(found).T, strict=True))
    fisher = headjax.score_heads(model, batches).score("fisher")
    least = sorted(fisher, key=fisher.get)[:4]

    def together(heads, layer):
        return np.square(sum((by_head[head] for head in heads if head.layer == layer), np.zeros(8))).sum()

    swapped = rivals.mask_search(model, batches, 4)
    assert all(together(swapped, layer) <= together(least, layer) * (1 + 1e-6) for layer in (0, 1))


def test_repairs_refit_the_second_layer(model, batches):
    removed = tuple(map(headjax.HeadId.parse, ("decoder/0/1", "decoder/1/2")))
    tuned = rivals.REPAIRS["mask_tuning"](model, batches, removed)
    (site,) = headjax.attention_sites(model)
    maps = [np.asarray(matrix_of(each, site, 1)).reshape(4, -1) for each in (model, tuned)]
    factors = (maps[1] * maps[0]).sum(axis=1) / np.square(maps[0]).sum(axis=1)
    assert factors[2] == 0.0
    assert np.abs(np.delete(factors, 2) - 1.0).min() > 1e-4
    np.testing.assert_allclose(maps[1], factors[:, None] * maps[0], rtol=1e-4, atol=1e-6)


def test_compensation_lowers_the_error_of_the_logits(model, batches):
    def logits(each):
        probes = [each(batch, probe=_logits).require_probes()["decoder"][0] for batch in batches]
        return np.concatenate([np.asarray(probe) for probe in probes])

    whole = logits(model)
    cut, folded = (query_key.without_query_key(model, batches, 0.5, compensated=each) for each in (False, True))
    np.testing.assert_allclose(logits(query_key.without_query_key(model, batches, 0.0)), whole, rtol=1e-3, atol=1e-4)
    assert np.square(logits(folded) - whole).sum() < np.square(logits(cut) - whole).sum()


def _logits(probe):
    query, key, _ = query_key.operands(probe)
    return jnp.einsum("bthd,bshd->bhts", query, key)
