from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter

import pytest

from headjax.core.errors import DataError
from headjax.data import corpus as module
from headjax.data.corpus import MODULES, docstrings, embedded_corpus
from headjax.data.documents import passages


def test_has_enough_text_of_both_kinds_and_repeats_no_passage(corpus):
    reference = [document for document in corpus if document.name.startswith("topics/")]
    library = [document for document in corpus if not document.name.startswith("topics/")]
    assert sum(len(document.text) for document in reference) > 200_000
    assert sum(len(document.text) for document in library) > 500_000
    assert "json/decoder.py" in {document.name for document in library}
    assert list(MODULES) == sorted(MODULES)
    assert len({document.name for document in corpus}) == len(corpus)
    # A passage is listed once per document that has it; within one paragraph a line may equal the paragraph.
    found = Counter(passage for document in corpus for passage in set(passages(document.text)))
    assert max(found.values()) == 1


def test_is_the_same_in_another_process_and_imports_nothing(corpus):
    code = """
import hashlib, sys
from headjax.data.corpus import embedded_corpus
documents = embedded_corpus()
assert not {"turtle", "xmlrpc.client", "smtplib", "tkinter"} & set(sys.modules)
print(hashlib.sha256(repr(documents).encode()).hexdigest())
"""
    # Strings hash otherwise there than here, where the seed is drawn.
    environment = {"PYTHONHASHSEED": "1", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert run.stdout.strip() == hashlib.sha256(repr(corpus).encode()).hexdigest()


def test_docstrings_come_in_source_order():
    source = b'''"""Module."""
class A:
    """Class.

    Second paragraph.
    """
    def f(self):
        """Method."""
        def inner():
            """Inner."""
    def undocumented(self): pass
async def g():
    """Coroutine."""
try:
    if A:
        def h():
            """In a branch."""
except* OSError:
    match A:
        case int():
            def i():
                """In a case."""
else:
    for a in A:
        with a:
            def j():
                """In a loop."""
'''
    found = ["Module.", "Class.", "Second paragraph.", "Method.", "Inner.", "Coroutine."]
    assert docstrings(source) == "\n\n".join([*found, "In a branch.", "In a case.", "In a loop.", ""])


@pytest.mark.parametrize("source", [b"print 'python 2'", b"\xff\xfe", b"x = '\\d'", b"\0"])
def test_sources_that_do_not_parse_or_warn_have_no_docstrings(source):
    assert docstrings(source) == ""


def test_without_library_sources_the_reference_remains(monkeypatch, tmp_path):
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text('"""The one module that is there."""')
    names = [document.name for document in embedded_corpus()]
    assert names[-1] == "json/__init__.py"
    assert all(name.startswith("topics/") for name in names[:-1])
    assert len(names) > 50


def test_without_any_text_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"^embedded corpus: this Python has neither"):
        embedded_corpus()
