"""Shrink models by every method to every budget, for several draws of calibration examples.

    python -m results.experiments.shrink NAME TASK MODEL ...    # writes results/measurements/shrink_NAME.csv

Every method has the same options, measured once a draw, and the same repair. Quality is measured on evaluation
examples, which chose nothing. "X change" is a method's X less the original model's, "X gain" the X of `shrink` less the
method's. Of several models each has draws of its own; "seed" is the model's number.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import headjax
from headjax.evaluation.paired import RESAMPLES, Comparison, paired_test
from headjax.evaluation.specs import load_task, split_task
from headjax.evaluation.task import Evaluation, measure_task
from headjax.heads.agreement import agreement
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.shrinking.choice import NO_LAYER, QUANTITIES, Choice, Prices, choose_if_any
from headjax.shrinking.measure import MeasureConfig
from headjax.shrinking.shrink import build, decision, measured_prices
from headjax.training.distillation import Distillation, distill
from results.table import Row, write

METHODS = {"shrink": (), "uniform": (), "heads": ("heads",), "units": ("units",), "sharing": ("sharing",)}
"""Methods, and the kinds of options that one takes; none is all kinds."""

JUDGED = 128
"""Evaluation examples that the damage of a built model is measured on."""


def choice_of(method: str, table: Prices, limits: Mapping[str, float]) -> Choice | None:
    """Return a method's choice, None where it cannot keep within the limits."""
    kinds = METHODS[method]
    allowed = table.only(lambda option: option.kind in kinds) if kinds else table
    return choose_if_any(allowed, limits, uniform=method == "uniform")


def random_choice(table: Prices, generator: np.random.Generator) -> Choice:
    """Return a random option of every place, with all layers."""
    table = table.only(lambda option: option.kind != NO_LAYER)
    options = {place: own[generator.integers(len(own))] for place, own in table.options.items()}
    costs = {quantity: table.cost(list(options.values()), quantity) for quantity in QUANTITIES}
    return Choice(options, sum(option.damage for option in options.values()), 0.0, 0.0, costs)


