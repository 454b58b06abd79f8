"""Write Hugging Face directories from which `transformers` loads an equal model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
from headjax.hub.companions import CARRIED, last_import, tokenizer_notes, write_companions
from headjax.hub.families import CODE, FAMILIES, REMOTE
from headjax.hub.families.entries import label_names
from headjax.hub.families.remote import MODELING
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.layouts import LAYOUTS, Choice, Written, choose, first_family
from headjax.hub.onnx import ONNX, QUANTIZED, write_onnx
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


EXPORTED = frozenset({"config.json", SINGLE, "onnx", maxtext.CHECKPOINT, maxtext.SIZES, *CODE, *CARRIED})
"""Names of the files and folders that an export may have."""


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        family: `model_type`.
        bytes: of the weights.
        max_difference: of outputs; None unless checked.
        bytes_before: of the weights when they were imported; None for others.
        notes: what changed, such as the family.
    """

    family: str
    layout: str
    tensors: int
    bytes: int
    max_difference: float | None = None
    bytes_before: int | None = None
    notes: tuple[str, ...] = ()


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
    _check_request(layout, family, quantize)
    declared.check(model.config.tensors(), model.params)
    marker = {"onnx": "onnx", "maxtext": maxtext.SIZES}.get(layout, SINGLE)
    choice = None if layout == "onnx" else _choice(model, layout, family)
    results: list[Exported] = []

    def write(folder: Path) -> None:
        if choice is None:
            result = _write_graph(model, folder, length, quantize)
        elif layout == "maxtext":
            result = _write_checkpoint(model, folder, choice)
        else:
            result = _write_weights(model, folder, choice, quantize, progress)
        write_companions(model, folder)
        notes = (*result.notes, *tokenizer_notes(model, folder))
        if quantize is not None:
            graph = folder / QUANTIZED[quantize]
            notes = (*notes, f"onnx/{graph.name}: {size_of(graph) / 1e6:.0f} MB")
        results.append(result._replace(notes=notes))

    write_directory(path_of(directory), write, Layout(marker, EXPORTED))
    return results[-1]


def _check_request(layout: str, family: str | Family | None, quantize: str | None) -> None:
    known = ["auto", *LAYOUTS, "onnx", "maxtext"]
    if layout not in known:
        raise HeadjaxError(f"layout: {unknown_name('layout', layout, known)}")
    if family is not None and layout in ("remote", "onnx", "maxtext"):
        raise HeadjaxError(f"family: the layout {layout} has none")
    if quantize is not None and layout == "maxtext":
        raise HeadjaxError("quantize: is for onnxruntime, not for the layout maxtext")
    if quantize is not None and quantize not in QUANTIZED:
        raise HeadjaxError(f"quantize: {unknown_name('kind', quantize, QUANTIZED)}")


def _choice(model: Model, layout: str, family: str | Family | None) -> Choice:
    """Return the family and the layout in which the weights are written, see `choose`."""
    if layout != "maxtext":
        plain = without_pipeline(model)
        return choose(plain, _families(plain, family), layout)
    families = [each for name in maxtext.FAMILIES for each in FAMILIES if each.model_type == name]
    try:
        return choose(model, families, "native")
    except InexpressibleError as error:
        needs = "layout maxtext: needs equal layers of Llama or Qwen (headjax prune --uniform)"
        raise InexpressibleError(f"{needs}: {error}") from None


def _write_weights(model: Model, folder: Path, choice: Choice, quantize: str | None, progress: Progress) -> Exported:
    """Write the weights as a family has them, its `config.json`, and a graph in int8 if asked for."""
    family, layout, written = choice
    bound, params = _write_config(model, folder, family, written), flatten(written.model.params)
    entries = _entries(bound, params)
    write_safetensors(folder / SINGLE, entries, _tensors(bound, params, progress))
    if quantize is not None:
        write_onnx(without_pipeline(model), folder, quantize=quantize)
    size = sum(entry.size * entry.dtype.itemsize for entry in entries.values())
    origin, notes = last_import(model).get("family"), []
    if family.files() and origin != family.model_type:
        notes = [f"no class of transformers has these sizes; {MODELING} has, with trust_remote_code=True"]
    elif origin not in (None, family.model_type):
        notes = [f"a {origin} config.json cannot express this model; it is written as {family.model_type}"]
    before = last_import(model).get("bytes")
    return Exported(family.model_type, layout, len(entries), size, bytes_before=before, notes=tuple(notes))


