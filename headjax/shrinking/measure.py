"""Measure the damage of every smaller form of every sub-layer: each alone, its map to the stream refitted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from headjax.conversion.calibration import collect
from headjax.conversion.named import describe
from headjax.conversion.target import Target
from headjax.core.errors import HeadjaxError
from headjax.core.kind import Kind
from headjax.core.programs import forget, trim
from headjax.core.progress import Update
from headjax.heads.damage import Damage
from headjax.heads.effect import LossRise, OutputChange
from headjax.heads.layer_sums import TwoModels, spread
from headjax.heads.reconstruction import with_change
from headjax.heads.reconstruction_order import batches_for, layer_removals
from headjax.heads.refit import Change, RefitSums, centred, least_needed, refit, without_rows
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch, ModelConfig
from headjax.models.model import Model
from headjax.models.walk import LayerBlock
from headjax.nn.compute import Compute
from headjax.nn.layer import TransformerLayer
from headjax.shrinking.costs import costs_of
from headjax.shrinking.grid import Grid, Level, head_groups, target_of
from headjax.shrinking.places import Orders, Place, attentions_of, converted, places_of, without
from headjax.storage.kept import Kept


class LevelForm(NamedTuple):
    """Layers in the form of one level with a conversion."""

    level: Level
    targets: Mapping[str, str]
    costs: Mapping[str, Mapping[str, float]]
    config: Callable[[], ModelConfig]


class Measured(NamedTuple):
    """Result of `measure`."""

    places: Sequence[Place]
    orders: Orders
    damages: Mapping[str, float]
    forms: Sequence[LevelForm]


def key_of(place: Place, level: Level) -> str:
    """Return the name under which a measurement is kept."""
    return f"{place.name} {level}"


def count_options(model: Model, grid: Grid) -> int:
    """Return the greatest number of options that are measured."""
    places = places_of(model)
    conversions = sum(len(grid.conversions(place.at.head_stack)) for place in attentions_of(places))
    return conversions + sum(len(place.removals(grid)) for place in places)


def measure(
    model: Model,
    batches: Sequence[Batch],
    grid: Grid,
    *,
    examples: int,
    length: int,
    labels: bool = False,
    kept: Kept | None = None,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Measured:
    """Measure the damage of every option.

    The input of every layer in the original model is computed once. A changed layer is computed from there, and the
    layers after it; one program serves all layers of one structure. Removed heads and units have rows of 0 in the
    solved map. Maps are solved on other examples than damages are measured on: a map of a thousand units fits its own
    examples far better than others, so that forms with many features would look harmless.
    """
    model, batches = spread(model, batches)
    judged, solved = held_back(batches, examples)
    run = _Run(model, solved, grid, length, compute, kept or Kept(), progress)
    effect = LossRise(model.config) if labels else OutputChange(model.config)
    run.damage = functools.cache(lambda: Damage(run.model, judged, effect, compute))
    orders = run.removals()
    forms = list(run.conversions(orders))
    return Measured(run.places, orders, run.damages, forms)


def held_back(batches: Sequence[Any], examples: int) -> tuple[list[Any], list[Any]]:
    """Return the batches to measure damages on, and those to solve maps on: see `measure`."""
    if len(batches) < 2:
        return list(batches), list(batches)
    total = sum(len(next(iter(batch.values()))) for batch in batches)
    judged = batches_for(batches, min(examples, total // 2))
    return judged, [batch for batch in batches if all(batch is not other for other in judged)]


class _Form(NamedTuple):
    """A model with converted layers, and the conversions by place."""

    model: Model
    targets: Mapping[str, Target]


class _Run:
    """One run through all options."""

    damage: Callable[[], Damage]

    def __init__(
        self,
        model: Model,
        batches: Sequence[Batch],
        grid: Grid,
        length: int,
        compute: Compute,
        kept: Kept,
        progress: Update | None,
    ) -> None:
        self.model, self.places, self.damages = model, places_of(model), dict[str, float]()
        self._batches, self._grid, self._compute = batches, grid, compute
        self._kept, self._progress, self._length = kept, progress, length
        self._moments = functools.cache(lambda: collect(self.model, self._batches))

    def removals(self) -> dict[str, list[int]]:
        """Measure the options that lose heads or units alone; return the order of every layer's heads."""
        wanted = {place.at: [(place, level) for level in place.removals(self._grid)] for place in self.places}
        heads = attentions_of(self.places)
        missing = not all(map(self._has, (option for own in wanted.values() for option in own)))
        if missing or not all(f"order {place.name}" in self._kept.found for place in heads):
            models = TwoModels(self.model, self._batches, self._compute)
            for at in models.walk():
                place = self._at(at)
                removing = functools.cache(functools.partial(self._removing, models, place))
                if place in heads:
                    self._kept(f"order {place.name}", functools.partial(_order, removing))
                order = self._kept.found.get(f"order {place.name}", ())
                for _, level in wanted.pop(at):
                    self._step(place, level, functools.partial(_damage, removing, level, order))
                trim()
        for place, level in (option for own in wanted.values() for option in own):
            self._step(place, level)
        return {place.name: self._kept.found[f"order {place.name}"] for place in heads}

    def conversions(self, orders: Orders) -> Iterator[LevelForm]:
        """Measure the options with a conversion; yield their levels.

        All layers are converted at once. Each is then measured alone, with its input in the original model.
        """
        places = attentions_of(self.places)
        levels = dict.fromkeys(level for place in places for level in self._grid.conversions(place.at.head_stack))
        for level in levels:
            form = functools.cache(functools.partial(self._form, level, orders))
            told = self._kept(f"form {level}", functools.partial(self._told, form))
            options = [(place, level) for place in places if place.name in told["targets"]]
            if all(map(self._has, options)):
                for option in options:
                    self._step(*option)
            else:
                self._converted(form().model, options)
                forget()
            yield LevelForm(level, told["targets"], told["costs"], functools.partial(self._config, level, orders))

    def _form(self, level: Level, orders: Orders) -> _Form:
        """Return the model in which every layer that can have a level's form has it."""
        places = attentions_of(self.places)
        kept = {place.name: place.left(orders[place.name], level) for place in places}
        pruned = without(self.model, kept, places)
        forms, targets = pruned.config.attentions(), dict[str, Target]()
        for place in places:
            if level in self._grid.conversions(place.at.head_stack):
                target = target_of(level, forms[place.at.head_stack][place.layer], self.model.config.width)
                targets |= {} if target is None else {place.name: target}
        return _Form(converted(pruned, targets, places, self._moments() if targets else {}), targets)

    def _config(self, level: Level, orders: Orders) -> ModelConfig:
        return self._form(level, orders).model.config

    def _told(self, form: Callable[[], _Form]) -> dict[str, Any]:
        """Return the targets and the costs of a form as JSON data."""
        made = form()
        costs = costs_of(made.model.config, self._length).by_place
        return {
            "targets": {name: describe(target) for name, target in made.targets.items()},
            "costs": {name: costs[name] for name in made.targets},
        }

    def _converted(self, changed: Model, options: Sequence[tuple[Place, Level]]) -> None:
        """Measure every converted layer alone."""
        models = TwoModels(self.model, self._batches, self._compute, changed)
        models.apart = False  # what enters a layer is what enters it in the original model
        wanted = {place.at: (place, level) for place, level in options}
        for at in models.walk():
            if at in wanted:
                repaired = functools.partial(self._repaired, models, wanted[at][0])
                self._step(*wanted[at], repaired)

    def _repaired(self, models: TwoModels, place: Place) -> float:
        """Return the damage of a layer in another form."""
        layer, slot = models.layer, place.at.slot
        sums, scale = models.sums(slot, mended=False)
        left = np.ones(sums.gram.shape[-1] - 1, bool)
        found = refit(sums, left, bias=output_map(getattr(layer, slot)).bias is not None, scale=scale)
        if found.helps:
            layer = with_change(layer, slot, found.change)
        return self._damage_of(place, models.block, layer)

    def _removing(self, models: TwoModels, place: Place) -> _Removing:
        sums, scale = models.sums(place.at.slot, mended=False)
        return _Removing(place, models.layer, sums, scale, functools.partial(self._damage_of, place, models.block))

    def _damage_of(self, place: Place, block: LayerBlock, layer: TransformerLayer) -> float:
        damage = self.damage()
        number = damage.block(place.at.stack, place.layer)
        return damage({number: block.holding(layer)}, f"damage: {place.name}, made smaller")

    def _at(self, at: object) -> Place:
        return next(place for place in self.places if place.at == at)

    def _has(self, option: tuple[Place, Level]) -> bool:
        return key_of(*option) in self._kept.found

    def _step(self, place: Place, level: Level, measured: Callable[[], float] | None = None) -> None:
        """Measure an option unless that has been done."""
        key = key_of(place, level)
        self.damages[key] = self._kept.found[key] if measured is None else self._kept(key, measured)
        if self._progress is not None:
            self._progress(len(self.damages), {"damage": self.damages[key]})