class Study:
    """A model, its task, and how its quality is measured."""

    def __init__(self, path: str, number: int, options: argparse.Namespace) -> None:
        model = headjax.load(path)
        self.number, self.options = number, options
        split = "all" if options.calibration else "validation"
        task = load_task(options.task, model, options.length, split=split)
        train = load_task(options.calibration, model, options.length, split="all") if options.calibration else None
        self.selection, self.task = split_task(task, train=train)
        self.model = task.fit(model)
        self._shapes: dict[str, Any] = {"batch_size": 16, "buckets": options.buckets}
        self._judged = list(self.task.batches(limit=min(options.limit or JUDGED, JUDGED), **self._shapes))
        self.whole = self.evaluate(self.model)
        self.test = paired_test(self.whole.outcomes, self.task.measure, RESAMPLES)[1]

    def evaluate(self, model: Model) -> Evaluation:
        """Return the metrics and outcomes on the evaluation examples."""
        return measure_task(model, self.task, limit=self.options.limit, **self._shapes)

    def run(self) -> Iterator[Row]:
        """Yield the numbers of all draws."""
        headline = self.task.measure.primary_metric
        yield Row(share="100%", metric=headline, value=self.whole.metrics[headline])
        yield Row(metric="evaluation examples", value=float(self.whole.examples))
        first: tuple[Sequence[Batch], Prices] | None = None
        for draw in range(self.options.draws):
            begun = time.process_time()
            batches = self.selection.sample(self.options.calibrate, seed=draw, **self._shapes)
            work = f"{self.options.work}/{self.options.name}/{self.number}/{draw}"
            measuring = MeasureConfig(examples=self.options.measured, labels=self.options.labels, work=work)
            table = measured_prices(self.model, batches, measuring)
            first = first or (batches, table)
            one = Row(draw=str(draw), metric="calibration examples", value=float(self.options.calibrate))
            yield one._replace(seconds=time.process_time() - begun)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            yield one._replace(metric="peak MiB", value=memory)
            for quantity, share in self.options.budgets:
                row = Row(setting=quantity, draw=str(draw), share=f"{share:.0%}")
                yield from self.cells(row, batches, table, {quantity: share * table.whole(quantity)})
        if first is not None:
            yield from self.predictions(*first)

    def cells(self, row: Row, batches: Sequence[Batch], table: Prices, limits: Mapping[str, float]) -> Iterator[Row]:
        """Yield the numbers of all methods at one budget."""
        headline, ours = self.task.measure.primary_metric, None
        tested = "loss" if headline == "perplexity" else headline
        for method in self.options.methods:
            begun, choice = time.process_time(), choice_of(method, table, limits)
            cell = row._replace(order=method)
            if choice is None:
                yield cell._replace(metric="no choice within the budget", value=1.0)
                continue
            built = self.recovered(build(self.model, batches, choice))
            found = self.evaluate(built)
            yield cell._replace(metric=headline, value=found.metrics[headline], seconds=time.process_time() - begun)
            yield from self.damages(cell, choice, built)
            yield self.tested(cell, f"{tested} change", self.test(found.outcomes))
            if ours is None:
                ours = found
            else:
                against = paired_test(found.outcomes, self.task.measure, RESAMPLES)[1]
                yield self.tested(cell, f"{tested} gain", against(ours.outcomes))

    def recovered(self, built: Model) -> Model:
        """Return a built model after its recovery, with the whole as teacher and labels."""
        settings = Distillation(steps=self.options.recover, logits=1.0) if self.options.recover else None
        if settings is None:
            return built
        batches = self.task.train_batches(32, seed=0, buckets=self.options.buckets)
        return distill(built, self.model, batches, settings).model

    def damages(self, row: Row, choice: Choice, built: Model) -> Iterator[Row]:
        """Yield the damage that was predicted of a choice, and that of the built model on evaluation examples."""
        print({place: told["form"] for place, told in decision(choice)["layers"].items()})
        yield row._replace(metric="predicted damage", value=choice.damage)
        apart = agreement(self.model, built, self._judged).distance
        yield row._replace(metric="measured damage", value=apart)

    def tested(self, row: Row, metric: str, test: Comparison) -> Row:
        """Return a difference with its interval."""
        return row._replace(metric=metric, value=test.difference, low=test.low, high=test.high, p=test.p_value)

    def predictions(self, batches: Sequence[Batch], table: Prices) -> Iterator[Row]:
        """Yield predicted and measured damages of random choices."""
        generator = np.random.default_rng(0)
        for number in range(self.options.decisions):
            choice = random_choice(table, generator)
            row = Row(setting="random", head=str(number))
            yield from self.damages(row, choice, build(self.model, batches, choice))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the numbers as they come, so that a stopped run leaves those it has."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("name", "task"):
        parser.add_argument(name)
    parser.add_argument("models", nargs="+")
    for name, default in (("draws", 3), ("calibrate", 512), ("measured", 128), ("limit", 0), ("decisions", 30),
                          ("length", 0), ("recover", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--calibration", default="")
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--buckets", type=int, nargs="*", default=())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budgets", nargs="+", default=["parameters=0.8", "parameters=0.6", "parameters=0.4"])
    parser.add_argument("--work", default="runs/shrink")
    options = parser.parse_args(arguments)
    options.budgets = [(name, float(share)) for name, share in (budget.split("=") for budget in options.budgets)]
    rows: list[Row] = []
    for number, path in enumerate(options.models):
        for row in Study(path, number, options).run():
            rows.append(row._replace(seed=str(number) if len(options.models) > 1 else ""))
            print(*rows[-1], flush=True)
            write(f"shrink_{options.name}", rows)


if __name__ == "__main__":
    main()
