"""Versions of the formats that headjax writes; a reader refuses a later one and says what to install."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import CheckpointError, HeadjaxError
from headjax.version import __version__

FIELDS = ("format", "headjax")
"""Fields that state a file's format and the version of headjax that wrote it."""


def stated(format: int) -> dict[str, Any]:
    """Return the fields that a writer of this format adds to a file."""
    return dict(zip(FIELDS, (format, __version__), strict=True))


def check_format(
    data: Mapping[str, Any],
    known: int,
    file: Path,
    writer: str | None = None,
    kind: type[HeadjaxError] = CheckpointError,
) -> None:
    """Check that a file's format is one that this headjax reads; a file without a format is from before there were any.

    Args:
        data: content of the file, with the fields `FIELDS` if it has them.
        known: newest format that this headjax reads.
        file: named in the error.
        writer: version of headjax that wrote the file; None takes the one that the data state.
        kind: class of the error.

    Raises:
        HeadjaxError: the format is a later one, or not a number.
    """
    found = data.get("format", 0)
    if not isinstance(found, int):
        raise kind(f"{file}: format: expected a number, got {str(found)[:40]!r}")
    if found > known:
        writer = writer or data.get("headjax")
        source = f"headjax {writer} or later" if isinstance(writer, str) else "a later headjax"
        raise kind(f"{file}: format {found} is newer than headjax {__version__} reads ({known}); install {source}")
