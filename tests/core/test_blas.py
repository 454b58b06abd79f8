"""Number of threads of BLAS."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_info

from headjax.core.blas import one_blas_thread


def test_every_loaded_blas_computes_in_one_thread_and_gets_its_threads_back() -> None:
    np.linalg.inv(np.eye(2))

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with one_blas_thread():
        inside = threads()
    before = threads()  # SciPy's library is loaded by now
    assert inside == [1] * len(before)
    assert len(before) >= 1
    with one_blas_thread():
        pass
    assert threads() == before