def _order(removing: Callable[[], _Removing]) -> list[int]:
    return removing().order()


def _damage(removing: Callable[[], _Removing], level: Level, order: Sequence[int]) -> float:
    return removing().measure(level, order)


class _Removing:
    """Removals of heads or units of one sub-layer, from its sums in the original model."""

    def __init__(
        self,
        place: Place,
        layer: TransformerLayer,
        sums: RefitSums,
        scale: np.ndarray,
        damage: Callable[[TransformerLayer], float],
    ) -> None:
        self._place, self._layer, self._sums, self._scale, self._damage = place, layer, sums, scale, damage
        weight, bias = output_map(getattr(layer, place.at.slot))
        if weight is None:
            raise HeadjaxError(f"{place.name}: its formulation has no output projection to solve")
        own = np.asarray(fetch(weight[...]), np.float64)
        self._weight = own.reshape(-1, own.shape[-1])
        self._biased = bias is not None
        self._moments = centred(sums, self._biased)

    def order(self) -> list[int]:
        """Return the positions of the heads, those that go first before the others."""
        attention = cast(Kind, self._place.attention)
        output = self._weight.reshape(attention.num_heads, -1, self._weight.shape[-1])
        found = layer_removals(self._moments, output, head_groups(attention))
        return [position for group in found.order for position in group]

    def measure(self, level: Level, order: Sequence[int]) -> float:
        """Return the damage at a level."""
        gone = self._gone(level, order)
        sums = without_rows(self._sums, self._weight, gone)
        left = np.ones(len(self._weight), bool)
        left[gone] = False
        found = refit(sums, left, bias=self._biased, scale=self._scale)
        weight, bias = found.change if found.helps else (np.zeros(self._weight.shape), np.zeros(len(self._scale)))
        weight[gone] = -self._weight[gone]
        change = Change(weight, bias)
        return self._damage(with_change(self._layer, self._place.at.slot, change))

    def _gone(self, level: Level, order: Sequence[int]) -> np.ndarray:
        """Return the features that go."""
        place = self._place
        if place.attention is None:
            return least_needed(self._moments, self._weight, place.units - place.count(level))
        heads = place.attention.num_heads
        gone = np.setdiff1d(np.arange(heads), place.left(order, level))
        size = len(self._weight) // heads
        features: np.ndarray = (gone[:, None] * size + np.arange(size)[None]).ravel()
        return features
