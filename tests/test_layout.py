"""The structure that README and docs describe: arrows between packages point down, and no files import each other."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "headjax"

ORDER = (
    "core",
    "mesh",
    "storage",
    "tokenizers",
    "nn",
    "models",
    "heads",
    "conversion",
    "initialization",
    "hub",
    "data",
    "evaluation",
    "training",
    "report",
    "shrinking",
    "plan",
    "head_report",
    "commands",
)
"""The packages from the ground up: each may import those before it."""

LATE = {"commands", "cli", "__init__", "report"}
"""Where an import inside a function keeps start-up fast."""


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


@pytest.fixture(scope="module")
def names() -> list[tuple[str, str]]:
    """Files, and the beginnings of the texts by which they import modules of headjax."""
    found = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
                texts = [
                    part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                found += [(name, part.value) for part in texts if part.value.split(".")[0] == "headjax"]
    return found


def test_every_package_has_its_place():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    alone = {name for name in ORDER if (PACKAGE / f"{name}.py").is_file()}  # a package of one file is that file
    assert packages | alone == set(ORDER)


def test_arrows_between_packages_point_down(arrows):
    up = [
        f"{arrow.source} -> {arrow.target}"
        for arrow in arrows
        if (source := arrow.source.split(".")[0]) in ORDER
        and (target := arrow.target.split(".")[0]) in ORDER
        and ORDER.index(target) > ORDER.index(source)
    ]
    assert not up


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


def test_no_file_imports_another_by_its_name_as_text(names):
    """Such an import would be an arrow that nobody sees; kernels of one folder are imported on first use."""
    above = {"commands", "cli", "__init__"}
    hidden = [
        f"{source}: {text}"
        for source, text in names
        if source.split(".")[0] not in above and not text.startswith(f"headjax.{source.rpartition('.')[0]}.")
    ]
    assert not hidden


def test_imports_inside_functions_have_a_reason(arrows):
    hidden = {
        (arrow.source, arrow.target) for arrow in arrows if arrow.inside and arrow.source.split(".")[0] not in LATE
    }
    assert not hidden


def private_names(tree: ast.Module) -> set[str]:
    """Names with a leading underscore of what a file imports from headjax, read or patched."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {alias.name for node in imports if (node.module or "").startswith("headjax") for alias in node.names}
    found = set(ours)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours | {"headjax"}:
            found.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            on, *names = (ast.unparse(each).strip("'") for each in node.args[:2])
            found |= {*names} if on in ours else {on.rpartition(".")[2]} if on.startswith("headjax.") else set()
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_tests_name_nothing_private_of_headjax():
    files = sorted(Path(__file__).parent.rglob("*.py"))
    found = {str(path): names for path in files if (names := private_names(ast.parse(path.read_text())))}
    assert not found
