"""Checkpoints of a training run: the state, the position in the data, and the config they belong to."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from headjax.core import integrity
from headjax.core.directories import check_target, settle
from headjax.core.errors import CheckpointError, DamagedError, DataError, HeadjaxError
from headjax.core.failures import writing
from headjax.core.files import first_line, parse_json, read_document, write_file
from headjax.core.formats import FIELDS, check_format, stated
from headjax.core.lock import FolderLock
from headjax.core.paths import is_bucket, path_of
from headjax.core.serialize import from_data, to_data
from headjax.mesh.distributed import everyones, is_first, on_first, wait_for_all
from headjax.mesh.mesh import MeshConfig
from headjax.models.model import LAYOUT, Model, load
from headjax.training.config import EXECUTION_FIELDS, TrainConfig, train_config
from headjax.training.state import TrainState, abstract_state

FORMAT = 1
"""Version of a checkpoint's content; a reader refuses a newer one."""

CONFIG = "train_config.json"
"""A workdir's file with the config of the run that it holds."""

COMMITTED = "commit_success.txt"
"""Name of the object by which Orbax tells a complete checkpoint of a bucket."""

SHARED_FROM = 2**20
"""Smallest part of an array, in bytes, that each of several devices with copies of the array writes on its own.

Cutting compiles a program for each shape and device, which the first checkpoint waits for; a smaller array is written
whole, by one device.
"""

SEEN_WITHIN = 5.0
"""Seconds after which a file written by one process must be there for the others."""


