"""Checkpoints of a training run: the state, and the position in the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from headjax.core.errors import CheckpointError
from headjax.storage.failures import writing
from headjax.storage.files import first_line
from headjax.storage.paths import absolute, is_plain
from headjax.training.step import TrainState

SHARED_FROM = 2**20
"""Smallest part of an array, in bytes, that each of several devices with copies of the array writes on its own.

Cutting compiles a program for each shape and device, which the first checkpoint waits for; a smaller array is written
whole, by one device.
"""


class Checkpoints:
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
        with writing(self.path):
            self._manager = ocp.CheckpointManager(
                str(absolute(self.path)),
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=ocp.checkpoint_managers.LatestN(keep),
                    save_interval_steps=1,
                    # Made beside the steps, a folder that fails leaves threads that wait minutes for it.
                    async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                ),
                item_handlers={
                    "state": ocp.PyTreeCheckpointHandler(use_ocdbt=is_plain(self.path), type_handler_registry=registry),
                    "position": ocp.JsonCheckpointHandler(),
                },
            )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *raised: object) -> None:
        with writing(self.path):  # waits for a save that failed, too
            self._manager.close()

    @property
    def latest(self) -> int | None:
        """Step of the last complete checkpoint; None without one."""
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
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
            path = self.path / str(step)
            raise CheckpointError(
                f"{path}: cannot be restored ({first_line(error)}); without it the run goes on from the one before"
            ) from None
        return restored["state"], restored["position"]
