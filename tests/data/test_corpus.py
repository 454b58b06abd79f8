from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter

import pytest

from headjax.core.errors import DataError
from headjax.data import corpus as module
from headjax.data.corpus import MODULES, docstrings, embedded_corpus, embedded_split, library_sources, split_files
from headjax.data.documents import Document, passages


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


def test_source_code_is_held_out_by_whole_files_and_shares_no_passage_with_them():
    found = embedded_split("code", 0.05)
    train, held = ({document.name for document in found[side]} for side in ("train", "validation"))
    assert "json/decoder.py" in train | held
    assert not train & held
    assert not any(name.startswith(("test/", "idlelib/", "encodings/", "site-packages/")) for name in train | held)
    assert sum(len(document.text) for document in found["train"]) > 5_000_000
    assert 0.01 < len(held) / len(train | held) < 0.1
    known = {passage for document in found["train"] for passage in passages(document.text)}
    assert not any(passage in known for document in found["validation"] for passage in passages(document.text))


def test_the_side_of_a_file_follows_from_its_name_alone():
    names = [f"package/module{number}.py" for number in range(400)]
    whole = split_files([Document(name, f"text of {name}\n") for name in names], 0.1)
    part = split_files([Document(name, f"other text of {name}\n") for name in names[::2]], 0.1)
    assert {one.name for one in part["validation"]} == {one.name for one in whole["validation"]} & set(names[::2])
    assert 20 <= len(whole["validation"]) <= 60


def test_a_library_without_sources_is_refused(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_it.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="carries no library sources"):
        library_sources(tmp_path)
