"""Name rules: which tensor of a Hugging Face file is which of ours."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headjax.core.errors import ParameterError
from headjax.core.tensors import Tensor, flatten
from headjax.hub.forms import Flat, Form, OneForm, Same, Transposed
from headjax.hub.safetensors_files import shorten
from headjax.models.base import ModelConfig

_RUN = re.compile(r"((?:encoder|decoder)/)layers_([0-9]+)_([0-9]+)(/.*)")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One tensor of theirs and what it is here.

    `{}` on both sides stands for the number of a layer. A rule whose tensors the config does not declare says nothing,
    so that one list serves a family's variants; what is left over on either side is an error all the same.

    Attributes:
        theirs: its name.
        ours: our paths, layers unstacked: `encoder/{}/attention/query`.
        form: how they differ.
    """

    theirs: str
    ours: tuple[str, ...]
    form: Form

    def under(self, theirs: str, ours: str) -> Rule:
        """The rule with these prefixes."""
        return dataclasses.replace(self, theirs=theirs + self.theirs, ours=tuple(ours + path for path in self.ours))


Rules = tuple[Rule, ...]


def one(theirs: str, ours: str, form: OneForm = Same()) -> Rules:
    """A single tensor."""
    return (Rule(theirs, (ours,), form),)


def projection(theirs: str, ours: str, weight: OneForm = Transposed()) -> Rules:
    """`theirs.weight` and `theirs.bias` are `ours` and `ours_bias`."""
    return (*one(f"{theirs}.weight", ours, weight), *one(f"{theirs}.bias", f"{ours}_bias", Flat()))


def affine(theirs: str, ours: str) -> Rules:
    """`theirs.weight` and `theirs.bias` are `ours/kernel` and `ours/bias`."""
    return (*one(f"{theirs}.weight", f"{ours}/kernel", Transposed()), *one(f"{theirs}.bias", f"{ours}/bias"))


def norm(theirs: str, ours: str) -> Rules:
    """`theirs.weight` and `theirs.bias` are `ours/scale` and `ours/bias`."""
    return (*one(f"{theirs}.weight", f"{ours}/scale"), *one(f"{theirs}.bias", f"{ours}/bias"))


def under(theirs: str, ours: str, rules: Iterable[Rule]) -> Rules:
    """The rules with these prefixes."""
    return tuple(rule.under(theirs, ours) for rule in rules)


class Place(NamedTuple):
    """Where one layer's tensor lies in the parameters.

    Attributes:
        path: path of the declared tensor.
        layer: index along its leading axis of layers, or None where it has none.
        tensor: the declaration for one layer.
    """

    path: str
    layer: int | None
    tensor: Tensor


def places(config: ModelConfig) -> dict[str, Place]:
    """Every tensor a model declares, layers unstacked: by path with the layer's number in place of its run's name."""
    found: dict[str, Place] = {}
    for path, tensor in flatten(config.tensors()).items():
        run = _RUN.fullmatch(path)
        if run is None:
            found[path] = Place(path, None, tensor)
        elif not tensor.stacked:
            found[f"{run[1]}{run[2]}{run[4]}"] = Place(path, None, tensor)
        else:
            for index, number in enumerate(range(int(run[2]), int(run[3]) + 1)):
                found[f"{run[1]}{number}{run[4]}"] = Place(path, index, _of_one_layer(tensor))
    return found


class Bound(NamedTuple):
    """A rule applied to a model.

    Attributes:
        theirs: the name in the file.
        ours: where its parts go.
        form: how they differ.
    """

    theirs: str
    ours: tuple[Place, ...]
    form: Form

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Declarations of the parts."""
        return [place.tensor for place in self.ours]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape the tensor in the file must have."""
        return self.form.shape(self.tensors)


def bind(rules: Iterable[Rule], config: ModelConfig, family: str) -> list[Bound]:
    """The rules applied to every layer of a model.

    Raises:
        ParameterError: the model declares tensors for which the family has no name.
    """
    declared = places(config)
    layers = range(max(len(stack.layers) for stack in config.stacks().values()))
    bound, used = [], set()
    for rule in rules:
        for number in layers if "{}" in rule.theirs else [None]:
            paths = [path.format(number) for path in rule.ours]
            if not any(path in declared for path in paths):
                continue
            absent = [path for path in paths if path not in declared]
            if absent:
                raise ParameterError(f"{absent[0]}: {family} needs it for {rule.theirs.format(number)}")
            bound.append(Bound(rule.theirs.format(number), tuple(declared[path] for path in paths), rule.form))
            used.update(paths)
    unnamed = [path for path in declared if path not in used]
    if unnamed:
        raise ParameterError(f"{family} has no name for {shorten(unnamed)}")
    return bound


def _of_one_layer(tensor: Tensor) -> Tensor:
    """The inverse of `Tensor.stack`."""
    return dataclasses.replace(
        tensor,
        shape=tensor.shape[1:],
        axes=tensor.axes[1:],
        inputs=tuple(i - 1 for i in tensor.inputs),
        head_axis=None if tensor.head_axis is None else tensor.head_axis - 1,
        stacked=tensor.stacked - 1,
    )
