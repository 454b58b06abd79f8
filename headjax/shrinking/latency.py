"""Seconds of every sub-layer: each timed alone, as a share of the original model and as a ratio of pairs of calls.

A difference of two times is negative as soon as their noise is greater than it. Here no times are subtracted:

    seconds of an option = whole * share of its sub-layer * ratio of the option to the whole sub-layer

The shares are those of the sub-layers and of everything else, each timed alone, in their sum. So the seconds of the
unchanged model are those that it was measured with. The two calls of a ratio follow each other, so that they see the
same load, and the median of such pairs counts.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params, initialize
from headjax.core.timing import seconds_in_turns
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD
from headjax.nn.state import ForwardOptions, ResidualStep
from headjax.shrinking.places import Place

REPEATS = 9
"""Timed calls of each part; medians count."""


class Part(NamedTuple):
    """A part of a forward pass."""

    config: ModelConfig
    slot: str
    stack: str = ""


Clock = Callable[[Mapping[str, Part]], Mapping[str, Sequence[float]]]
"""Function from parts by name to the seconds of each in every turn; within a turn their calls follow each other."""


class Latency(NamedTuple):
    """Seconds of a forward pass, by sub-layer."""

    whole: float
    parts: float
    rest: float
    places: Mapping[str, float]
    ratios: Mapping[str, Mapping[str, float]]

    def of(self, place: str, level: str = "") -> float:
        """Return the seconds of a sub-layer, whole or at a level."""
        return self.places[place] * (self.ratios[place][level] if level else 1.0)


def measure_latency(
    config: ModelConfig,
    places: Sequence[Place],
    levels: Mapping[str, Mapping[str, ModelConfig]],
    clock: Clock,
    progress: Progress = silent,
) -> Latency:
    """Time every option."""
    wholes = {place.name: alone(config, place) for place in places}
    pairs = {
        place.name: {level: (wholes[place.name], alone(own, place)) for level, own in levels[place.name].items()}
        for place in places
    }
    unique = dict.fromkeys(pair for own in pairs.values() for pair in own.values())
    ratios: dict[tuple[Part, Part], float] = {}
    with progress("timing options", len(unique), "option") as bar:
        for whole, smaller in unique:
            turns = clock({"whole": whole, "smaller": smaller})
            ratios[whole, smaller] = _ratio(turns["smaller"], turns["whole"])
            bar(len(ratios), {})
    of_options = {name: {level: ratios[pair] for level, pair in own.items()} for name, own in pairs.items()}
    return _shared_out(config, wholes, clock)._replace(ratios=of_options)


def _shared_out(config: ModelConfig, wholes: Mapping[str, Part], clock: Clock) -> Latency:
    """Return the seconds of the original model, shared out among its sub-layers and the rest; no option is timed."""
    names = {part: f"part {number}" for number, part in enumerate(dict.fromkeys(wholes.values()))}
    parts = {name: part for part, name in names.items()}
    turns = clock({"model": Part(config, "model"), "rest": Part(config, "rest")} | parts)
    seconds = {
        name: [second / len(part.config.stacks()[part.stack].layers) for second in turns[name]]
        for name, part in parts.items()
    }
    by_place = {place: seconds[names[part]] for place, part in wholes.items()}
    sums = [sum(turn) for turn in zip(turns["rest"], *by_place.values(), strict=True)]
    whole, rest = statistics.median(turns["model"]), statistics.median(turns["rest"])
    medians = {place: statistics.median(own) for place, own in by_place.items()}
    scale = whole / (rest + sum(medians.values()))
    places = {place: scale * median for place, median in medians.items()}
    return Latency(whole, whole * _ratio(sums, turns["model"]), scale * rest, places, {})


def _ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of the calls of equal turns."""
    return statistics.median(one / other for one, other in zip(seconds, others, strict=True))


def alone(config: ModelConfig, place: Place) -> Part:
    """Return the part of a sub-layer: its stack, with as many copies of this sub-layer alone as there are layers.

    One call of a program has fixed costs, which weigh less on a whole stack than on one layer. Sub-layers of equal
    structure are equal parts.
    """
    _, (number, *_), slot = place.at
    own = config.stacks()[place.at.stack]
    field = "hidden" if slot == FEED_FORWARD else slot
    one = dataclasses.replace(own.layers[0], **{field: getattr(own.layers[number], field)}).structure()
    one = dataclasses.replace(one, window=own.layers[number].window)
    changed = config.with_layers({place.at.stack: (one,) * len(own.layers)})
    return Part(changed, slot, place.at.stack)


@dataclasses.dataclass(frozen=True)
class Stopwatch:
    """A clock of this machine."""

    model: Model
    batch: Batch

    def __call__(self, parts: Mapping[str, Part]) -> Mapping[str, Sequence[float]]:
        """Return the seconds of every part's calls; the parts take turns."""
        batch = device_batch(self.model.config, self.batch)
        calls = {name: functools.partial(_computed, part, self._params(part), batch) for name, part in parts.items()}
        return seconds_in_turns(calls, repeats=REPEATS, warmup=2)

    def _params(self, part: Part) -> Params:
        """Return the model's parameters, those of the part's stack drawn in their new shapes."""
        if not part.stack:
            return self.model.params
        tensors = {part.stack: part.config.tensors()[part.stack]}
        return self.model.params | initialize(tensors, jax.random.key(0), part.config.initializer)


@functools.partial(jax.jit, static_argnames="part")
def _computed(part: Part, params: Params, batch: Any) -> Any:
    """Return the results of a part; the compiler drops unused parts."""
    model: Any = Model(part.config, params)
    if part.slot == "model":
        return model.forward(batch)

    def alone(joining: ResidualStep) -> jax.Array:
        residual = joining.residual
        here = joining.slot == part.slot
        return residual.join(joining.x, joining.f(residual.enter(joining.read))) if here else joining.x

    options, state = ForwardOptions(join=alone), model.embed(batch)  # other stacks hand on what enters them
    names = list(part.config.stacks())
    if part.stack != names[0]:
        state = model.enter_decoder(state) if len(names) > 1 else state
    return getattr(model, part.stack)(state, options)[0].x if part.stack else model.finish(state)
