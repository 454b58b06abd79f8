"""Name rules: pairs of a tensor in a Hugging Face file and the same tensor here, with the difference in layout."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from headjax.core.errors import ParameterError
from headjax.core.tensors import flatten, one_layer
from headjax.hub.safetensors_files import shorten
from headjax.models.config import ModelConfig

_RUN = re.compile(r"((?:encoder|decoder)/)layers_([0-9]+)_([0-9]+)(/.*)")


Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TensorForm:
    """Layout of a tensor in a file; several of ours (query, key and value) lie there one after another."""

    flat: Callable[[nnx.Param[Any]], Shape]  # of each in the file, the dimension along which they lie last
    last_first: bool = False  # that dimension is the first in the file
    by_head: bool = False  # a head's query, key and value come before those of the next head

    def shape(self, ours: Sequence[nnx.Param[Any]]) -> Shape:
        flat = self.flat(ours[0])
        flat = flat if len(ours) == 1 else (*flat[:-1], sum(self._sizes(ours)))
        return flat[-1:] + flat[:-1] if self.last_first else flat

    def load(self, theirs: np.ndarray, ours: Sequence[nnx.Param[Any]], part: int) -> np.ndarray:
        """Return our tensor number `part`, perhaps as a view of the file's."""
        array = np.moveaxis(theirs, 0, -1) if self.last_first else theirs
        if self.by_head:
            array = array.reshape(*ours[part].shape[:-1], len(ours), -1)[..., part, :]
        elif len(ours) > 1:
            sizes = self._sizes(ours)
            start = sum(sizes[:part])
            array = array[..., start : start + sizes[part]]
        return array.reshape(ours[part].shape)

    def store(self, arrays: Sequence[np.ndarray], ours: Sequence[nnx.Param[Any]]) -> np.ndarray:
        """Return the file's tensor."""
        if self.by_head:
            stored = np.stack(arrays, axis=-2).reshape(*self.flat(ours[0])[:-1], -1)
        else:
            flat = [array.reshape(self.flat(tensor)) for array, tensor in zip(arrays, ours, strict=True)]
            stored = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)
        return np.moveaxis(stored, -1, 0) if self.last_first else stored

    def _sizes(self, ours: Sequence[nnx.Param[Any]]) -> list[int]:
        return [self.flat(tensor)[-1] for tensor in ours]


def _matrix(ours: nnx.Param[Any]) -> Shape:
    inputs = math.prod(ours.shape[: len(ours.inputs)])
    return inputs, ours.size // max(inputs, 1)


SAME = TensorForm(lambda ours: ours.shape)
"""One shape on both sides: embedding tables, norms."""

FLAT = TensorForm(lambda ours: (ours.size,))
"""A vector in the file: biases, which have the shape `[heads, head_dim]` here."""

MATRIX = TensorForm(_matrix)
"""`[inputs, outputs]` in the file (GPT-2's Conv1D), with the features of all heads in one dimension."""

TRANSPOSED = TensorForm(_matrix, last_first=True)
"""`[outputs, inputs]` in the file (`torch.nn.Linear`), with the features of all heads in one dimension."""

LAST_FIRST = TensorForm(lambda ours: ours.shape, last_first=True)
"""Our last dimension first in the file (`torch.nn.Conv2d`: `[outputs, channels, height, width]`)."""


def leading(ones: int = 1) -> TensorForm:
    """Return the form whose shape has leading dimensions of size 1: `[1, vocabulary]`, `[1, 1, width]`."""
    return TensorForm(lambda ours: (1,) * ones + ours.shape)


@dataclasses.dataclass(frozen=True)
class Rule:
    """The name of a tensor in a file and here, `{}` for a layer's number; passed over where no config declares it."""

    theirs: str
    ours: tuple[str, ...]
    form: TensorForm
    given: str | None = None  # the rule counts for configs that declare a tensor of this path
    unless: str | None = None  # or that declare none of this one


Rules = tuple[Rule, ...]


def one(theirs: str, ours: str, form: TensorForm = SAME) -> Rules:
    """Return the rule of a single tensor."""
    return (Rule(theirs, (ours,), form),)


QUERY_KEY_VALUE = ("attention/query", "attention/key", "attention/value")
GATE_UP = ("feed_forward/gate", "feed_forward/up")


def projection(theirs: str, ours: str | tuple[str, ...], weight: TensorForm = TRANSPOSED) -> Rules:
    """Return the rules `theirs.weight` to `ours` and `theirs.bias` to `ours_bias`, of one or several side by side."""
    paths = (ours,) if isinstance(ours, str) else ours
    biases = tuple(f"{path}_bias" for path in paths)
    return (Rule(f"{theirs}.weight", paths, weight), Rule(f"{theirs}.bias", biases, FLAT))


def projections(prefix: str, names: str, ours: str) -> Rules:
    """Return the rules of weights and biases of attention: `names` are those of query, key, value and output."""
    *reading, output = names.split()
    pairs = zip(reading, ("query", "key", "value"), strict=True)
    rules = (rule for name, part in pairs for rule in projection(prefix + name, f"{ours}/{part}"))
    return (*rules, *affine(prefix + output, f"{ours}/output"))


