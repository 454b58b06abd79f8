"""What was done to a model: one entry per step, kept with it and saved in its directory."""

from __future__ import annotations

from typing import Any

import jax

from headjax.version import __version__


def entry(action: str, **details: Any) -> dict[str, Any]:
    """A history entry: what was done, its details (JSON data), and the versions that did it."""
    return {"action": action, **details, "versions": {"headjax": __version__, "jax": jax.__version__}}
