"""Matrix factorisations on a CPU without threads that wait for each other."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import threadpool_limits


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS and LAPACK compute in the thread that calls them.

    On CPUs jaxlib factorises with SciPy's OpenBLAS, whose own threads spin while they wait. Next to XLA's threads on
    the same busy cores that costs more than the factorisation: the decompositions of a six-layer model took 11 s and
    more where they take 1.1 s. The matrices here are small, and XLA spreads batches of them by itself.

    What is computed asynchronously has to be waited for inside the context.
    """
    # Only libraries that are loaded can be limited; this is the one that jaxlib asks SciPy for.
    importlib.import_module("scipy.linalg.cython_lapack")
    limits: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limits
