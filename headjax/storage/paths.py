"""Paths of users: folders of this machine, copies of repositories of the Hugging Face Hub, buckets (`etils.epath`)."""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from headjax.core.errors import DataError, HeadjaxError, in_line

SCHEME = "gs://"  # beginning of the address of a bucket of Google Cloud Storage
HUB = "hf://"  # beginning of the address of a repository on the Hugging Face Hub

OF_MODELS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""Files of a model that are read: its config, weights, tokenizer and chat templates."""


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as an object with the methods of `pathlib.Path`."""
    text = os.fspath(path)
    if "://" not in text:
        return Path(text)
    if not text.startswith(SCHEME) or not text.removeprefix(SCHEME).split("/")[0]:
        raise HeadjaxError(f"{text}: not a path that headjax reads or writes; give a folder or {SCHEME}BUCKET/NAME")
    try:
        import fsspec
        import gcsfs  # noqa: F401
        from etils.epath import gpath
    except ImportError as error:
        raise HeadjaxError(f"{text}: buckets need {error.name}; pip install 'headjax[gcs]'") from None
    if "EPATH_USE_TF" not in os.environ:
        # etils would reach buckets by TensorFlow where that is installed, which takes long to import. It may have
        # decided so before.
        os.environ["EPATH_USE_TF"] = "false"
        gpath._is_tf_installed.cache_clear()
    # Other processes and TensorStore write to a bucket, too: a remembered listing would be wrong.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return cast(Path, gpath.PosixGPath(text))


def source_of(path: str | os.PathLike[str]) -> Path:
    """Return the path to read: that of `path_of`, or of the downloaded copy of `hf://[datasets/]USER/NAME/FILE`."""
    text = os.fspath(path)
    return _downloaded(text) if text.startswith(HUB) else path_of(path).expanduser()


@functools.cache
def _downloaded(address: str) -> Path:
    """Return the place of files of the Hub in its cache on this machine, to which they are downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    match = re.fullmatch(rf"{HUB}(datasets/|(?!datasets/))([^/@]+/[^/@]+)(?:@([^/]+))?/*(.*?)/*", address)
    if match is None:
        expected = f"{HUB}USER/NAME or {HUB}datasets/USER/NAME/FILE (NAME@REVISION for another revision than main)"
        raise DataError(f"{address}: not a repository on the Hub; expected {expected}")
    kind, name, revision, inside = "dataset" if match[1] else "model", match[2], unquote(match[3] or ""), match[4]
    # The Hub's patterns match across folders: a file, all of a folder, and files of one name for several languages.
    within = [f"{inside.replace('**/', '*')}{rest}" for rest in ("", "/*", ".*")]
    patterns = within if inside else list(OF_MODELS) if kind == "model" else None
    disable_progress_bars()
    try:
        endpoint = os.environ.get("HF_ENDPOINT")
        folder = snapshot_download(
            name, repo_type=kind, revision=revision or None, allow_patterns=patterns, endpoint=endpoint
        )
    except Exception as error:
        raise DataError(f"{address}: cannot be downloaded ({first_line(error)}); HF_TOKEN holds your token") from None
    place = Path(folder) / inside
    paths = (path for pattern in (place, place.parent / f"{glob.escape(place.name)}.*") for path in matches(pattern))
    if not place.exists() and next(paths, None) is None:
        raise DataError(f"{address}: no such file in the repository")
    return place


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, cut to 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def is_plain(path: Path) -> bool:
    """Return whether a path is its own only match as a pattern: Orbax 0.12 looks for merged arrays by `glob(path)`."""
    return is_bucket(path) or not glob.has_magic(str(path.absolute()))


def matches(pattern: Path) -> Iterator[Path]:
    """Yield the files and folders that match a pattern; of its folders those that exist are taken by their names."""
    if is_bucket(pattern):
        import gcsfs

        return (path_of(SCHEME + name) for name in gcsfs.GCSFileSystem().glob(str(pattern)))
    folder = next(parent for parent in pattern.parents if parent.exists())
    names = glob.glob(str(pattern.relative_to(folder)), root_dir=folder, recursive=True)
    return (folder / name for name in names)


def is_bucket(path: object) -> bool:
    """Return whether a path of `path_of` lies in a bucket."""
    return not isinstance(path, Path) and str(path).startswith(SCHEME)


def absolute(path: Path) -> Path:
    """Return a path from its root; an address is one, which etils would put below the current folder."""
    return path if is_bucket(path) else path.absolute()


def size_of(file: Path) -> int:
    """Return the size of a file in bytes."""
    stat: Any = file.stat()
    size: int = stat.length if is_bucket(file) else stat.st_size
    return size


def check_folder(path: str | os.PathLike[str]) -> None:
    """Check, before any work is done for it, that a path is a folder or can become one."""
    place = path_of(path)
    check_name(path)
    if isinstance(place, Path) and place.is_symlink() and not place.exists():
        raise HeadjaxError(f"{path}: a link that leads to nothing")
    _check_above(path, place)


def check_name(path: str | os.PathLike[str]) -> None:
    """Check that arrays written below a path can be read again: Orbax finds none below a name with a backslash."""
    if "\\" in os.fspath(path):
        raise HeadjaxError(f"{in_line(os.fspath(path))}: a folder of arrays has no backslash in its path")


def check_file(path: str | os.PathLike[str]) -> None:
    """Check, before any work is done for it, that a file, device or pipe of this path can be written."""
    place = path_of(path)
    if place.is_dir():
        raise HeadjaxError(f"{path}: a folder, where a file is to be written")
    if place.is_file() or not place.exists():
        _check_above(path, place.parent if is_bucket(place) else Path(os.path.realpath(place)).parent)


def _check_above(path: str | os.PathLike[str], place: Path) -> None:
    """Check the nearest folder that exists, from a place upwards; a bucket by writing an object."""
    if is_bucket(place):
        probe = place / f".headjax-probe-{uuid.uuid4().hex}"  # of this process alone: others begin together with it
        try:
            probe.write_bytes(b"")
            probe.unlink()
        except Exception as error:  # the client of buckets has errors of its own
            raise HeadjaxError(f"{path}: cannot be written ({str(error).splitlines()[0][:200]})") from None
        return
    there = next(each for each in (place.absolute(), *place.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        raise HeadjaxError(f"{path}: {there} exists and is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise HeadjaxError(f"{path}: no permission to write to {there}")


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, relative to it, sorted."""
    if is_bucket(folder):
        import gcsfs

        above = str(folder).removeprefix(SCHEME).rstrip("/") + "/"
        return sorted(name.removeprefix(above) for name in gcsfs.GCSFileSystem().find(above))
    files = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted(file.relative_to(folder).as_posix() for file in files)


def copy_file(file: Path, target: Path) -> None:
    """Copy a file to a path; either may lie in a bucket."""
    with file.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 2**24)


def remove_tree(path: Path) -> None:
    """Delete a folder and all below it, as far as that succeeds."""
    if not is_bucket(path):
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        path.rmtree()  # type: ignore[attr-defined]