class Checkpoints:
    """Checkpoints under `workdir/checkpoints`, written asynchronously, the latest few kept.

    A checkpoint counts only once it is complete, so that a run killed while saving goes on from the one before. Its
    files' checksums are then recorded beside it (`headjax.core.integrity`), and compared before it is restored.
    """

    def __init__(self, workdir: Path, keep: int) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.path = workdir / "checkpoints"
        arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=SHARED_FROM)
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
        with writing(self.path):
            self._manager = ocp.CheckpointManager(
                os.fspath(self.path.absolute()),
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=ocp.checkpoint_managers.LatestN(keep),
                    # Made beside the steps, a folder that fails leaves threads that wait minutes for it.
                    async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                ),
                item_handlers={
                    "state": ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
                    "position": ocp.JsonCheckpointHandler(),
                },
            )
        self._unrecorded: int | None = None
        self._recorder = ThreadPoolExecutor(1)
        self._recording: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._finish()
        finally:
            self._recorder.shutdown()
            with writing(self.path):  # waits for a save that failed, too
                self._manager.close()

    @property
    def latest(self) -> int | None:
        """Step of the last complete checkpoint; None without one."""
        return self._manager.latest_step()

    def describe_latest(self) -> str:
        """Return a clause that names the last complete checkpoint."""
        self._finish()
        step = self.latest
        return "there is no good checkpoint" if step is None else f"the last good checkpoint is {self.path / str(step)}"

    @property
    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, position: dict[str, Any]) -> None:
        """Start writing a checkpoint, unless this step has one."""
        if step == self.latest:
            return
        self._finish()
        args = self._ocp.args
        composite = args.Composite(state=args.PyTreeSave(state), position=args.JsonSave(stated(FORMAT) | position))
        with writing(self.path / str(step)):
            self._manager.save(step, args=composite, force=True)
        self._unrecorded = step

    def record_complete(self) -> None:
        """Begin to record the checksums of the last checkpoint's files once it is complete, in a thread beside.

        Called between steps, so that a run that is killed has the record of the checkpoint that it goes on from.
        """
        if self._unrecorded is None or not self._is_complete(self.path / str(self._unrecorded)):
            return
        if is_first():
            self._recording = self._recorder.submit(integrity.write_record, self.path / str(self._unrecorded))
        self._unrecorded = None

    def _is_complete(self, path: Path) -> bool:
        """Return whether a checkpoint has been written: a folder has its name then, and one of a bucket its marker."""
        if is_bucket(path):
            return not self._manager.is_saving_in_progress() and (path / COMMITTED).is_file()
        return path.is_dir()

    def restore(self, step: int, target: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Return a checkpoint's state, on the target's shardings, and its position in the data.

        Raises:
            DamagedError: a file is not as it was written, or, in a checkpoint without checksums, cannot be restored.
            CheckpointError: intact files that do not fit the target, or a format that this headjax does not read.
        """
        path = self.path / str(step)
        args = self._ocp.args
        with self._compared(path):
            position = self._restore_items(path, position=args.JsonRestore())["position"]
            check_format(position, FORMAT, path)
            places = self._ocp.checkpoint_utils.construct_restore_args(target)
            state = self._restore_items(path, state=args.PyTreeRestore(target, restore_args=places))["state"]
        return state, {name: entry for name, entry in position.items() if name not in FIELDS}

    def _restore_items(self, path: Path, **items: Any) -> Any:
        """Return parts of a checkpoint by name."""
        try:
            return self._manager.restore(int(path.name), args=self._ocp.args.Composite(**items))
        except Exception as error:
            intact = (path / integrity.RECORD).is_file() or jax.process_count() > 1
            kind = CheckpointError if intact else DamagedError
            raise kind(f"{path}: cannot be restored ({first_line(error)})") from None

    def restore_newest(self, target: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Return state and position of the newest intact checkpoint; None without any. All processes call it together.

        Damaged ones that are newer are kept aside, in `checkpoints.damaged`, with a warning that names the damage.

        Raises:
            DamagedError: there are checkpoints, and none is intact.
            CheckpointError: intact files that do not fit the target.
        """
        damaged: list[tuple[int, DamagedError]] = []
        for step in reversed(self.steps):
            try:
                restored = self.restore(step, target)
            except DamagedError as error:
                damaged.append((step, error))
                continue
            for other, damage in damaged:
                aside = self._set_aside(other)
                if is_first():
                    warnings.warn(
                        f"{damage}; going on from step {step}, the damaged one is kept in {aside}", stacklevel=2
                    )
            return restored
        if damaged:
            raise damaged[0][1]
        return None

    @contextlib.contextmanager
    def _compared(self, path: Path) -> Iterator[None]:
        """Compare a checkpoint with its record beside the body, which reads it.

        Of several processes, the first compares before any reads: they go on together, or learn of damage together.
        """
        if jax.process_count() == 1:
            with integrity.checking(path):
                yield
            return
        try:
            on_first(lambda: integrity.check(path))
        except HeadjaxError as error:
            if is_first():
                raise
            raise DamagedError(str(error)) from None
        yield

    def _set_aside(self, step: int) -> Path:
        """Move a checkpoint out of the way and return its new path. All processes call this together."""
        folder = self.path.with_name(f"{self.path.name}.damaged")
        aside = next(path for count in itertools.count() if not (path := folder / f"{step}{'+' * count}").exists())
        wait_for_all("damaged checkpoint found")
        if is_first():
            folder.mkdir(exist_ok=True)
            (self.path / str(step)).rename(aside)
        wait_for_all("damaged checkpoint set aside")
        self._manager.reload()
        return aside

    def _finish(self) -> None:
        """Wait for the checkpoint that is being written, and for its record."""
        with writing(self.path):
            self._manager.wait_until_finished()
        self.record_complete()
        if self._recording is not None:
            recording, self._recording = self._recording, None
            recording.result()


def rank(metrics: Mapping[str, float], headline: str, higher_is_better: bool) -> tuple[float, float]:
    """Return a pair that is larger for better metrics: by the headline, among equals by the loss."""
    value, loss = metrics[headline], metrics.get("loss", 0.0)
    known = (value if higher_is_better else -value) if math.isfinite(value) else -math.inf
    return known, -loss if math.isfinite(loss) else -math.inf


class BestModel:
    """The model of a run's best evaluation so far, a model directory `workdir/best`.

    Attributes:
        step: step of that evaluation; None before the first one.
    """

    def __init__(self, workdir: Path, headline: str = "loss", higher_is_better: bool = False) -> None:
        self._path, self._headline, self._higher_is_better = workdir / "best", headline, higher_is_better
        self.step: int | None = None
        self._rank = (-math.inf, -math.inf)
        settle(self._path)
        if (self._path / "history.json").is_file():
            try:
                made = json.loads(read_document(self._path / "history.json"))[-1]
                self.step, self._rank = made["steps"], rank(made["metrics"], headline, higher_is_better)
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

    Returns:
        the number of steps that the run was begun or last continued for; that of `config` in a new workdir.

    Raises:
        CheckpointError: the workdir holds another config, and the message names the first field that differs; or its
            models' folders hold files that headjax did not write.
        DataError: its record of the config is larger than `headjax.core.limits.DOCUMENT`.
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
    held, given = _computed(_whole(held)), _computed(to_data(config))
    steps = held.get("steps")
    if isinstance(steps, int) and steps > config.steps:
        raise CheckpointError(f"{workdir}: holds a run of {steps} steps, which {config.steps} would shorten")
    if isinstance(steps, int) and steps < config.steps:
        held, given = _without_length(held), _without_length(given)
    differing = _first_difference(held, given, "config")
    if differing is not None:
        raise CheckpointError(f"{workdir}: holds another run; {differing}. Choose another --workdir.")
    return config.steps if steps is None else int(steps)


@contextlib.contextmanager
def hold_workdir(workdir: Path) -> Iterator[FolderLock]:
    """Hold the lock of a workdir, which the first process takes for all. All processes call this together.

    Raises:
        HeadjaxError: another run holds it.
    """
    lock = FolderLock(workdir)
    on_first(lock.acquire)
    try:
        yield lock
    finally:
        lock.release()


def claim_workdir(workdir: Path, config: TrainConfig) -> None:
    """Write the config into the workdir, whose run it is from now on. All processes call it together.

    Raises:
        HeadjaxError: it cannot be written, or a process does not see what the first one wrote.
    """
    content = (json.dumps(to_data(config), indent=2) + "\n").encode()
    on_first(lambda: write_file(workdir / CONFIG, content))
    if jax.process_count() == 1:
        return
    # A name that is new: another host may hold a config of its own, or remember that there was no such file.
    mark = workdir / f".seen-{everyones(secrets.randbits(31))[0]}"
    on_first(lambda: write_file(mark, b""))
    seen = everyones(_appears(mark))
    on_first(lambda: mark.unlink(missing_ok=True))
    if not all(seen):
        blind = ", ".join(str(process) for process, sees in enumerate(seen) if not sees)
        said = f"{workdir}: not the same folder for process {blind} as for process 0"
        raise HeadjaxError(f"{said}; all hosts must share it")


def _appears(path: Path) -> bool:
    """Return whether a file is there in time."""
    end = time.monotonic() + SEEN_WITHIN
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _whole(held: dict[str, Any]) -> dict[str, Any]:
    """Return a config of an earlier headjax with the fields that are new since; as it is where it cannot be read."""
    try:
        return to_data(from_data(TrainConfig, held))
    except HeadjaxError:
        return held


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


def snapshots(workdir: str | Path) -> Iterator[tuple[int, Model]]:
    """Yield (step, model) for every checkpoint that a run's workdir still holds (`keep_checkpoints`), oldest first.

    The models have no tokenizer.

    Args:
        workdir: of `headjax train`.

    Raises:
        CheckpointError: the folder holds no run, or a checkpoint cannot be read.
    """
    workdir = path_of(workdir)
    if not (workdir / CONFIG).is_file():
        raise CheckpointError(f"{workdir}: holds no training run ({CONFIG} is missing)")
    config = train_config(parse_json((workdir / CONFIG).read_bytes(), str(workdir / CONFIG)))
    model = config.architecture()
    optimizer = config.optimizer.build(model.tensors(), config.steps)
    target = abstract_state(model, optimizer, MeshConfig(data=1).build(jax.devices()[:1]))
    with Checkpoints(workdir, config.keep_checkpoints) as checkpoints:
        for step in checkpoints.steps:
            state, _ = checkpoints.restore(step, target)
            yield step, Model(model, state.params)
