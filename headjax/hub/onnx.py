"""Write ONNX files, and check that onnxruntime and the model compute the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.serialize import kind_of
from headjax.hub.checking import EXPORTED, ONNX, Exported, example_batch, longest
from headjax.hub.companions import write_companions
from headjax.hub.sentences import without_sentences
from headjax.models.model import Model
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass
from headjax.storage.directories import Layout, write_directory
from headjax.storage.failures import in_one_line
from headjax.storage.paths import path_of, size_of

TOLERANCE = 1e-3
"""Largest relative difference between the outputs of a model and of onnxruntime."""


def to_onnx(model: Model, directory: str | Path, *, length: int | None = None) -> Exported:
    """Write `model.onnx`, which computes the same as the model, tokenizer files, and `inputs.json`.

    Inputs have Hugging Face's names; tokens are int32. The number of examples is free, their length is fixed: shorter
    ones are padded and masked. Outputs are `hidden` and, where the model has a task, `logits`. Before anything is
    written, onnxruntime computes an example and the outputs are compared.
    """
    jax2onnx, onnxruntime = _libraries()
    whole_model, model = model, without_sentences(model)
    batch = example_batch(model, length=_onnx_length(model, length))
    names = list(batch)
    whole = model(batch)
    outputs = {"hidden": whole.hidden, "logits": whole.logits}
    expected = {name: np.asarray(array) for name, array in outputs.items() if array is not None}

    def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        # Layers are unrolled: the loops of ONNX have shapes that do not depend on the batch.
        compute = Compute(attention="einsum", scan=False)
        output = model.forward(dict(zip(names, arrays, strict=True)), Pass(compute=compute))
        return tuple(array for array in (output.hidden, output.logits) if array is not None)

    inputs = [jax.ShapeDtypeStruct(("batch", *array.shape[1:]), array.dtype) for array in batch.values()]
    differences: list[float] = []

    def write(folder: Path) -> None:
        try:
            jax2onnx.to_onnx(
                function,
                inputs,
                return_mode="file",
                output_path=folder / ONNX,
                input_names=names,
                output_names=list(expected),
            )
            session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
            found = session.run(list(expected), batch)
        except Exception as error:  # both libraries raise errors of any type
            if in_one_line(error) is not None:  # a full disk and the like, which `write_directory` tells with the path
                raise
            raise HeadjaxError(f"layout onnx: {' '.join(str(error).split())[:300]}") from None
        differences.append(_checked_difference(list(expected.values()), found))
        described = {
            name: {"shape": ["batch", *array.shape[1:]], "dtype": str(array.dtype)} for name, array in batch.items()
        }
        (folder / "inputs.json").write_text(json.dumps(described, indent=2) + "\n")
        write_companions(whole_model, folder)

    write_directory(path_of(directory), write, Layout(ONNX, EXPORTED))
    size = sum(size_of(file) for file in path_of(directory).glob(f"{ONNX}*"))
    return Exported(kind_of(model.config), "onnx", len(jax.tree.leaves(model.params)), size, differences[-1])


def _libraries() -> tuple[Any, Any]:
    """Return jax2onnx and onnxruntime."""
    try:
        import jax2onnx
        import onnxruntime
    except ImportError:
        raise HeadjaxError(
            "layout onnx: needs jax2onnx and onnxruntime; pip install '.[onnx]' from a checkout"
        ) from None
    return jax2onnx, onnxruntime


def _checked_difference(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return the largest difference of onnxruntime's outputs, relative to the model's."""
    pairs = zip(expected, found, strict=True)
    apart = [float(np.max(np.abs(ours - theirs)) / max(1.0, np.max(np.abs(ours)))) for ours, theirs in pairs]
    worst = float(np.max(apart))
    if not worst <= TOLERANCE:  # also where one is no number
        raise HeadjaxError(f"layout onnx: outputs of onnxruntime differ from the model's by {worst:.2g} of their size")
    return worst


def _onnx_length(model: Model, length: int | None) -> int:
    """Return the number of tokens of an example."""
    most = longest(model)
    if length is None:
        return min(128, most or 128)
    if length < 1 or (most is not None and length > most):
        raise HeadjaxError(f"length: must be at least 1{'' if most is None else f' and at most {most}'}, got {length}")
    return length
