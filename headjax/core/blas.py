"""Number of threads of BLAS and LAPACK."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import threadpool_limits


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS and LAPACK compute in the calling thread.

    On CPUs jaxlib factorises with SciPy's OpenBLAS, whose own threads spin while they wait. On busy cores they take
    more time from XLA's threads than the factorisation needs: the decompositions of a six-layer model took 11 s and
    more instead of 1.1 s. The matrices here are small, and XLA spreads batches of them over its own threads.

    Asynchronous results have to be waited for inside the context.
    """
    # Only loaded libraries can be limited, so the library that jaxlib uses through SciPy is loaded first.
    importlib.import_module("scipy.linalg.cython_lapack")
    limits: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limits
