"""Configs with parts replaced: by what their declared types allow, by any object that Python has, or by text."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
import traceback
import types
import typing
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, config_dict

from headjax.attention import MultiHead, NoHeads
from headjax.core.errors import HeadjaxError
from headjax.core.serialize import class_of_kind, kinds_of, to_data
from headjax.core.tensors import count
from headjax.models.config import Options
from headjax.models.memory import check_state
from headjax.models.summary import check_kernels, summarize
from headjax.training.config import TrainConfig, load_config, train_config

SIZES = {"num_layers": 2, "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 4}}
LAYERS = SIZES | {"width": 8, "feed_forward": {"kind": "dense", "hidden": 8}}
RECIPES: dict[str, dict[str, Any]] = {
    "language_model": LAYERS | {"vocab_size": 20, "max_length": 8},
    "bert": LAYERS | {"vocab_size": 20, "max_length": 8, "task": {"kind": "masked_language_model"}},
    "translation": LAYERS | {"vocab_size": 20},
    "t5": LAYERS | {"vocab_size": 20},
    "vit": LAYERS
    | {"patches": {"image_size": 4, "patch_size": 2, "channels": 1}, "task": {"kind": "classification", "classes": 2}},
    "deep": {"of": LAYERS | {"kind": "language_model", "vocab_size": 20, "max_length": 8}},
}
"""A small model of every recipe that needs no files."""

RUN = {
    "data": {"kind": "language"},
    "batch_size": 8,
    "steps": 2,
    "optimizer": {"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.01, "warmup_steps": 1}},
    "mesh": {"data": 1},
}


def nested(depth: int, group: bool) -> Any:
    """Lists or groups within each other."""
    data: Any = 1
    for _ in range(depth):
        data = {"inner": data, "kind": "gated"} if group else [data]
    return data


NUMBERS = [-1, 0, 1, 3, 64, 10**4, 10**9, 2**31, 2**63, 16**5000, 0.5, -0.0, 1e-30, 1e300, np.nan, np.inf, True, False]
TEXTS = [
    "",
    "\0",
    "a\0b",
    "\ud800",
    "x" * 10_000,
    "\x1b[0m\n",
    "1",
    "None",
    "multi_head",
    "auto",
    "/dev/null/x",
    "gs://",
]
OBJECTS: list[Any] = [
    *(None, object(), int, MultiHead, len, b"x", 1j, Decimal(1), Path("x"), {1}, range(3), iter(()), json),
    *(np.array([1, 2]), np.array("multi_head"), np.float32(1), np.int64(3), np.str_("relu"), np.dtype("f")),
    *(jnp.ones(2), ValueError("x"), nested(50, True), nested(5000, True), nested(5000, False), [], {}, (), [[]]),
    *({None: 1}, {1: 2, "a": 3}, {"kind": None}, {"kind": []}, {"a.b": 1}, {"kind": np.array(["gated"])}),
    *({"repeat": 10**9, "item": {}}, [{"repeat": 2, "item": 1}], MultiHead(num_heads=2, head_dim=4), NoHeads()),
    ConfigDict({"kind": "multi_head", "num_heads": config_dict.required_placeholder(int), "head_dim": 2}),
    ConfigDict({"kind": config_dict.placeholder(str)}),
]


def fitting(draw: random.Random, expected: Any, depth: int = 0) -> Any:
    """A value that a declared type allows; bounds, and what fields say of each other, are another matter."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Annotated:
        return fitting(draw, arguments[0], depth)
    if origin in (types.UnionType, typing.Union):
        return fitting(draw, draw.choice(arguments), depth)
    if origin is typing.Literal:
        return draw.choice(arguments)
    if origin is tuple:
        inner = arguments[0] if arguments else int
        return [fitting(draw, inner, depth + 1) for _ in range(draw.randint(0, 3))]
    if isinstance(expected, type) and expected not in (bool, int, float, str) and depth < 4:
        kinds = kinds_of(expected)
        if kinds or dataclasses.is_dataclass(expected):
            return group(draw, draw.choice(kinds) if kinds else None, expected, depth)
    small = {bool: [True, False], int: [1, 2, 3, 4, 8], float: [0.0, 0.1, 1.0, 2], str: ["x", "auto", "relu"]}
    return draw.choice(small.get(expected, [None]))


def group(draw: random.Random, kind: str | None, base: type, depth: int) -> dict[str, Any]:
    """The fields of a kind, those it needs and some of the others."""
    cls: Any = base if kind is None else class_of_kind(kind)
    found: dict[str, Any] = {} if kind is None else {"kind": kind}
    for name, (expected, needed) in schema(cls).items():
        if needed or draw.random() < 0.2:
            found[name] = fitting(draw, expected, depth + 1)
    return found


@functools.cache
def schema(cls: type) -> dict[str, tuple[Any, bool]]:
    """The type of every field of a config class, and whether it has to be given."""
    hints = typing.get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in fields
    }


