"""The command `headjax` in this process."""

from collections.abc import Sequence

import headjax.cli


def main(arguments: Sequence[str]) -> int:
    """Run a command line without the word `headjax`; returns its exit code."""
    return headjax.cli.main(arguments)
