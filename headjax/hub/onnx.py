"""Write ONNX files, and check that onnxruntime and the model compute the same."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.hub.checking import ONNX, example_batch, longest
from headjax.models.encoder import EncoderConfig
from headjax.models.model import Model
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass
from headjax.storage.failures import in_one_line

TOLERANCE = 1e-3
"""Largest relative difference between the outputs of a model and of onnxruntime."""

LENGTH = 128
"""Tokens of an example where the graph has their number and none is asked for."""

INSTALL = "pip install '.[onnx]' from a checkout"


def write_onnx(model: Model, folder: Path, length: int | None = None) -> float:
    """Write `onnx/model.onnx`, which computes the same as the model; return the largest difference of an example."""
    # The number of examples is free, and so is their length in encoders without windows unless one is asked for.
    jax2onnx, onnxruntime = _libraries()
    config = model.config
    windows = any(layer.window for stack in config.stacks().values() for layer in stack.layers)
    free = length is None and isinstance(config, EncoderConfig) and not windows
    batch = example_batch(model, length=length or min(LENGTH, longest(model) or LENGTH))
    whole = model(batch)
    outputs = {"last_hidden_state": whole.hidden, "logits": whole.logits}
    expected = {name: np.asarray(array) for name, array in outputs.items() if array is not None}

    def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        given = dict(zip(batch, arrays, strict=True))
        if free:
            given["position_ids"] = _positions(model, given["input_ids"])
        # Layers are unrolled: the loops of ONNX have shapes that do not depend on the batch.
        compute = Compute(attention="einsum", scan=False)
        output = model.forward(given, Pass(compute=compute))
        return tuple(array for array in (output.hidden, output.logits) if array is not None)

    inputs = [
        jax.ShapeDtypeStruct(("batch", "length") if free else ("batch", *array.shape[1:]), array.dtype)
        for array in batch.values()
    ]
    file = folder / ONNX
    file.parent.mkdir()
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of every shape that it need not write
    try:
        names = {"input_names": list(batch), "output_names": list(expected)}
        jax2onnx.to_onnx(function, inputs, return_mode="file", output_path=file, **names)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        found = session.run(list(expected), batch)
    except Exception as error:  # both libraries raise errors of any type
        if in_one_line(error) is not None:  # a full disk and the like, which `write_directory` tells with the path
            raise
        told = " ".join(str(error).split())[:300]
        versions = f"jax2onnx {version('jax2onnx')} and jax {jax.__version__}"
        raise HeadjaxError(f"layout onnx: {versions}: {told}; versions that fit together: {INSTALL}") from None
    return _checked_difference(list(expected.values()), found)


def _positions(model: Any, tokens: jax.Array) -> jax.Array:
    """Return the positions of an encoder's tokens, `[batch, length]`, by operations that every length has."""
    positions = model.config.position_table
    counted = jnp.cumsum(jnp.ones_like(tokens), axis=1) - 1
    return positions.count(tokens) if positions.kind == "learned_present" else counted


def _libraries() -> tuple[Any, Any]:
    """Return jax2onnx and onnxruntime."""
    try:
        import jax2onnx
        import onnxruntime
    except ImportError:
        raise HeadjaxError(f"layout onnx: needs jax2onnx and onnxruntime; {INSTALL}") from None
    return jax2onnx, onnxruntime


def _checked_difference(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return the largest difference of onnxruntime's outputs, relative to the model's."""
    pairs = zip(expected, found, strict=True)
    apart = [float(np.max(np.abs(ours - theirs)) / max(1.0, np.max(np.abs(ours)))) for ours, theirs in pairs]
    worst = float(np.max(apart))
    if not worst <= TOLERANCE:  # also where one is no number
        raise HeadjaxError(f"layout onnx: outputs of onnxruntime differ from the model's by {worst:.2g} of their size")
    return worst
