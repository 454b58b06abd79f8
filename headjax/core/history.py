"""The history of a model: one entry per change, kept with the model and saved in its directory."""

from __future__ import annotations

from typing import Any

import jax

from headjax.version import __version__


def entry(action: str, **details: Any) -> dict[str, Any]:
    """Return a history entry: the action, its details (JSON data), and the versions of headjax and JAX."""
    return {"action": action, **details, "versions": {"headjax": __version__, "jax": jax.__version__}}