def affine(theirs: str, ours: str, weight: TensorForm = TRANSPOSED) -> Rules:
    """Return the rules `theirs.weight` to `ours/kernel` and `theirs.bias` to `ours/bias`."""
    return (*one(f"{theirs}.weight", f"{ours}/kernel", weight), *one(f"{theirs}.bias", f"{ours}/bias"))


def norm(theirs: str, ours: str) -> Rules:
    """Return the rules `theirs.weight` to `ours/scale` and `theirs.bias` to `ours/bias`, which an RMS norm lacks."""
    return (*one(f"{theirs}.weight", f"{ours}/scale"), *one(f"{theirs}.bias", f"{ours}/bias"))


def under(theirs: str, ours: str, rules: Iterable[Rule]) -> Rules:
    """Return the rules with these prefixes."""
    return tuple(
        dataclasses.replace(
            rule,
            theirs=theirs + rule.theirs,
            ours=tuple(ours + path for path in rule.ours),
            given=None if rule.given is None else ours + rule.given,
            unless=None if rule.unless is None else ours + rule.unless,
        )
        for rule in rules
    )


def layers(
    prefixes: tuple[str, str],
    attention: Rules,
    norms: str,
    feed_forward: str | Rules,
    more: Rules = (),
    weight: TensorForm = TRANSPOSED,
) -> Rules:
    """Return the rules of layers with these prefixes there and here, and with these rules of their attention.

    `norms` are the names of the norms of attention and feed-forward, `feed_forward` those of the maps `up` and `down`,
    or of `gate`, `up` and `down`.
    """
    of_attention, of_feed_forward = norms.split()
    if isinstance(feed_forward, str):
        names = feed_forward.split()
        maps = zip(names, ("gate", "up", "down")[-len(names) :], strict=True)
        feed_forward = tuple(rule for name, part in maps for rule in projection(name, f"feed_forward/{part}", weight))
    norm_rules = norm(of_attention, "attention_residual/norm") + norm(of_feed_forward, "feed_forward_residual/norm")
    return under(*prefixes, (*attention, *norm_rules, *feed_forward, *more))


def given(path: str, rules: Iterable[Rule]) -> Rules:
    """Return the rules for configs that declare a tensor of this path."""
    return tuple(dataclasses.replace(rule, given=path) for rule in rules)


def unless(path: str, rules: Iterable[Rule]) -> Rules:
    """Return the rules for configs that declare no tensor of this path."""
    return tuple(dataclasses.replace(rule, unless=path) for rule in rules)


class Place(NamedTuple):
    """The place of one layer's tensor in the parameters."""

    path: str
    layer: int | None
    tensor: nnx.Param[Any]

    def array(self, params: Mapping[str, Any]) -> np.ndarray:
        """Return the tensor of parameters by path."""
        array = np.asarray(params[self.path])
        return array if self.layer is None else array[self.layer]


def places(config: ModelConfig) -> dict[str, Place]:
    """Return every tensor a model declares, by its path with the layer's number in place of the run's name."""
    tensors: dict[str, Place] = {}
    for path, tensor in flatten(config.tensors()).items():
        run = _RUN.fullmatch(path)
        if run is None:
            tensors[path] = Place(path, None, tensor)
        elif not tensor.stacked:
            tensors[f"{run[1]}{run[2]}{run[4]}"] = Place(path, None, tensor)
        else:
            for index, number in enumerate(range(int(run[2]), int(run[3]) + 1)):
                tensors[f"{run[1]}{number}{run[4]}"] = Place(path, index, one_layer(tensor))
    return tensors


class BoundRule(NamedTuple):
    """A rule applied to a model."""

    theirs: str
    ours: tuple[Place, ...]
    form: TensorForm

    @property
    def tensors(self) -> Sequence[nnx.Param[Any]]:
        return [place.tensor for place in self.ours]

    @property
    def shape(self) -> Shape:
        return self.form.shape(self.tensors)


def bind(rules: Iterable[Rule], config: ModelConfig, family: str) -> list[BoundRule]:
    """Return the rules applied to every layer of a model."""
    declared = places(config)
    layers = range(max(len(stack.layers) for stack in config.stacks().values()))
    bound, used = [], set()
    for rule in rules:
        for number in layers if "{}" in rule.theirs else [None]:
            paths = [path.format(number) for path in rule.ours]
            counts = rule.given is None or rule.given.format(number) in declared
            counts = counts and (rule.unless is None or rule.unless.format(number) not in declared)
            if not counts or not any(path in declared for path in paths):
                continue
            absent = [path for path in paths if path not in declared]
            if absent:
                raise ParameterError(f"{absent[0]}: {family} needs it for {rule.theirs.format(number)}")
            bound.append(BoundRule(rule.theirs.format(number), tuple(declared[path] for path in paths), rule.form))
            used.update(paths)
    unnamed = [path for path in declared if path not in used]
    if unnamed:
        raise ParameterError(f"{family} has no name for {shorten(unnamed)}")
    return bound
