"""A training run's folder: whose run it is, its checkpoints, and the best model so far."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from headjax.core.errors import CheckpointError, DataError, HeadjaxError
from headjax.core.serialize import dumps, to_data
from headjax.evaluation.measures import Measure
from headjax.mesh.distributed import everyones, is_first, on_first, wait_for_all
from headjax.models.directory import LAYOUT
from headjax.models.model import Model, load
from headjax.storage.directories import check_target
from headjax.storage.files import first_line, parse_json, write_file, writing
from headjax.storage.paths import absolute, is_plain
from headjax.training.config import EXECUTION_FIELDS, TrainConfig
from headjax.training.step import TrainState

# Smallest part of an array, in bytes, that each of several devices with copies of the array writes on its own. Cutting
# compiles a program for each shape and device, which the first checkpoint waits for.
SHARED_FROM = 2**20


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """Checkpoints under `workdir/checkpoints`, written asynchronously by Orbax, the latest few kept.

    A checkpoint counts only once it is complete, so that a run killed while saving continues from the one before.
    """

    def __init__(self, workdir: Path, keep: int) -> None:
        """Open the checkpoints of a run."""
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.path = workdir / "checkpoints"
        arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=SHARED_FROM)
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
        kept = ocp.checkpoint_managers.LatestN(keep)
        # Made beside the steps, a folder that fails leaves threads that wait minutes for it.
        folders = ocp.AsyncOptions(create_directories_asynchronously=False)
        options = ocp.CheckpointManagerOptions(preservation_policy=kept, save_interval_steps=1, async_options=folders)
        with writing(self.path):
            state = ocp.PyTreeCheckpointHandler(use_ocdbt=is_plain(self.path), type_handler_registry=registry)
            handlers = {"state": state, "position": ocp.JsonCheckpointHandler()}
            self._manager = ocp.CheckpointManager(str(absolute(self.path)), options=options, item_handlers=handlers)

    def __exit__(self, *raised: object) -> None:
        with writing(self.path):  # waits for a save that failed, too
            self._manager.close()

    @property
    def latest(self) -> int | None:
        """Step of the last complete checkpoint; None without one."""
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def wait(self) -> None:
        with writing(self.path):
            self._manager.wait_until_finished()

    def save(self, step: int, state: TrainState, position: dict[str, Any]) -> None:
        """Start writing a checkpoint, unless this step has one."""
        if step == self.latest:
            return
        args = self._ocp.args
        composite = args.Composite(state=args.PyTreeSave(state), position=args.JsonSave(position))
        with writing(self.path / str(step)):
            self._manager.save(step, args=composite, force=True)

    def discard(self, step: int) -> None:
        """Delete the checkpoint of a step, if it has one. All processes call this together."""
        self.wait()
        if step in self.steps:
            with writing(self.path / str(step)):
                self._manager.delete(step)

    def restore(self, step: int | None, target: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Return a checkpoint's state, on the target's shardings, and its position. All processes call it together."""
        args = self._ocp.args
        places = self._ocp.checkpoint_utils.construct_restore_args(target)
        parts = args.Composite(state=args.PyTreeRestore(target, restore_args=places), position=args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=parts)
        except Exception as error:
            reason = f"cannot be restored ({first_line(error)})"
            path, otherwise = self.path / str(step), "without it the run goes on from the one before"
            raise CheckpointError(f"{path}: {reason}; {otherwise}") from None
        return restored["state"], restored["position"]


CONFIG = "train_config.json"
SEEN_WITHIN = 5.0  # seconds after which a file written by one process must be there for the others


class BestModel:
    """The model of a run's best evaluation so far, by its measure or the loss: a model directory `workdir/best`."""

    def __init__(self, workdir: Path, measure: Measure | None) -> None:
        self._path, self._primary_metric, self._higher_is_better = workdir / "best", "loss", False
        if measure is not None:
            self._primary_metric, self._higher_is_better = measure.primary_metric, measure.higher_is_better
        self._rank: tuple[float, float] | None = None
        if self._path.exists():
            self._rank = self._rank_of(self.load().history[-1]["metrics"])

    def _rank_of(self, metrics: Mapping[str, float | None]) -> tuple[float, float]:
        """Return a pair that is larger for better metrics: by the primary one, then by the loss; None is no number."""
        both = metrics[self._primary_metric], metrics.get("loss", 0.0)
        number, loss = (math.nan if each is None else each for each in both)
        value = number if self._higher_is_better else -number
        return value if math.isfinite(value) else -math.inf, -loss if math.isfinite(loss) else -math.inf

    def offer(self, metrics: Mapping[str, float], model: Callable[[], Model]) -> None:
        """Keep the model of an evaluation that is better than those before it. All processes call this together."""
        offered = self._rank_of(metrics)
        if self._rank is not None and offered <= self._rank:
            return
        candidate = model()
        if is_first():
            candidate.save(self._path)
        wait_for_all("best model saved")
        self._rank = offered

    def load(self) -> Model:
        return load(self._path)


def check_workdir(workdir: Path, config: TrainConfig) -> None:
    """Check that a workdir is new or holds this run, maybe with fewer steps; write nothing.

    A run with more steps than the workdir's extends it: then its learning-rate schedule may be another one, too.
    """
    for name in ("best", "model"):
        check_target(workdir / name, LAYOUT)
    path = workdir / CONFIG
    if not path.exists():
        return
    try:
        existing, new = _computed(parse_json(path.read_bytes(), str(path))), _computed(to_data(config))
    except DataError as error:
        raise CheckpointError(str(error)) from None
    steps = existing.get("config.steps")
    steps = steps if isinstance(steps, int) else config.steps
    if steps > config.steps:
        raise CheckpointError(f"{workdir}: holds a run of {steps} steps, which {config.steps} would shorten.")
    may_differ = ("config.steps", "config.optimizer.schedule.") if steps < config.steps else ()
    for field in sorted(existing.keys() | new.keys()):
        there, here = existing.get(field), new.get(field)
        if there != here and not field.startswith(may_differ):
            difference = f"{field} is {json.dumps(there)} there and {json.dumps(here)} here"
            raise CheckpointError(f"{workdir}: holds another run; {difference}. Choose another --workdir.")


def _computed(data: Any) -> dict[str, Any]:
    """Return the fields of a config that a run's results depend on, by path."""
    prefixes = tuple(f"config.{field}." for field in EXECUTION_FIELDS)
    fields = flatten_dict({"config": data}, sep=".").items()
    return {path: value for path, value in fields if not f"{path}.".startswith(prefixes)}


def claim_workdir(workdir: Path, config: TrainConfig) -> None:
    """Write the config into a workdir that is held. All processes call it together.

    Raises `HeadjaxError` where some process sees another folder under the workdir's name.
    """

    def claim() -> None:
        check_workdir(workdir, config)
        write_file(workdir / CONFIG, dumps(config).encode())

    on_first(claim)
    if jax.process_count() == 1:
        return
    # A name that is new: another host may hold a config of its own, or remember that there was no such file.
    mark = workdir / f".seen-{everyones(secrets.randbits(31))[0]}"
    on_first(lambda: write_file(mark, b""))
    end = time.monotonic() + SEEN_WITHIN
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.1)
    seen = everyones(mark.exists())
    on_first(lambda: mark.unlink(missing_ok=True))
    if not all(seen):
        blind = ", ".join(str(process) for process, sees in enumerate(seen) if not sees)
        message = f"{workdir}: not the same folder for process {blind} as for process 0"
        raise HeadjaxError(f"{message}; all hosts must share it")
