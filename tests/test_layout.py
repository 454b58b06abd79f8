"""The structure that README and docs describe: arrows between packages point down, no files import each other, and
tests mirror the package."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "headjax"
TESTS = Path(__file__).parent

ORDER = (
    "core",
    "mesh",
    "tokenizers",
    "attention",
    "models",
    "heads",
    "initialization",
    "conversion",
    "hub",
    "data",
    "evaluation",
    "training",
    "plan",
    "report",
    "bench",
    "quickstart",
    "head_report",
    "commands",
)
"""The packages from the ground up: each may import those before it."""

REPORT_BELOW = {"report"}
"""Packages that import nothing of headjax but `core`, so that any may draw tables with them."""

LATE = {"commands", "bench", "cli", "__init__", "report"}
"""Where an import inside a function keeps start-up fast, or keeps a peer out of a measured process."""

OPTIONAL = {("core.paths", "core.buckets")}
"""Imports inside functions that need an optional extra."""

WHOLE_PROGRAM = {
    "test_api.py": "every public name",
    "test_bucket_run.py": "a run whose every path is in a bucket",
    "test_closeness.py": "the bounds that the other tests compare by",
    "test_config_to_softmax.py": "a forward pass through seven files",
    "test_fixtures.py": "models, checkpoints and shards that earlier versions wrote",
    "test_full_disk.py": "every write of every command on a disk that fills up",
    "test_gke_manifests.py": "tpu/gke",
    "test_kills.py": "commands that are killed at random moments",
    "test_layout.py": "this file",
    "test_long_run.py": "a run of 20,000 steps",
    "test_tpu_scripts.py": "tpu",
    "attention/kernels/test_compile.py": "kernels compiled for TPUs",
    "attention/test_adding_a_formulation.py": "a formulation that is not in the package",
    "attention/test_attend_parity.py": "attention against PyTorch",
    "models/test_decay.py": "weight decay of every parameter of every model",
    "models/test_finite.py": "attention to nothing and losses of nothing, in every formulation and kernel",
    "models/test_product.py": "every formulation in every stack",
    "heads/test_every_formulation.py": "scores and ablations of every formulation",
    "heads/test_every_model.py": "head work on every kind of model",
    "heads/test_parity.py": "scores against PyTorch",
    "heads/test_processes.py": "scores and ablations by several processes",
    "commands/test_bad_requests.py": "refusals of every command",
    "commands/test_every_family.py": "commands on imported models",
    "commands/test_mutations.py": "wrong words in every command, wrong values in every config",
    "commands/test_new_user.py": "six commands from tables to an exported classifier",
    "data/test_adding_a_task.py": "a task from outside, from rows to metrics",
    "data/test_golden.py": "the arrays and fingerprints of every kind of data",
    "conversion/test_every_family.py": "conversions of imported models",
    "initialization/test_parity.py": "Admin's profile against PyTorch",
    "training/test_deep_training.py": "deep models from their initialisation to the end of a run",
    "training/test_fine_tuning.py": "training on tasks and evaluation by the task",
    "training/test_golden_losses.py": "losses of every architecture, from draws to updates",
    "training/test_rehearsals.py": "papers' experiments in small, to the end",
    "mesh/test_golden_shardings.py": "the shardings of every model",
    "hub/test_parity.py": "imports and exports against PyTorch",
}
"""Test files of a behaviour that spans modules, and what it is."""

OUTSIDE = {"configs", "docs", "notebooks"}
"""Folders of tests that mirror a folder beside the package."""


class Import(NamedTuple):
    """One import of a module of headjax by another."""

    source: str
    target: str
    inside: bool


def modules() -> dict[str, Path]:
    """The files of the package by dotted name without `headjax.`; a package's `__init__` goes by the package's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> list[Import]:
    """Every import of headjax in a file, wherever it stands."""
    found: list[Import] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "headjax":
                base = (child.module or "").removeprefix("headjax").removeprefix(".")
                for alias in child.names:
                    longer = f"{base}.{alias.name}".removeprefix(".")
                    target = longer if longer in known else base
                    if target in known:
                        found.append(Import(name, target, inside))
            elif isinstance(child, ast.Import):
                names = [alias.name for alias in child.names if alias.name.startswith("headjax.")]
                found.extend(Import(name, target.removeprefix("headjax."), inside) for target in names)
            visit(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(ast.parse(path.read_text()), inside=False)
    return found


@pytest.fixture(scope="module")
def arrows() -> list[Import]:
    known = modules()
    return [arrow for name, path in known.items() for arrow in imports(name, path, known)]


def test_every_package_has_its_place():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert packages == set(ORDER)


def test_arrows_between_packages_point_down(arrows):
    up = [
        f"{arrow.source} -> {arrow.target}"
        for arrow in arrows
        if (source := arrow.source.split(".")[0]) in ORDER
        and (target := arrow.target.split(".")[0]) in ORDER
        and target not in REPORT_BELOW
        and ORDER.index(target) > ORDER.index(source)
    ]
    assert not up


def test_reports_rest_on_core_alone(arrows):
    used = {arrow.target.split(".")[0] for arrow in arrows if arrow.source.split(".")[0] in REPORT_BELOW}
    assert used <= {"core", *REPORT_BELOW}


def test_no_files_import_each_other(arrows):
    waiting = {name: set() for name in modules()}
    for arrow in arrows:
        if arrow.target != arrow.source:
            waiting[arrow.source].add(arrow.target)
    while ready := [name for name, targets in waiting.items() if not targets]:
        for name in ready:
            del waiting[name]
        for targets in waiting.values():
            targets.difference_update(ready)
    assert not waiting


def test_imports_inside_functions_have_a_reason(arrows):
    hidden = {
        (arrow.source, arrow.target)
        for arrow in arrows
        if arrow.inside and arrow.source.split(".")[0] not in LATE and (arrow.source, arrow.target) not in OPTIONAL
    }
    assert not hidden


def defines_functions(path: Path) -> bool:
    """Whether a file has code to test: tables and constants alone are tested where they are used."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text()))
    )


def untested() -> list[Path]:
    """Test files that are missing, below `tests`."""
    return [
        test
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" and defines_functions(path)
        for test in [path.relative_to(PACKAGE).with_name(f"test_{path.name}")]
        if not (TESTS / test).is_file()
    ]


def nameless() -> list[Path]:
    """Test files without a module of their name that are not listed, below `tests`."""
    return [
        test
        for test in (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
        if test.parts[0] not in OUTSIDE
        and test.as_posix() not in WHOLE_PROGRAM
        and not (PACKAGE / test.with_name(test.name.removeprefix("test_"))).is_file()
    ]


def test_every_module_has_its_test_file():
    assert not untested()


def test_every_test_file_names_a_module():
    assert not nameless()


def test_the_lists_of_test_files_are_no_longer_than_needed():
    assert all((TESTS / name).is_file() for name in WHOLE_PROGRAM)
