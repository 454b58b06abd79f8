"""Checkpoints of a training run: the state, and the position in the data."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from headjax.core.errors import CheckpointError, DamagedError, HeadjaxError
from headjax.mesh.distributed import is_first, on_first, wait_for_all
from headjax.storage import integrity
from headjax.storage.failures import writing
from headjax.storage.files import DELETED, first_line
from headjax.storage.formats import FIELDS, check_format, stated
from headjax.storage.paths import is_bucket
from headjax.training.state import TrainState

FORMAT = 1
"""Version of a checkpoint's content; a reader refuses a newer one."""

FOLDER = "checkpoints"
"""Folder of a workdir that holds its checkpoints."""

COMMITTED = "commit_success.txt"
"""Name of the object by which Orbax recognises a complete checkpoint of a bucket."""

SHARED_FROM = 2**20
"""Smallest part of an array, in bytes, that each of several devices with copies of the array writes on its own.

Cutting compiles a program for each shape and device, which the first checkpoint waits for; a smaller array is written
whole, by one device.
"""


class Checkpoints:
    """Checkpoints under `workdir/checkpoints`, written asynchronously, the latest few kept.

    A checkpoint counts only once it is complete, so that a run killed while saving continues from the one before. Its
    files' checksums are then recorded beside it (`headjax.storage.integrity`), and compared before it is restored.
    """

    def __init__(self, workdir: Path, keep: int, *, read_only: bool = False) -> None:
        """Open the checkpoints of a run.

        Args:
            workdir: of the run.
            keep: number of the latest ones that are kept.
            read_only: write and delete nothing: the run may be in progress, in another process.
        """
        import orbax.checkpoint as ocp

        self._ocp, self._read_only = ocp, read_only
        self.path = workdir / FOLDER
        arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=SHARED_FROM)
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
        with writing(self.path):
            self._manager = ocp.CheckpointManager(
                os.fspath(self.path.absolute()),
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=ocp.checkpoint_managers.LatestN(keep),
                    read_only=read_only,
                    create=not read_only,
                    save_interval_steps=0 if read_only else 1,
                    # A run that ends while one is deleted leaves none in parts. A bucket has no such moves.
                    todelete_subdir=None if read_only else DELETED,
                    # Made beside the steps, a folder that fails leaves threads that wait minutes for it.
                    async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                ),
                item_handlers={
                    "state": ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
                    "position": ocp.JsonCheckpointHandler(),
                },
            )
        self._unrecorded: int | None = None
        self._unswept = not read_only
        self._recorder = ThreadPoolExecutor(1)
        self._recording: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._finish()
        finally:
            self._recorder.shutdown()
            with writing(self.path):  # waits for a save that failed, too
                self._manager.close()
            if is_first() and not is_bucket(self.path) and not self._read_only:
                shutil.rmtree(self.path / DELETED, ignore_errors=True)

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
        self._unswept = True
        args = self._ocp.args
        composite = args.Composite(state=args.PyTreeSave(state), position=args.JsonSave(stated(FORMAT) | position))
        with writing(self.path / str(step)):
            self._manager.save(step, args=composite, force=True)
        self._unrecorded = step

    def discard(self, step: int) -> None:
        """Delete the checkpoint of a step, if it has one. All processes call this together."""
        self._finish()
        if step in self.steps:
            with writing(self.path / str(step)):
                self._manager.delete(step)

    def record_complete(self) -> None:
        """Begin to record the checksums of the last checkpoint's files once it is complete, in a thread beside.

        Called between steps, so that a killed run has the record of the checkpoint that it continues from. The
        thread also deletes the checkpoints that this one replaces.
        """
        if self._unrecorded is not None and self._is_complete(self.path / str(self._unrecorded)):
            if is_first():
                self._recording = self._recorder.submit(integrity.write_record, self.path / str(self._unrecorded))
            self._unrecorded = None
        if self._unswept and not self._manager.is_saving_in_progress():
            if is_first() and not is_bucket(self.path):
                self._recorder.submit(self._sweep)
            self._unswept = False

    def _sweep(self) -> None:
        """Delete the checkpoints that were moved out of the way; a file that cannot be deleted is tried again later."""
        for path in (self.path / DELETED).glob("*"):
            shutil.rmtree(path, ignore_errors=True)

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

        Of several processes, the first compares before any reads: they continue together, or learn of damage together.
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
