"""The Hugging Face Hub: models and data sets by their addresses, read from its cache on this machine."""

from __future__ import annotations

import functools
import glob
import os
import re
from pathlib import Path
from urllib.parse import unquote

from headjax.core.errors import DataError
from headjax.storage.files import first_line
from headjax.storage.paths import matches, path_of

SCHEME = "hf://"  # beginning of the address of a repository on the Hub

OF_MODELS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""Files of a model that are read: its config, weights, tokenizer and chat templates."""


def source_of(path: str | os.PathLike[str]) -> Path:
    """Return the path to read: that of `path_of`, or of the downloaded copy of `hf://[datasets/]USER/NAME/FILE`."""
    text = os.fspath(path)
    return _downloaded(text) if text.startswith(SCHEME) else path_of(path).expanduser()


@functools.cache
def _downloaded(address: str) -> Path:
    """Return the place of files of the Hub in its cache on this machine, to which they are downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    match = re.fullmatch(rf"{SCHEME}(datasets/|(?!datasets/))([^/@]+/[^/@]+)(?:@([^/]+))?/*(.*?)/*", address)
    if match is None:
        expected = (
            f"{SCHEME}USER/NAME or {SCHEME}datasets/USER/NAME/FILE (NAME@REVISION for another revision than main)"
        )
        raise DataError(f"{address}: not a repository on the Hub; expected {expected}")
    kind, name, revision, inside = match[1], match[2], unquote(match[3] or "") or None, match[4]
    # The Hub's patterns match across folders: a file, all of a folder, and files of one name for several languages.
    within = [f"{inside.replace('**/', '*')}{rest}" for rest in ("", "/*", ".*")]
    patterns = within if inside else None if kind else list(OF_MODELS)
    disable_progress_bars()
    try:
        folder = snapshot_download(
            name,
            repo_type="dataset" if kind else "model",
            revision=revision,
            allow_patterns=patterns,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except Exception as error:
        raise DataError(f"{address}: cannot be downloaded ({first_line(error)}); HF_TOKEN holds your token") from None
    place = Path(folder) / inside
    paths = (path for pattern in (place, place.parent / f"{glob.escape(place.name)}.*") for path in matches(pattern))
    if not place.exists() and next(paths, None) is None:
        raise DataError(f"{address}: no such file in the repository")
    return place