def _write_graph(model: Model, folder: Path, length: int | None, quantize: str | None) -> Exported:
    """Write ONNX graphs beside the config that most programs read."""
    _write_nearest_config(model, folder)
    difference = write_onnx(without_pipeline(model), folder, length, quantize)
    size = sum(size_of(file) for file in folder.glob(f"{ONNX}*"))
    return Exported(kind_of(model.config), "onnx", len(jax.tree.leaves(model.params)), size, difference)


def _write_checkpoint(model: Model, folder: Path, choice: Choice) -> Exported:
    """Write a checkpoint for MaxText beside the config that tokenizers look for."""
    family, _, written = choice
    tensors, size = maxtext.write_maxtext(written.model, folder)
    _write_nearest_config(model, folder)
    rounds = "MaxText rounds tied embeddings to bfloat16 where it computes logits"
    notes = (rounds,) if written.fields["tie_word_embeddings"] else ()
    return Exported(family.model_type, "maxtext", tensors, size, None, last_import(model).get("bytes"), notes)


def _write_nearest_config(model: Model, folder: Path) -> None:
    """Write a `config.json` for programs that read the sizes or the tokenizer alone, of the family of origin first."""
    plain = without_pipeline(model)
    for layout in ("native", "padded", "remote"):
        with contextlib.suppress(InexpressibleError):
            family, _, written = choose(plain, _families(plain), layout)
            _write_config(model, folder, family, written)
            return


def _write_config(model: Model, folder: Path, family: Family, written: Written) -> dict[str, BoundRule]:
    """Write a family's `config.json`, which keeps fields of an imported one, and code; return the tensors' rules."""
    imported = last_import(model)
    config = imported.get("config", {})
    kept = config if imported.get("family") == family.model_type else family.carried
    past = {name: config[name] for name in kept if name in config and name not in _FORGOTTEN}
    classes = family.class_names(written.model.config)
    class_name = next((name for name in past.get("architectures") or () if name in classes), classes[0])
    rules = bind(family.tensor_rules(written.model.config), written.model.config, family.model_type)
    prefix = family.prefix if class_name == family.class_prefix + family.base else ""
    bound = {rule.theirs.removeprefix(prefix): rule for rule in rules}
    largest = max(_entries(bound, flatten(written.model.params)).values(), key=lambda entry: entry.size)
    described = {"architectures": [class_name], "dtype": largest.dtype.name}
    described |= score_fields(getattr(model.config, "task", None), pipeline_files(model), config)
    fields = {**family.defaults, **_text_tokens(model), **_merge(past, written.fields), **described}
    texts = {"config.json": json.dumps(fields, indent=2, sort_keys=True) + "\n", **family.files()}
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return bound


def layout_of_export(model: Model) -> tuple[str, str]:
    """Return the family and the layout that `to_huggingface` would take."""
    plain = without_pipeline(model)
    family, layout, _ = choose(plain, _families(plain), "auto")
    return family.model_type, layout


def layouts_after(model: Model, config: ModelConfig) -> dict[str, str]:
    """Return why each layout cannot express a model with another config; an empty text for those that can."""
    # Its weights are not known yet: they count as 1, which no layout may leave out.
    ones = declared.map_tensors(lambda _, tensor: np.broadcast_to(np.float16(1), tensor.shape), config.tensors())
    try:
        likely = without_pipeline(model.replace(config=config, params=ones))
        results = {name: first_family(likely, _families(likely), name) for name in LAYOUTS}
        return {name: result if isinstance(result, str) else "" for name, result in results.items()}
    except InexpressibleError as error:
        return dict.fromkeys(LAYOUTS, str(error))


def _families(model: Model, family: str | Family | None = None) -> list[Family]:
    """Return the candidates: the family asked for, or all of the model's architecture, the one of origin first.

    Families of models with their code are not among those that can be asked for.
    """
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
    with_code = [each for each in REMOTE if isinstance(model.config, each.kinds)]
    return [*sorted(fitting, key=lambda each: each.model_type != origin), *with_code]


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
    with progress("writing", len(bound), "tensors") as update:
        for done, (name, entry) in enumerate(bound.items(), start=1):
            yield name, entry.form.store([place.array(params) for place in entry.ours], entry.tensors)
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
