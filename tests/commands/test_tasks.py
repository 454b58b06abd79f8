"""`headjax tasks`: every task that `--task` or `prepare` takes, with files and metrics."""

from __future__ import annotations
