"""Configs with parts replaced: by what such a field holds elsewhere, by any object that Python has, or by text."""

from __future__ import annotations

import copy
import functools
import json
import random
import re
import traceback
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, config_dict

from headjax.core.errors import HeadjaxError
from headjax.core.kind import Kind
from headjax.core.memory import check_training_memory
from headjax.core.serialize import kinds_of, to_data
from headjax.core.tensors import count
from headjax.models import ForwardOptions, Model
from headjax.models.summary import summarize
from headjax.nn import MultiHeadAttention, NoHeadsAttention
from headjax.training.config import TrainConfig, train_config
from headjax.training.config_file import load_config
from tests.nn.formulations import FORMULATIONS

SIZES = {"num_layers": 2, "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 4}}
LAYERS = SIZES | {"width": 8, "hidden": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "decoder": LAYERS | {"vocab_size": 20, "max_length": 8},
    "encoder": LAYERS | {"vocab_size": 20, "max_length": 8, "task": {"kind": "masked_language_model"}},
    "encoder_decoder": LAYERS | {"vocab_size": 20, "position_bias": {"kind": "relative_buckets", "num_heads": 2}},
    "vision": LAYERS
    | {"image_size": 4, "patch_size": 2, "channels": 1, "task": {"kind": "classification", "classes": 2}},
}
"""A small model of every family."""

RUN = {
    "data": {"task": "python_code"},
    "batch_size": 8,
    "steps": 2,
    "optimizer": {"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.01, "warmup_steps": 1}},
    "mesh": {"data": 1},
}


def nested(depth: int, group: bool) -> Any:
    """Lists or groups within each other."""
    data: Any = 1
    for _ in range(depth):
        data = {"inner": data, "kind": "compressed"} if group else [data]
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
    *(None, object(), int, Kind, len, b"x", 1j, Decimal(1), Path("x"), {1}, range(3), iter(()), json),
    *(np.array([1, 2]), np.array("multi_head"), np.float32(1), np.int64(3), np.str_("relu"), np.dtype("f")),
    *(jnp.ones(2), ValueError("x"), nested(50, True), nested(5000, True), nested(5000, False), [], {}, (), [[]]),
    *({None: 1}, {1: 2, "a": 3}, {"kind": None}, {"kind": []}, {"a.b": 1}, {"kind": np.array(["compressed"])}),
    *({"repeat": 10**9, "item": {}}, [{"repeat": 2, "item": 1}], Kind(NoHeadsAttention)),
    Kind(MultiHeadAttention, num_heads=2, head_dim=4),
    ConfigDict({"kind": "multi_head", "num_heads": config_dict.required_placeholder(int), "head_dim": 2}),
    ConfigDict({"kind": config_dict.placeholder(str)}),
]


@functools.cache
def base(family: str) -> str:
    """A run of a small model, every field written out."""
    return json.dumps(to_data(train_config(RUN | {"model": {"kind": family} | FAMILIES[family]})))


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The path and the value of everything below a config's data."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, entry in entries:
        yield (*path, name), entry
        yield from places(entry, (*path, name))


@functools.cache
def known() -> Mapping[Any, list[Any]]:
    """What fields of a name hold in any family, formulation or initialisation, and what every type holds."""
    found = {bool: [True, False], int: [1, 2, 3, 4, 8], float: [0.0, 0.1, 1.0, 2], str: ["x", "auto", "relu"]}
    formulations = [{"attention": to_data(each)} for each in FORMULATIONS.values()]
    parts = [{"residual": kind} for kind in ("pre_norm", "post_norm", "scaled_post_norm")]
    parts += [{"initialization": {"kind": kind}} for kind in ("admin", "admin_constant", "deep_norm")]
    for data in (*(json.loads(base(family)) for family in FAMILIES), *formulations, *parts):
        for path, value in places(data):
            found.setdefault(path[-1], []).append(value)
    return found | {"kind": kinds_of(object)}


def fitting(draw: random.Random, name: Any, old: Any) -> Any:
    """A value that a field may have; bounds, and what fields say of each other, are another matter."""
    values = known().get(name if draw.random() < 0.5 or type(old) not in known() else type(old), [None])
    return copy.deepcopy(draw.choice(values))


def mutated(draw: random.Random) -> Any:
    """A run with one to three of its parts replaced, removed or added."""
    data = json.loads(base(draw.choice(list(FAMILIES))))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        path, old = draw.choice(list(places(data)))
        holder = functools.reduce(lambda entry, key: entry[key], path[:-1], data)
        change = draw.choice(("fitting",) * 5 + ("number", "text", "object") * 2 + ("delete", "add"))
        if change == "delete":
            del holder[path[-1]]
        elif change == "add" and isinstance(holder, dict):
            holder[draw.choice(["x", "", None, 1, "kind", "num_layers"])] = draw.choice(OBJECTS)
        elif change == "fitting":
            holder[path[-1]] = fitting(draw, path[-1], old)
        else:
            holder[path[-1]] = draw.choice({"number": NUMBERS, "text": TEXTS}.get(change, OBJECTS))
        if change in ("add", "object"):
            break  # what they put there cannot always be walked through
    return data


def overrides(draw: random.Random) -> tuple[str, list[str]]:
    """A family, and the text of one to three overrides of its config file."""
    family = draw.choice(list(FAMILIES))
    found = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        path, old = draw.choice(list(places(json.loads(base(family)))))
        name = ".".join(map(str, path)) + draw.choice(("",) * 9 + (".", ".kind", ".x", "="))
        odd = draw.choice([*TEXTS, hex(16**5000), "[" * 5000, "1if 2 else", "{1: 2}", "3", "()"])
        found.append(f"--config.{name}={fitting(draw, path[-1], old) if draw.random() < 0.6 else odd}")
    return family, found


def run_all(run: TrainConfig) -> Any:
    """Whatever training does with a run before data is read, and its first step without numbers; the loss's shape."""
    assert train_config(to_data(run)) == run
    config = run.architecture()
    check_training_memory("config.model", count(config.tensors()), 2**32)
    depth = sum(len(stack.layers) for stack in config.stacks().values())
    if count(config.tensors()) > 10**6 or depth > 8 or run.accumulate > 1:
        return None
    summarize(config, 4)
    batch = config.example_batch(2, 4)

    def loss(key: jax.Array, batch: Any) -> Any:
        model = Model(config, config.initialize(key))
        return model.losses(model.forward(batch, ForwardOptions(key=key, compute=run.compute)), batch).mean()

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
    for family in FAMILIES:
        text = f"import json\nfrom ml_collections import ConfigDict\ndata = json.loads({base(family)!r})\n"
        (folder / f"{family}.py").write_text(f"{text}get_config = lambda argument: ConfigDict(data)\n")
    for _ in range(number):
        if draw.random() < 0.7:
            what, file = mutated(draw), ""
        else:
            family, what = overrides(draw)
            file = str(folder / f"{family}.py")
        wrong = complaint(what, file)
        if wrong:
            end = re.sub(r"0x[0-9a-f]+|\d+", "N", wrong.splitlines()[-1])[:120]
            found.setdefault(end, f"{repr(what)[:1500]}\n{wrong}")
    return found
