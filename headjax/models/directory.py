"""Model directories: `config.json`, `params/` (Orbax), `tokenizer/` and `history.json`."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from headjax.core import tensors as declared
from headjax.core.errors import CheckpointError
from headjax.core.files import check_sizes, write_sizes
from headjax.core.serialize import from_data, to_data
from headjax.models.base import Model, ModelConfig
from headjax.models.tasks.class_names import remembered_names, with_class_names
from headjax.version import __version__

FORMAT = 1
"""Version of the layout below; a reader refuses a newer one."""


def save(model: Model, path: str | Path) -> None:
    """Writes a model directory; it appears under its name only once it is complete.

    Among several processes, the one that calls this writes, without the others; it has the parameters whole.

    Raises:
        CheckpointError: the path exists and is not a model directory.
        ParameterError: the parameters are not those the config declares, or not finite.
    """
    import orbax.checkpoint as ocp

    declared.check(model.config.tensors(), model.params)
    declared.require_finite(model.params)
    config = {"format": FORMAT, "headjax": __version__, "model": to_data(model.config)}

    def write(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "history.json").write_text(json.dumps(list(model.history), indent=2) + "\n")
        if model.tokenizer is not None:
            model.tokenizer.save(folder / "tokenizer")
        # Trained weights hardly compress, and arrays written one after another need little memory besides themselves.
        largest = max((array.nbytes for array in jax.tree.leaves(model.params)), default=0)
        alone = _this_process_alone()
        params = jax.device_get(model.params) if jax.process_count() > 1 else model.params
        handler = ocp.PyTreeCheckpointHandler(
            use_compression=False, save_concurrent_gb=max(0.1, 1.1e-9 * largest), multiprocessing_options=alone
        )
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
            checkpointer.save(folder.absolute() / "params", args=ocp.args.PyTreeSave(params))
        write_sizes(folder / "params")

    write_directory(Path(path), write, marker="history.json")


def load(path: str | Path, *, mesh: Mesh | None = None) -> Model:
    """Reads a model directory, strictly.

    Args:
        path: the directory.
        mesh: place the parameters on this mesh by the sharding rules; None is one device of this process.

    Raises:
        CheckpointError: not a model directory, or files that cannot be read.
        ConfigError: a config that describes no model.
        ParameterError: a missing, extra or wrongly shaped array; the message names its path.
    """
    folder = Path(path)
    config = load_config(folder)
    history = _read_json(folder / "history.json")
    config = with_class_names(config, remembered_names(history))
    tokenizer = None
    if (folder / "tokenizer").is_dir():
        from headjax.tokenizers.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(folder / "tokenizer")
    return Model(config, _load_params(config, folder / "params", mesh), tuple(history), tokenizer)


def load_config(path: str | Path) -> ModelConfig:
    """The config of a model directory, without its parameters.

    Raises:
        CheckpointError: not a model directory, or one of a newer layout.
        ConfigError: a config that describes no model.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        hint = f"; do you mean {folder / 'model'}?" if (folder / "model" / "config.json").is_file() else ""
        raise CheckpointError(f"{folder}: not a model directory (it has no config.json){hint}")
    data = _read_json(folder / "config.json")
    if not isinstance(data, dict) or "model" not in data:
        raise CheckpointError(f"{folder / 'config.json'}: not a headjax config (it has no field 'model')")
    if data.get("format", 0) > FORMAT:
        raise CheckpointError(f"{folder / 'config.json'}: format {data['format']} is newer than this headjax reads")
    return from_data(ModelConfig, data["model"], str(folder / "config.json"))  # type: ignore[type-abstract]


def write_directory(path: Path, write: Callable[[Path], None], marker: str) -> None:
    """Writes a directory beside its place and moves it there when complete.

    Args:
        path: where it goes; an older one that holds `marker` is replaced.
        write: fills the folder it is given.
        marker: a file that every such directory holds.
    """
    if path.exists() and not (path / marker).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path}: exists and holds something else (no {marker})")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        staging.chmod(0o755)
        write(staging)
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _this_process_alone() -> Any:
    """Orbax's options for a process that waits for no other."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    this = jax.process_index()
    return ocp.options.MultiprocessingOptions(this, {this}, barrier_sync_key_prefix=f"model{this}")


def _load_params(config: ModelConfig, path: Path, mesh: Mesh | None) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    from headjax.mesh.mesh import MeshConfig
    from headjax.mesh.rules import shardings

    if not path.is_dir():
        raise CheckpointError(f"{path}: missing")
    check_sizes(path)
    tensors = config.tensors()
    together = ocp.options.MultiprocessingOptions() if mesh is not None else _this_process_alone()
    mesh = MeshConfig().build(jax.local_devices()[:1]) if mesh is None else mesh
    with ocp.StandardCheckpointer(multiprocessing_options=together) as checkpointer:
        try:
            stored = checkpointer.metadata(path.absolute()).item_metadata.tree
        except Exception as error:
            raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
        declared.check(tensors, stored)
        targets = jax.tree.map(
            lambda entry, place: jax.ShapeDtypeStruct(entry.shape, entry.dtype, sharding=place),
            stored,
            shardings(tensors, mesh),
        )
        try:
            return checkpointer.restore(path.absolute(), targets)
        except Exception as error:
            raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None


def first_line(error: BaseException) -> str:
    """The first line of another library's error, cut to a readable length."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
