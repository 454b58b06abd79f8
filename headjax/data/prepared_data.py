"""The kind of data that `headjax prepare` wrote: `task`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headjax.core.errors import DataError, require
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.loading import Reading, task_data
from headjax.data.roots import candidate_folders, missing
from headjax.data.store import TOKENIZER, Manifest, is_prepared, read_manifest
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import metrics_of
from headjax.tokenizers.tokenizer import Tokenizer


@kind("task")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedData(DataConfig):
    """A task that `headjax prepare` wrote: training examples are read from disk, those to evaluate on are in memory.

    Attributes:
        task: name of the task; empty takes what the folder holds.
        path: its folder; empty looks for `prepared/TASK` under the folder that HEADJAX_DATA names.
        length: tokens of an example, which must be those it was prepared with; 0 takes those.
        size: pixels of an image's side, likewise.
        buckets: lengths that training batches are padded to, besides the longest example's; one compilation each.
        augmentation: what training does to images; none is what is usual for the task.
    """

    task: str = ""
    path: str = ""
    length: int = 0
    size: int = 0
    buckets: tuple[int, ...] = ()
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        require(bool(self.task or self.path), "path", "name a prepared folder, or a task to look for")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        folder, manifest = self.open()
        own = Tokenizer.load(folder / TOKENIZER) if manifest.tokenizer else None
        if own is not None and own.fingerprint != manifest.tokenizer:
            raise DataError(f"{folder / TOKENIZER}: not the vocabulary that the shards were written with")
        if tokenizer is not None and own is not None and tokenizer.fingerprint != own.fingerprint:
            raise DataError(
                f"{folder}: prepared with another vocabulary ({own.vocab_size:,} tokens, {own.fingerprint}) than "
                f"the model's ({tokenizer.vocab_size:,} tokens, {tokenizer.fingerprint}); prepare it with --tokenizer"
            )
        info = {
            "text": str(folder),
            "task": manifest.task,
            "tokenizer": manifest.tokenizer,
            "data": manifest.fingerprint,
        }
        reading = Reading(metrics_of(manifest.task), self.buckets, self.augmentation)
        return task_data(manifest.form, own, manifest.stored(folder), info, reading)

    def open(self) -> tuple[Path, Manifest]:
        """Return the folder and its manifest.

        Raises:
            DataError: there is none, or it is of another task or length.
        """
        names = (f"prepared/{self.task}",)
        for folder in candidate_folders(self.path, names):
            if not is_prepared(folder) and not self.path:
                continue
            manifest = read_manifest(folder)
            if self.task and manifest.task != self.task:
                raise DataError(f"{folder}: holds {manifest.task}, not {self.task}")
            for field in ("length", "size"):
                wanted, found = getattr(self, field), getattr(manifest.form, field, 0)
                if wanted and wanted != found:
                    raise DataError(f"{folder}: prepared with {field} {found}, config.data.{field} is {wanted}")
            return folder, manifest
        if self.path:
            raise DataError(f"{self.path}: no such folder")
        raise missing(self.task, self.path, names, f"what `headjax prepare {self.task}` writes")
