"""Measure headjax beside a peer in one run, in turns: `python -m benchmarks NAME [--json FILE]`.

NAME is commands, encode, generate, gpu, heads, hub, repair, scaling or train_step. encode needs `--models DIRECTORY
...`, which generate may have, repair one directory, commands one and `--task TASK --calibration TASK --calibrate N`;
scaling takes `--size short|full|large` and `--plot FILE.png`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import load, machine, machine_table
from headjax.core import numbers
from headjax.core.progress import Terminal, shown_on
from headjax.report.tables import print_table
from headjax.storage.files import json_text

NAMES = ("commands", "encode", "generate", "gpu", "heads", "hub", "repair", "scaling", "train_step")
"""Benchmarks; each is `run` in the file of its name."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark that the words name, and print its tables with the machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--size", choices=("short", "full", "large"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--models", type=Path, nargs="+", default=[])
    parser.add_argument("--task")
    parser.add_argument("--calibration")
    parser.add_argument("--calibrate", type=int)
    options = parser.parse_args(words)
    if options.name != "scaling" and (options.size or options.plot):
        parser.error("--size and --plot are for scaling")
    if options.name != "generate" and bool(options.models) != (options.name in ("commands", "encode", "repair")):
        parser.error("commands, encode and repair need --models; it is for them and generate alone")
    if bool(options.task) != (options.name == "commands"):
        parser.error("commands needs --task; it is for it alone")
    before = load()
    values = {name: getattr(options, name) for name in ("size", "models", "task", "calibration", "calibrate")}
    given: dict[str, Any] = {name: value for name, value in values.items() if value}
    measured = importlib.import_module(f"benchmarks.{options.name}").run(shown_on(Terminal(sys.stderr)), **given)
    described = machine(measured.peers, before)
    for table in (*measured.tables, machine_table(described)):
        print_table(table, Terminal(sys.stdout))
    if measured.ratio is not None:
        print(f"ratio: {numbers.significant(measured.ratio)} (headjax over the peer)")
    if options.plot and measured.plot is not None:
        options.plot.write_bytes(measured.plot.png())
    if options.json:
        found = {"ours": measured.ours, "peer": measured.peer, "ratio": measured.ratio, "machine": described}
        options.json.write_text(json_text(found, indent=2))


if __name__ == "__main__":
    main()
