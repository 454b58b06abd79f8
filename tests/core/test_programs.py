"""What compiled programs, losses and timings cost the machine: room, threads, fetches and turns."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info

import headjax
from headjax.core import programs
from headjax.core.programs import one_blas_thread
from headjax.core.timing import FETCH_EVERY, Losses


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_programs_are_forgotten_where_half_of_the_maps_are_taken(compiled, tmp_path, monkeypatch):
    @jax.jit
    def doubled(x):
        return x * 2

    taken = programs.MAPS.read_bytes().count(b"\n")
    monkeypatch.setattr(programs, "ALLOWED", tmp_path / "max_map_count")
    for content in (None, "many", f"{4 * taken}\n"):  # a system without the limit forgets nothing
        if content is not None:
            programs.ALLOWED.write_text(content)
        assert not programs.evict_compiled()
        assert doubled(jnp.ones(3)).tolist() == [2, 2, 2]
    assert compiled.count("doubled") == 1
    programs.ALLOWED.write_text(f"{taken}\n")
    assert programs.evict_compiled()
    assert doubled(jnp.ones(3)).tolist() == [2, 2, 2]
    assert compiled.count("doubled") == 2


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_every_loaded_blas_computes_in_one_thread_and_gets_its_threads_back():
    np.linalg.inv(np.eye(2))
    with one_blas_thread():
        inside = blas_threads()
    before = blas_threads()  # SciPy's library is loaded by now
    assert inside == [1] * len(before)
    assert len(before) >= 1
    with one_blas_thread():
        pass
    assert blas_threads() == before


def test_losses_are_known_after_the_first_step_then_at_intervals_and_at_the_end():
    losses, total, known = Losses("a test", 2 * FETCH_EVERY + 3), 2 * FETCH_EVERY + 3, []
    for step in range(total):
        losses.add(jnp.float32(step))
        known.append(len(losses.fetched))
    changes = [1 + i for i in range(total) if known[i] != (known[i - 1] if i else 0)]
    assert changes == [1, FETCH_EVERY, 2 * FETCH_EVERY, total]
    np.testing.assert_array_equal(losses.fetch(), np.arange(total))
    assert losses.latest() == {"loss": total - 1}


def test_the_step_of_a_loss_that_is_not_finite_is_named():
    losses = Losses("a test", 100)
    for step in range(FETCH_EVERY - 1):
        losses.add(jnp.float32(np.nan if step == 7 else 1.0))
    with pytest.raises(headjax.HeadjaxError, match=r"^a test: the loss is nan at step 7, counted from 0$"):
        losses.add(jnp.float32(1.0))
