"""A training run's folder: whose run it is, who holds it, and the best model so far.

`headjax.training.checkpoints` has the state that a run continues from.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from headjax.core.errors import CheckpointError, DataError, HeadjaxError
from headjax.core.serialize import to_data
from headjax.mesh.distributed import everyones, is_first, on_first, wait_for_all
from headjax.models.directory import LAYOUT
from headjax.models.model import Model, load
from headjax.storage.directories import check_target
from headjax.storage.files import first_line, read_document, write_file
from headjax.storage.lock import hold
from headjax.training.config import EXECUTION_FIELDS, TrainConfig

CONFIG = "train_config.json"
"""A workdir's file with the config of the run that it holds."""

SEEN_WITHIN = 5.0
"""Seconds after which a file written by one process must be there for the others."""


def rank(metrics: Mapping[str, float], headline: str, higher_is_better: bool) -> tuple[float, float]:
    """Return a pair that is larger for better metrics: by the headline, among equals by the loss."""
    value, loss = metrics[headline], metrics.get("loss", 0.0)
    known = (value if higher_is_better else -value) if math.isfinite(value) else -math.inf
    return known, -loss if math.isfinite(loss) else -math.inf


class BestModel:
    """The model of a run's best evaluation so far, a model directory `workdir/best`."""

    def __init__(self, workdir: Path, headline: str = "loss", higher_is_better: bool = False) -> None:
        self._path, self._headline, self._higher_is_better = workdir / "best", headline, higher_is_better
        self.step: int | None = None
        self._rank = (-math.inf, -math.inf)
        if (self._path / "history.json").is_file():
            try:
                made = json.loads(read_document(self._path / "history.json"))[-1]
                metrics = {name: math.nan if value is None else value for name, value in made["metrics"].items()}
                self.step, self._rank = made["steps"], rank(metrics, headline, higher_is_better)
            except DataError:
                raise
            except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
                raise CheckpointError(f"{self._path / 'history.json'}: damaged, not the history of a run") from None

    def offer(self, step: int, metrics: Mapping[str, float], model: Callable[[], Model]) -> None:
        """Keep the model of an evaluation that is better than those before it. All processes call this together."""
        offered = rank(metrics, self._headline, self._higher_is_better)
        if self.step is not None and offered <= self._rank:
            return
        made = model()
        if is_first():
            made.save(self._path)
        wait_for_all("best model saved")
        self.step, self._rank = step, offered

    def load(self) -> Model:
        """Return the model that is kept."""
        return load(self._path)


def check_workdir(workdir: Path, config: TrainConfig) -> int:
    """Check that a workdir is new or holds this run, maybe with fewer steps; write nothing.

    A run with more steps than the workdir's extends it: then its learning-rate schedule may be another one, too.
    """
    for name in ("best", "model"):
        check_target(workdir / name, LAYOUT)
    path = workdir / CONFIG
    if not path.exists():
        return config.steps
    try:
        held = json.loads(read_document(path))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
    if not isinstance(held, dict):
        raise CheckpointError(f"{path}: cannot be read (not an object)")
    held, given = _computed(held), _computed(to_data(config))
    steps = held.get("steps")
    if isinstance(steps, int) and steps > config.steps:
        raise CheckpointError(f"{workdir}: holds a run of {steps} steps, which {config.steps} would shorten.")
    if isinstance(steps, int) and steps < config.steps:
        held, given = _without_length(held), _without_length(given)
    differing = _first_difference(held, given, "config")
    if differing is not None:
        raise CheckpointError(f"{workdir}: holds another run; {differing}. Choose another --workdir.")
    return config.steps if steps is None else int(steps)


@contextlib.contextmanager
def hold_workdir(workdir: Path) -> Iterator[None]:
    """Hold the lock of a workdir, which the first process takes for all. All processes call this together."""
    with contextlib.ExitStack() as held:
        on_first(lambda: held.enter_context(hold(workdir)))
        yield


def claim_workdir(workdir: Path, config: TrainConfig) -> int:
    """Write the config into a workdir that is held, whose run it is from now on. All processes call it together."""
    held = [config.steps]

    def claim() -> None:
        held[0] = check_workdir(workdir, config)
        write_file(workdir / CONFIG, (json.dumps(to_data(config), indent=2) + "\n").encode())

    on_first(claim)
    if jax.process_count() == 1:
        return held[0]
    # A name that is new: another host may hold a config of its own, or remember that there was no such file.
    mark = workdir / f".seen-{everyones(secrets.randbits(31))[0]}"
    on_first(lambda: write_file(mark, b""))
    seen = everyones(_appears(mark))
    on_first(lambda: mark.unlink(missing_ok=True))
    if not all(seen):
        blind = ", ".join(str(process) for process, sees in enumerate(seen) if not sees)
        said = f"{workdir}: not the same folder for process {blind} as for process 0"
        raise HeadjaxError(f"{said}; all hosts must share it")
    return everyones(held[0])[0]


def _appears(path: Path) -> bool:
    """Return whether a file is there in time."""
    end = time.monotonic() + SEEN_WITHIN
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _computed(data: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the part of a config that a run's results depend on."""
    return {
        name: _computed(entry, f"{path}{name}.") if isinstance(entry, dict) else entry
        for name, entry in data.items()
        if f"{path}{name}" not in EXECUTION_FIELDS
    }


def _without_length(data: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the fields that may differ when a run is extended: `steps`, and the schedule."""
    optimizer = data.get("optimizer")
    kept = {name: entry for name, entry in data.items() if name != "steps"}
    if isinstance(optimizer, dict):
        kept["optimizer"] = {name: entry for name, entry in optimizer.items() if name != "schedule"}
    return kept


def _first_difference(held: Any, given: Any, path: str) -> str | None:
    if isinstance(held, dict) and isinstance(given, dict):
        for name in sorted(held.keys() | given.keys()):
            found = _first_difference(held.get(name), given.get(name), f"{path}.{name}")
            if found is not None:
                return found
        return None
    return None if held == given else f"{path} is {json.dumps(held)} there and {json.dumps(given)} here"
