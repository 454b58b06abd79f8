"""headjax: how many attention heads does a Transformer need, how large, and what can they share?

Names are imported on first use, so that `import headjax` stays fast; `__init__.pyi` lists them, for type checkers, too.
"""

from __future__ import annotations

import importlib

from headjax.version import __version__

with open(f"{__file__}i", encoding="utf-8") as _stub:  # `from MODULE import NAME as NAME`, a line each
    _LAZY = {line.split()[-1]: line.split()[1] for line in _stub if line.startswith("from headjax")}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'headjax' has no attribute {name!r}")
    if _LAZY[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    found = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = ["__version__", *(name for name in _LAZY if name != "__version__")]  # noqa: PLE0604
