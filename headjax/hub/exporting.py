"""Write Hugging Face directories."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headjax.core import tensors as declared
from headjax.core.class_names import tell_nothing
from headjax.core.errors import HeadjaxError
from headjax.core.files import write_directory
from headjax.core.progress import Progress, silent
from headjax.core.serialize import kind_of, unknown_name
from headjax.core.tensors import flatten
from headjax.hub.checking import Exported, longest
from headjax.hub.families import FAMILIES
from headjax.hub.families.labels import label_names
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.layouts import LAYOUTS, choose
from headjax.hub.onnx import to_onnx
from headjax.hub.rules import bind
from headjax.hub.safetensors_files import SINGLE, write_safetensors
from headjax.hub.table import InexpressibleError
from headjax.models.model import Model
from headjax.models.tasks import NoTask, SentenceSimilarity
from headjax.tokenizers.files import write_tokenizer

_FORGOTTEN = ("pruned_heads", "per_layer_config", "torch_dtype", "auto_map", "quantization_config")
"""Fields of an imported config that an export does not carry on."""


def to_huggingface(
    model: Model,
    directory: str | Path,
    layout: str = "auto",
    *,
    family: str | Family | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a directory that `transformers` loads: `config.json`, `model.safetensors` and tokenizer files.

    The family's class computes what the model computes, or nothing is written. A model that was imported gives back its
    tensors byte by byte, and those fields of its config that the model does not decide itself.

    Args:
        model: the model.
        directory: the directory to write; an earlier export there is replaced.
        layout: `native` (the shapes the model has), `padded` (zeros in place of removed heads), `pruned_heads` (the
            convention of transformers 4), or `auto`, the first of these that can express the model. `onnx` writes
            `model.onnx` instead, see `headjax.hub.onnx.to_onnx`.
        family: the family or its `model_type`; None is the family the model was imported from, or the first that fits.
        progress: shows what is written.

    Raises:
        InexpressibleError: the layout cannot express the model; the message says why and names one that can.
        HeadjaxError: the layout or family is unknown, or the directory holds something else.
    """
    if layout not in ("auto", *LAYOUTS, "onnx"):
        raise HeadjaxError(f"layout: {unknown_name('layout', layout, ['auto', *LAYOUTS, 'onnx'])}")
    declared.check(model.config.tensors(), model.params)
    model = _without_similarity(model)
    if layout == "onnx":
        return to_onnx(model, directory)
    imported = _imported(model)
    chosen, name, written = choose(model, _families(model, family, imported), layout)
    past = imported["config"] if imported and imported["family"] == chosen.model_type else {}
    classes = chosen.class_names(written.model.config)
    class_name = next((entry for entry in past.get("architectures") or () if entry in classes), classes[0])
    arrays = _arrays(written.model, chosen, class_name, progress)
    fields = _merge(past, written.fields) | {"architectures": [class_name], "dtype": _dtype(arrays)}

    def write(folder: Path) -> None:
        write_safetensors(folder / SINGLE, arrays)
        (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if model.tokenizer is not None:
            write_tokenizer(model.tokenizer, folder, longest(model))

    write_directory(Path(directory), write, marker=SINGLE)
    size = (Path(directory) / SINGLE).stat().st_size
    return Exported(chosen.model_type, name, len(arrays), size)


def _families(model: Model, asked: str | Family | None, imported: Mapping[str, Any] | None) -> list[Family]:
    """Return the candidates: the family asked for, or all of the model's architecture, its family of origin first."""
    if asked is not None:
        found = [family for family in FAMILIES if family.model_type == asked] if isinstance(asked, str) else [asked]
        if not found:
            raise HeadjaxError(f"family: {unknown_name('family', str(asked), [f.model_type for f in FAMILIES])}")
        if not isinstance(model.config, found[0].config_type):
            raise InexpressibleError(f"family: {found[0].model_type} is no {kind_of(model.config)}")
        return found
    fitting = [family for family in FAMILIES if isinstance(model.config, family.config_type)]
    if not fitting:
        raise InexpressibleError(f"no family is a {kind_of(model.config)}")
    origin = imported["family"] if imported else None
    return sorted(fitting, key=lambda family: family.model_type != origin)


def _without_similarity(model: Model) -> Model:
    """Return the model without an output that compares sentences, which has no parameters and no Hugging Face class."""
    if not isinstance(getattr(model.config, "output", None), SentenceSimilarity):
        return model
    return model.replace(config=dataclasses.replace(model.config, output=NoTask()))  # type: ignore[call-arg]


def _imported(model: Model) -> Mapping[str, Any] | None:
    """Return the history's last import."""
    found = [entry for entry in model.history if entry.get("action") == "import" and "config" in entry]
    return found[-1] if found else None


def _arrays(model: Model, family: Family, class_name: str, progress: Progress) -> dict[str, np.ndarray]:
    """Return the tensors of the file by name."""
    params = flatten(model.params)
    arrays: dict[str, np.ndarray] = {}
    bound = bind(family.tensor_rules(model.config), model.config, family.model_type)
    with progress("converting", len(bound), "tensors") as update:
        for number, entry in enumerate(bound):
            ours = [np.asarray(params[place.path]) for place in entry.ours]
            ours = [
                array if place.layer is None else array[place.layer]
                for array, place in zip(ours, entry.ours, strict=True)
            ]
            name = entry.theirs.removeprefix(family.prefix) if family.is_base(class_name) else entry.theirs
            arrays[name] = entry.form.store(ours, entry.tensors)
            update(number + 1, {})
    return arrays


def _merge(past: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those that only the imported config has.

    Names of labels stay as they were written if they are still the model's.
    """
    merged = {name: value for name, value in past.items() if name not in _FORGOTTEN} | dict(fields)
    if "id2label" in fields and past.get("id2label"):
        labels = Fields(past).group("id2label")
        ours = tuple(fields["id2label"].values())
        unnamed = tell_nothing(ours) and tell_nothing([str(name) for name in labels.values()])
        if len(labels) == len(ours) and (unnamed or label_names(Fields(past)) == ours):
            merged |= {name: past[name] for name in ("id2label", "label2id") if name in past}
    return merged


def _dtype(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the type that most bytes of the file have."""
    sizes: dict[str, int] = {}
    for array in arrays.values():
        sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.nbytes
    return max(sizes, key=lambda name: sizes[name])
