"""Write Hugging Face directories from which `transformers` loads an equal model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.core import tensors as declared
from headjax.core.class_names import tell_nothing
from headjax.core.errors import HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.progress import Progress, silent
from headjax.core.serialize import kind_of
from headjax.core.tensors import flatten
from headjax.hub import maxtext
from headjax.hub.checking import EXPORTED, ONNX, Exported
from headjax.hub.companions import last_import, tokenizer_notes, write_companions
from headjax.hub.families import FAMILIES
from headjax.hub.families.entries import label_names
from headjax.hub.families.remote import MODELING
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.layouts import LAYOUTS, Written, choose, first_family
from headjax.hub.onnx import QUANTIZED, write_onnx
from headjax.hub.rules import BoundRule, bind
from headjax.hub.safetensors_files import SINGLE, write_safetensors
from headjax.hub.sentences import SCORE_FIELDS, pipeline_files, score_fields, without_pipeline
from headjax.hub.table import InexpressibleError
from headjax.models.config import ModelConfig
from headjax.models.decoding import GenerativeConfig
from headjax.models.model import Model
from headjax.storage.directories import Layout, write_directory
from headjax.storage.paths import path_of, size_of

_SIZES = {"hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim"}
_FORGOTTEN = {"torch_dtype", "auto_map", *_SIZES, *SCORE_FIELDS}
"""Fields of an imported config that an export does not carry on: sizes are written under the family's own names."""


