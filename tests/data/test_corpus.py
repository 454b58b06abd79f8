"""The embedded corpus, and documents of which some text is held out."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.core.errors import DataError
from headjax.data.corpus import MODULES, docstrings, embedded_split, split_files
from headjax.data.documents import COMPARED, Document, HeldOut, paragraphs, passages, split, units, without_repetitions


@pytest.mark.whole
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
    match A:
        case int():
            def i():
                """In a case."""
except* OSError: pass
'''
    found = ["Module.", "Class.", "Second paragraph.", "Method.", "Inner.", "Coroutine."]
    assert docstrings(source) == "\n\n".join([*found, "In a case.", ""])


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


def test_the_side_of_a_text_stays_where_others_come_or_go():
    """That of a file follows from its name alone, that of a passage from the text before it."""
    names = [f"package/module{number}.py" for number in range(400)]
    whole = split_files([Document(name, f"text of {name}\n") for name in names], 0.1)
    part = split_files([Document(name, f"other text of {name}\n") for name in names[::2]], 0.1)
    assert {one.name for one in part["validation"]} == {one.name for one in whole["validation"]} & set(names[::2])
    assert 20 <= len(whole["validation"]) <= 60
    first, more = ([Document(f"{kind}{i}", story(f"{kind}{i}", 40)) for i in range(10)] for kind in "sm")
    before, after = split(first, 0.1), split([*first, *more], 0.1)
    assert set(before["train"]) <= set(after["train"])
    assert set(before["validation"]) <= set(after["validation"])


def plain(text):
    return " ".join(text.split())


def size(documents):
    return sum(len(document.text) for document in documents)


def story(name, count, seed=0):
    """A text of `count` different paragraphs of about 300 characters."""
    words = [f"{name}{seed}w{i}" for i in range(30)]
    return "\n\n".join(f"{name} paragraph {i}: " + " ".join(words) + f" end {i}." for i in range(count)) + "\n"


def test_no_long_validation_paragraph_of_the_embedded_corpus_is_trained_on(corpus):
    train, validation = split(corpus, 0.05).values()
    trained = "\n".join(plain(document.text) for document in train)
    held = [plain(paragraph) for document in validation for paragraph in paragraphs(document.text)]
    held = [paragraph for paragraph in held if len(paragraph) >= 200]
    assert len(held) >= 50
    assert not [paragraph for paragraph in held if paragraph in trained]
    assert 0.03 < size(validation) / size(corpus) < 0.08
    assert 0.998 * size(corpus) < size(train) + size(validation) <= size(corpus)


@pytest.mark.parametrize("parts", [paragraphs, str.splitlines])
def test_documents_that_repeat_each_other_or_themselves_leave_no_passage_on_both_sides(parts):
    """Paragraphs that documents share, or lines where a file has one sentence a line and is a single paragraph."""
    shared = [f"boilerplate {i} " * 20 for i in range(40)]
    documents = [Document(str(i), "\n\n".join([story(f"s{i}", 12), *shared, "one short line"])) for i in range(12)]
    if parts is str.splitlines:
        documents = [Document("lines", "\n".join([f"sentence number {i} " * 6 for i in range(400)] * 2))]
    train, validation = (
        {plain(part) for document in side for part in parts(document.text)} for side in split(documents, 0.3).values()
    )
    assert validation
    assert not {part for part in train & validation if len(part) >= 80}
    if parts is paragraphs:
        assert any(paragraph.startswith("boilerplate") for paragraph in train)
        assert any("paragraph" in paragraph for paragraph in validation)


def test_training_text_is_given_before_all_is_read():
    documents, read = [Document(str(i), story(f"s{i}", 20)) for i in range(60)], []

    def reading():
        for document in documents:
            read.append(document.name)
            yield document

    parts = HeldOut(reading, 0.2)
    read.clear()
    train = parts.train()
    first = next(train)
    assert len(read) <= 3
    assert [first, *train] == split(documents, 0.2)["train"]
    assert list(parts.validation()) == split(documents, 0.2)["validation"]


@given(count=st.integers(2, 30), fraction=st.floats(0.001, 0.999))
def test_both_sides_have_text_however_small_it_is(count, fraction):
    found = split([Document("small", story("small", count))], fraction)
    assert found["train"]
    assert found["validation"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a few words", "too little text to hold some of it out"),
        ("\n\n".join(["all the same " * 30] * 50), ".* also occurs in the training text"),
    ],
)
def test_text_that_cannot_be_split(text, said):
    with pytest.raises(DataError, match=f"^name: {said}"):
        split([Document("name", text)], 0.5)


TEXTS = st.text(alphabet="ab \n\t\r\x0b\u2028é", max_size=60)


@given(text=TEXTS, size=st.integers(1, 20))
def test_nothing_is_lost_by_cutting(text, size):
    assert "".join(paragraphs(text)) == text
    assert "".join(units(text, size)) == text
    assert all(0 < len(unit) <= size for unit in units(text, size))


def test_passages_ignore_white_space_and_short_ones():
    long = "word " * 20
    wrapped = f"{long[:40]}\n   {long[40:]}"
    assert set(passages(f"short\n\n{wrapped}")) == {long.strip()}
    assert not set(passages("x" * (COMPARED - 1)))


def test_repetitions_are_kept_once():
    first, second = "a first passage " * 10, "a second passage " * 10
    documents = [Document("a", f"{first}\n\n{second}\n"), Document("b", f"title\n\n{second}"), Document("c", first)]
    assert without_repetitions(documents) == [documents[0], Document("b", "title\n\n")]
