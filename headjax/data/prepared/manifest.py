"""What a folder of prepared shards says of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.files import write_file
from headjax.core.serialize import dumps, from_data
from headjax.data.prepared.form import Form
from headjax.data.prepared.shards import ShardRecords

MANIFEST = "manifest.json"
UNFINISHED = "manifest.partial.json"
TOKENIZER = "tokenizer"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard.

    Attributes:
        name: its file.
        split: `train` or `validation`.
        examples: its records.
        rows: fingerprint of the rows it was made of.
        counts: what its form counted.
    """

    name: str
    split: str
    examples: int
    rows: str
    counts: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A prepared task.

    Attributes:
        task: its name.
        form: how rows became records.
        source: where the rows come from.
        tokenizer: fingerprint of the vocabulary; empty for a task without text.
        shard_bytes: bytes of a shard's rows, about.
        seed: of what was drawn at random.
        versions: of the programs that wrote it.
        shards: the shards in order.
        format: of the folder.
    """

    task: str
    form: Form
    source: str
    tokenizer: str
    shard_bytes: int
    seed: int
    versions: Mapping[str, str]
    shards: tuple[Shard, ...] = ()
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides what the examples are."""
        data = [dumps(self.form), self.tokenizer, self.seed, [[shard.name, shard.rows] for shard in self.shards]]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]

    def of(self, split: str) -> list[Shard]:
        """The shards of a split."""
        return [shard for shard in self.shards if shard.split == split]

    def counts(self, split: str) -> dict[str, Any]:
        """Examples and what the form counted, over a split, with words and bytes per token where they are known."""
        total: dict[str, Any] = {"examples": 0}
        for shard in self.of(split):
            total["examples"] += shard.examples
            for name, count in shard.counts.items():
                total[name] = total.get(name, 0) + count
        for name in ("words", "bytes"):
            if name in total and total.get("tokens"):
                total[f"{name}_per_token"] = total[name] / total["tokens"]
        return total

    def records(self, folder: Path, split: str) -> ShardRecords:
        """The records of a split.

        Raises:
            DataError: a shard is missing or damaged.
        """
        shards = self.of(split)
        return ShardRecords([folder / shard.name for shard in shards], [shard.examples for shard in shards])

    def write(self, folder: Path, name: str = MANIFEST) -> None:
        """Writes it into its folder."""
        write_file(folder / name, dumps(self).encode())


def is_prepared(path: str | Path) -> bool:
    """Whether a path is a folder of prepared shards, finished or not."""
    folder = Path(path).expanduser()
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises:
        DataError: there is none, it is not finished, or it is broken.
    """
    if not (folder / MANIFEST).is_file():
        if (folder / UNFINISHED).is_file():
            raise DataError(f"{folder}: not prepared to the end; the same `headjax prepare` goes on")
        raise DataError(f"{folder}: no {MANIFEST}, so it is no folder that `headjax prepare` wrote")
    return load_manifest(folder / MANIFEST)


def load_manifest(file: Path) -> Manifest:
    """A manifest, finished or not.

    Raises:
        DataError: it is broken, or of a later format.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise DataError(f"{file}: format {data.get('format')}, this headjax reads {FORMAT}")
        return from_data(Manifest, data, "manifest")
    except DataError:
        raise
    except (OSError, ValueError, AttributeError, HeadjaxError) as error:
        raise DataError(f"{file}: broken: {' '.join(str(error).split())}") from None