def to_huggingface(
    model: Model,
    directory: str | Path,
    layout: str = "auto",
    *,
    family: str | Family | None = None,
    length: int | None = None,
    quantize: str | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a directory that `transformers` loads: `config.json`, `model.safetensors` and tokenizer files.

    The family's class computes the same as the model, or nothing is written. A model that was imported gives back its
    tensors byte by byte, and those fields of its config that the model does not decide itself.

        >>> exported = headjax.to_huggingface(headjax.demo_model(), folder / "exported")
        >>> exported.family, exported.layout, exported.tensors
        ('gpt2', 'native', 52)

    Args:
        model: the model.
        directory: the directory to write; an earlier export there is replaced.
        layout: `native` (the shapes the model has), `remote` (the same, with PyTorch code that `trust_remote_code=True`
            runs), `padded` (zeros in place of removed heads), or `auto`, the first of these that can express the model.
            `onnx` writes `onnx/model.onnx` in place of the weights, beside a `config.json` of the same sizes or, with
            removed heads, of those before. `maxtext` writes an Orbax checkpoint of equal layers and `maxtext.yml`.
        family: the family or its `model_type`, for `native` and `padded`; None is the family that the model came
            from, or the first that fits.
        length: tokens of an example, for `onnx`; None is any number.
        quantize: also writes `onnx/model.onnx`, and a graph in `int8` for AVX-512 with VNNI; `int8:avx2` and
            `int8:arm64` are for processors of these instructions.
        progress: shows what is written.

    Raises:
        InexpressibleError: the layout cannot express the model; the message says why and names one that can.
        HeadjaxError: the layout or family is unknown, or the directory holds something else.
    """
    _check_layout(layout, family, quantize)
    declared.check(model.config.tensors(), model.params)
    if layout == "onnx":
        return _export_onnx(model, directory, length, quantize)
    if layout == "maxtext":
        return _export_maxtext(model, directory)
    plain = without_pipeline(model)
    chosen, name, written = choose(plain, _families(plain, family), layout, with_code=family is None)
    entries = _export(model, directory, chosen, written, quantize, progress)
    return Exported(
        chosen.model_type,
        name,
        len(entries),
        sum(entry.size * entry.dtype.itemsize for entry in entries.values()),
        bytes_before=last_import(model).get("bytes"),
        notes=(*_notes(model, chosen), *tokenizer_notes(model, path_of(directory)), *_quantized(directory, quantize)),
    )


def _check_layout(layout: str, family: str | Family | None, quantize: str | None) -> None:
    """Refuse options of `to_huggingface` that do not go together."""
    known = ["auto", *LAYOUTS, "onnx", "maxtext"]
    if layout not in known:
        raise HeadjaxError(f"layout: {unknown_name('layout', layout, known)}")
    if family is not None and layout in ("remote", "onnx", "maxtext"):
        raise HeadjaxError(f"family: the layout {layout} has none")
    if quantize is not None:
        if layout == "maxtext":
            raise HeadjaxError("quantize: is for onnxruntime, not for the layout maxtext")
        if quantize not in QUANTIZED:
            raise HeadjaxError(f"quantize: {unknown_name('kind', quantize, QUANTIZED)}")


def _export(
    model: Model, directory: str | Path, chosen: Family, written: Written, quantize: str | None, progress: Progress
) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Write the directory of a model as a family has written it; return type and shape of the file's tensors."""
    fields, bound = _described(model, chosen, written)
    params = flatten(written.model.params)
    entries = _entries(bound, params)

    def write(folder: Path) -> None:
        write_safetensors(folder / SINGLE, entries, _tensors(bound, params, progress))
        _write_config(folder, fields, chosen)
        if quantize is not None:
            write_onnx(without_pipeline(model), folder, quantize=quantize)
        write_companions(model, folder)

    write_directory(path_of(directory), write, Layout(SINGLE, EXPORTED))
    return entries


def _export_onnx(model: Model, directory: str | Path, length: int | None, quantize: str | None) -> Exported:
    """Write the directory of a graph, beside the config that most programs read."""
    plain = without_pipeline(model)
    differences: list[float] = []

    def write(folder: Path) -> None:
        _write_nearest_config(model, folder)
        differences.append(write_onnx(plain, folder, length, quantize))
        write_companions(model, folder)

    write_directory(path_of(directory), write, Layout("onnx", EXPORTED))
    size = sum(size_of(file) for file in path_of(directory).glob(f"{ONNX}*"))
    tensors = len(jax.tree.leaves(model.params))
    notes = _quantized(directory, quantize)
    return Exported(kind_of(model.config), "onnx", tensors, size, differences[-1], notes=notes)


def _quantized(directory: str | Path, kind: str | None) -> tuple[str, ...]:
    """Return the name and the size of a quantised graph."""
    file = None if kind is None else path_of(directory) / QUANTIZED[kind]
    return () if file is None else (f"onnx/{file.name}: {size_of(file) / 1e6:.0f} MB",)


def _write_nearest_config(model: Model, folder: Path) -> None:
    """Write a `config.json` for programs that read the sizes or the tokenizer alone, of the family of origin first."""
    plain = without_pipeline(model)
    for layout in ("native", "padded", "remote"):
        with contextlib.suppress(InexpressibleError):
            chosen, _, written = choose(plain, _families(plain), layout, with_code=True)
            _write_config(folder, _described(model, chosen, written)[0], chosen)
            return


def _export_maxtext(model: Model, directory: str | Path) -> Exported:
    """Write the directory of a checkpoint for MaxText, beside the config that tokenizers look for."""
    families = [family for name in maxtext.FAMILIES for family in FAMILIES if family.model_type == name]
    try:
        chosen, _, written = choose(model, families, "native", with_code=False)
    except InexpressibleError as error:
        raise InexpressibleError(
            f"layout maxtext: needs equal layers of Llama or Qwen (headjax prune --uniform): {error}"
        ) from None
    counts: list[tuple[int, int]] = []

    def write(folder: Path) -> None:
        counts.append(maxtext.write_maxtext(written.model, folder))
        _write_nearest_config(model, folder)
        write_companions(model, folder)

    write_directory(path_of(directory), write, Layout(maxtext.SIZES, EXPORTED))
    rounds = "MaxText rounds tied embeddings to bfloat16 where it computes logits"
    notes = (rounds,) if written.fields["tie_word_embeddings"] else ()
    return Exported(chosen.model_type, "maxtext", *counts[-1], None, last_import(model).get("bytes"), notes)


def _described(model: Model, chosen: Family, written: Written) -> tuple[dict[str, Any], dict[str, BoundRule]]:
    """Return the fields of a family's `config.json`, those of the imported one kept, and the rules of the tensors."""
    imported = last_import(model)
    config = imported.get("config", {})
    kept = config if imported.get("family") == chosen.model_type else chosen.carried
    past = {name: config[name] for name in kept if name in config and name not in _FORGOTTEN}
    classes = chosen.class_names(written.model.config)
    class_name = next((entry for entry in past.get("architectures") or () if entry in classes), classes[0])
    rules = bind(chosen.tensor_rules(written.model.config), written.model.config, chosen.model_type)
    prefix = chosen.prefix if chosen.is_base(class_name) else ""
    bound = {entry.theirs.removeprefix(prefix): entry for entry in rules}
    largest = max(_entries(bound, flatten(written.model.params)).values(), key=lambda entry: entry.size)
    described = {"architectures": [class_name], "dtype": largest.dtype.name}
    described |= score_fields(getattr(model.config, "task", None), pipeline_files(model), config)
    return {**chosen.defaults, **_text_tokens(model), **_merge(past, written.fields), **described}, bound


def _write_config(folder: Path, fields: Mapping[str, Any], family: Family) -> None:
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for file, text in family.files().items():
        (folder / file).write_text(text, encoding="utf-8")


def _notes(model: Model, family: Family) -> tuple[str, ...]:
    origin = last_import(model).get("family")
    if family.files() and origin != family.model_type:
        return (f"no class of transformers has these sizes; {MODELING} has, with trust_remote_code=True",)
    other = f"a {origin} config.json cannot express this model; it is written as {family.model_type}"
    return () if origin in (None, family.model_type) else (other,)


def layout_of_export(model: Model) -> tuple[str, str]:
    """Return the family and the layout that `to_huggingface` would take."""
    plain = without_pipeline(model)
    family, layout, _ = choose(plain, _families(plain), "auto", with_code=True)
    return family.model_type, layout


def layouts_after(model: Model, config: ModelConfig) -> dict[str, str]:
    """Return why each layout cannot express a model with another config; an empty text for those that can."""
    # Its weights are not known yet: they count as 1, which no layout may leave out.
    ones = declared.map_tensors(lambda _, tensor: np.broadcast_to(np.float16(1), tensor.shape), config.tensors())
    try:
        likely = without_pipeline(model.replace(config=config, params=ones))
        results = {name: first_family(likely, _families(likely), name, True) for name in LAYOUTS}
        return {name: result if isinstance(result, str) else "" for name, result in results.items()}
    except InexpressibleError as error:
        return dict.fromkeys(LAYOUTS, str(error))


def _families(model: Model, family: str | Family | None = None) -> list[Family]:
    """Return the candidates: the family asked for, or all of the model's architecture, the one of origin first."""
    if family is not None:
        matches = [each for each in FAMILIES if each.model_type == family] if isinstance(family, str) else [family]
        if not matches:
            raise HeadjaxError(f"family: {unknown_name('family', str(family), [f.model_type for f in FAMILIES])}")
        if not isinstance(model.config, matches[0].kinds):
            name = matches[0].model_type
            raise InexpressibleError(f"family: {name} is not a family of {kind_of(model.config)} models")
        return matches
    fitting = [each for each in FAMILIES if isinstance(model.config, each.kinds)]
    if not fitting:
        raise InexpressibleError(f"no family has {kind_of(model.config)} models")
    origin = last_import(model).get("family")
    return sorted(fitting, key=lambda each: each.model_type != origin)


def _entries(bound: Mapping[str, BoundRule], params: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Return type and shape of the file's tensors."""
    return {
        name: jax.ShapeDtypeStruct(
            entry.shape, np.result_type(*(np.dtype(params[place.path].dtype) for place in entry.ours))
        )
        for name, entry in bound.items()
    }


def _tensors(
    bound: Mapping[str, BoundRule], params: Mapping[str, Any], progress: Progress
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the file's tensors, one at a time."""
    with progress("writing", len(bound), "tensors") as update:
        for done, (name, entry) in enumerate(bound.items(), start=1):
            arrays = [(np.asarray(params[place.path]), place.layer) for place in entry.ours]
            ours = [array if layer is None else array[layer] for array, layer in arrays]
            yield name, entry.form.store(ours, entry.tensors)
            update(done, {})


def _text_tokens(model: Model) -> dict[str, int | None]:
    """Return the tokens that begin, end and pad texts, in place of those that a family's class assumes."""
    if not isinstance(model.config, GenerativeConfig):
        return {}
    ids: dict[str, int | None] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    for role, _ in () if model.tokenizer is None else model.tokenizer.special:
        if f"{role}_id" in ids:
            ids[f"{role}_id"] = model.tokenizer.special_id(role)
    return ids


def _merge(past: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those that only the imported config has, and its labels where they are the model's."""
    merged = {**past, **fields}
    if "id2label" in fields and past.get("id2label"):
        labels = Fields(past).group("id2label")
        ours = tuple(fields["id2label"].values())
        unnamed = tell_nothing(ours) and tell_nothing([str(name) for name in labels.values()])
        if len(labels) == len(ours) and (unnamed or label_names(Fields(past)) == ours):
            merged |= {name: past[name] for name in ("id2label", "label2id") if name in past}
    return merged
