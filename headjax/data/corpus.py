"""Text that every Python installation carries: the standard library's source code and docstrings, the reference."""

from __future__ import annotations

import ast
import contextlib
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from headjax.core.errors import DataError
from headjax.data.documents import document, hold_out_text, without_passages, without_repetitions
from headjax.data.rows import Row, RowSource, Split, text_hash

MODULES = tuple(
    """
    __future__ _collections_abc _compat_pickle _pydecimal _pyio _strptime _threading_local _weakrefset abc argparse ast
    asyncio base64 bdb bisect bz2 calendar cmd code codecs codeop collections colorsys compileall concurrent
    configparser contextlib contextvars copy copyreg csv ctypes dataclasses datetime dbm decimal difflib dis doctest
    email encodings ensurepip enum filecmp fileinput fnmatch fractions ftplib functools genericpath getopt getpass
    gettext glob graphlib gzip hashlib heapq hmac html http imaplib importlib inspect io ipaddress json keyword
    linecache locale logging lzma mailbox mimetypes modulefinder multiprocessing netrc ntpath numbers opcode operator
    optparse os pathlib pdb pickle pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats pty
    py_compile pyclbr pydoc queue quopri random re reprlib rlcompleter runpy sched secrets selectors shelve shlex
    shutil signal site smtplib socket socketserver sqlite3 ssl stat statistics string stringprep struct subprocess
    symtable sysconfig tabnanny tarfile tempfile textwrap threading timeit token tokenize tomllib trace traceback
    tracemalloc tty turtle types typing unittest urllib uuid venv warnings wave weakref webbrowser wsgiref xml xmlrpc
    zipapp zipfile zipimport zoneinfo
    """.split()  # noqa: SIM905 (a list of one name a line would hide the code)
)
"""Top-level modules whose docstrings are read: pure Python, neither deprecated nor often packaged apart (tkinter)."""

LIBRARY = Path(sysconfig.get_path("stdlib"))

Embedded = Literal["docs", "code"]
"""An embedded text: `docs` is the language reference with the docstrings, `code` the source code."""

NOT_READ = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages", "encodings", "pydoc_data"})
"""Folders whose source is not read: tests, applications, other people's packages, tables of characters, and texts."""


def embedded_split(kind: Embedded, validation_fraction: float) -> dict[Split, RowSource]:
    """Return an embedded text in two: the reference and docstrings by pieces, source code by whole files."""
    if kind == "docs":
        return hold_out_text(RowSource.of(embedded_corpus()).read, validation_fraction)
    return hold_out_files(library_sources(), validation_fraction)


def library_sources() -> list[Row]:
    """Return the Python files of the standard library by their paths, but those of `NOT_READ`.

    Files that are generated for one machine (`_sysconfigdata`), and those that are not UTF-8, are left out, too.
    """
    documents = []
    for file in sorted(LIBRARY.rglob("*.py")):
        relative = file.relative_to(LIBRARY)
        if NOT_READ & set(relative.parts[:-1]) or file.name.startswith("_sysconfigdata"):
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            documents.append(document(relative.as_posix(), file.read_text(encoding="utf-8")))
    if not documents:
        raise DataError(f"{LIBRARY}: this Python carries no library sources; name text files")
    return [one for one in documents if one.values["text"].strip()]


def hold_out_files(documents: Sequence[Row], validation_fraction: float) -> dict[Split, RowSource]:
    """Hold out whole files: those whose name's hash is below the fraction, so the same ones in every Python version.

    Paragraphs of the held-out files that also occur in a training file are dropped.
    """
    sides: tuple[list[Row], list[Row]] = ([], [])
    for one in documents:
        sides[text_hash(one.place) <= validation_fraction].append(one)
    return {"train": RowSource.of(sides[0]), "validation": RowSource.of(without_passages(sides[1], sides[0]))}


def embedded_corpus() -> list[Row]:
    """The language reference (`pydoc_data.topics`), then the docstrings of `MODULES`: a document per topic and module.

    Sources are parsed, never imported. Modules that this Python lacks are skipped, and so are all docstrings where the
    standard library is installed without sources. Paragraphs that occur twice are kept once, so the documents depend on
    the Python version alone.
    """
    documents = [*reference_topics()]
    for module in MODULES:
        package = LIBRARY / module
        for file in sorted(package.rglob("*.py")) if package.is_dir() else [LIBRARY / f"{module}.py"]:
            relative = file.relative_to(LIBRARY)
            if file.is_file() and not {"test", "tests", "site-packages"} & set(relative.parts):
                documents.append(document(relative.as_posix(), docstrings(file.read_bytes())))
    documents = without_repetitions(documents)
    if not documents:
        raise DataError("embedded corpus: this Python has neither pydoc_data nor library sources; name text files")
    return documents


def reference_topics() -> list[Row]:
    """The topics of the language reference, by name; none where this Python lacks `pydoc_data`."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    return [document(f"topics/{name}", topics[name].strip() + "\n") for name in sorted(topics)]


def docstrings(source: bytes) -> str:
    """The docstrings of a Python source in the order they stand there, blank lines between them; "" if it has none.

    A source that does not parse (one meant for another Python) has none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the source are not ours to report
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in _statements(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    texts = [ast.get_docstring(node) for node in nodes]
    return "".join(f"{text.strip()}\n\n" for text in texts if text and text.strip())


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all statements below it; expressions, most of a tree, hold no docstrings."""
    yield node
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield from _statements(child)
