"""lm-evaluation-harness with headjax's models: `python -m headjax.lm_eval --model headjax --model_args path=MODEL ...`.

The words are those of the command `lm_eval`. Versions of lm-eval that read entry points need no such start.
"""

from __future__ import annotations

import importlib
import sys

from headjax.core.errors import FAILED, HeadjaxError

NAME, TARGET = "headjax", "headjax.evaluation.harness:HeadjaxLM"
"""Name of the adapter in lm-eval, and its place."""


def main() -> int:
    """Run lm-eval's command line; return the exit code."""
    try:
        importlib.import_module("lm_eval.models")  # its own models, which the registry then holds
        from lm_eval.__main__ import cli_evaluate
        from lm_eval.api.registry import model_registry
    except ImportError as error:
        missing = f"needs lm-evaluation-harness ({error.name} is not installed): pip install '.[eval]' from a checkout"
        print(f"headjax.lm_eval: error: {missing}", file=sys.stderr)
        return FAILED
    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)
    try:
        cli_evaluate()
    except HeadjaxError as error:
        print(f"headjax.lm_eval: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