def places(data: Any, expected: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The path of everything below a config's data, with the type that is declared there."""
    if isinstance(data, dict):
        known = isinstance(data.get("kind"), str) and data["kind"] in kinds_of(object)
        cls = class_of_kind(data["kind"]) if known else first_class(expected)
        fields = schema(cls) if dataclasses.is_dataclass(cls) else {}
        for name, entry in data.items():
            declared = fields[name][0] if name in fields else str if name == "kind" else Any
            yield (*path, name), declared
            yield from places(entry, declared, (*path, name))
    elif isinstance(data, list):
        item = (typing.get_args(expected) or (Any,))[0]
        for number, entry in enumerate(data):
            yield (*path, number), item
            yield from places(entry, item, (*path, number))


def first_class(expected: Any) -> Any:
    """The class that a type, or an optional one, holds."""
    options = [each for each in typing.get_args(expected) or (expected,) if each is not type(None)]
    return options[0]


@functools.cache
def base(recipe: str) -> str:
    """A run of a small model, every field written out."""
    return json.dumps(to_data(train_config(RUN | {"model": {"kind": recipe} | RECIPES[recipe]})))


def mutated(draw: random.Random) -> Any:
    """A run with one to three of its parts replaced, removed or added."""
    data = json.loads(base(draw.choice(list(RECIPES))))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        path, expected = draw.choice(list(places(data, TrainConfig)))
        holder = functools.reduce(lambda entry, key: entry[key], path[:-1], data)
        change = draw.choice(("fitting",) * 5 + ("number", "text", "object") * 2 + ("delete", "add"))
        if change == "delete":
            del holder[path[-1]]
        elif change == "add" and isinstance(holder, dict):
            holder[draw.choice(["x", "", None, 1, "kind", "num_layers"])] = draw.choice(OBJECTS)
        elif change == "fitting" and path[-1] == "kind":
            holder["kind"] = draw.choice(kinds_of(object))
        elif change == "fitting":
            holder[path[-1]] = fitting(draw, expected)
        else:
            values = {"number": NUMBERS, "text": TEXTS}.get(change, OBJECTS)
            holder[path[-1]] = draw.choice(values)
        if change in ("add", "object"):
            break  # what they put there cannot always be walked through
    return data


def overrides(draw: random.Random) -> tuple[str, list[str]]:
    """A recipe, and the text of one to three overrides of its config file."""
    recipe = draw.choice(list(RECIPES))
    found = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        path, expected = draw.choice(list(places(json.loads(base(recipe)), TrainConfig)))
        name = ".".join(map(str, path)) + draw.choice(("",) * 9 + (".", ".kind", ".x", "="))
        fits = draw.random() < 0.6
        value = draw.choice(kinds_of(object)) if path[-1] == "kind" and fits else fitting(draw, expected)
        odd = draw.choice([*TEXTS, hex(16**5000), "[" * 5000, "1if 2 else", "{1: 2}", "3", "()"])
        found.append(f"--config.{name}={value if fits else odd}")
    return recipe, found


def run_all(run: TrainConfig) -> Any:
    """Whatever training does with a run before data is read, and its first step without numbers; the loss's shape."""
    assert train_config(to_data(run)) == run
    config = run.start().config
    check_state("config.model", config, 2**32)
    check_kernels(config, run.compute, training=True)
    depth = sum(len(stack.layers) for stack in config.stacks().values())
    if count(config.tensors()) > 10**6 or depth > 8 or run.accumulate > 1:
        return None
    summarize(config, 4)
    batch = config.example_batch(2, 4)

    def loss(key: jax.Array, batch: Any) -> Any:
        output = config.apply(config.initialize(key), batch, Options(key=key, compute=run.compute))
        return config.loss(output, batch).mean()

    return jax.eval_shape(loss, jax.random.key(0), batch).shape


def complaint(data: Any, file: str = "") -> str:
    """What is wrong with the way in which mutated data, or overrides of a file, are built or refused, or nothing."""
    try:
        run_all(train_config(load_config(file, data) if file else data))
    except HeadjaxError as error:
        said = str(error)
        wrong = "\n" in said or len(said) > 1000 or not re.match(r"[\\\w.\[\]/-]+", said)
        return f"says {said[:300]!r}" if wrong else ""
    except Exception:
        return traceback.format_exc()[-2000:]
    return ""


def complaints(seed: int, number: int, folder: Path) -> Mapping[str, str]:
    """Every kind of thing that goes wrong with this many mutations, with an example of each."""
    draw, found = random.Random(seed), {}
    for recipe in RECIPES:
        text = f"import json\nfrom ml_collections import ConfigDict\ndata = json.loads({base(recipe)!r})\n"
        (folder / f"{recipe}.py").write_text(f"{text}get_config = lambda argument: ConfigDict(data)\n")
    for _ in range(number):
        if draw.random() < 0.7:
            what, file = mutated(draw), ""
        else:
            recipe, what = overrides(draw)
            file = str(folder / f"{recipe}.py")
        wrong = complaint(what, file)
        if wrong:
            end = re.sub(r"0x[0-9a-f]+|\d+", "N", wrong.splitlines()[-1])[:120]
            found.setdefault(end, f"{repr(what)[:1500]}\n{wrong}")
    return found
