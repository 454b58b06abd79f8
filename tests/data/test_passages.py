from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headjax.data.documents import COMPARED, Document, paragraphs, passages, units, without_repetitions

TEXTS = st.text(alphabet="ab \n\t\r\x0b\u2028é", max_size=60)


@given(text=TEXTS, size=st.integers(1, 20))
def test_nothing_is_lost_by_cutting(text, size):
    assert "".join(paragraphs(text)) == text
    assert "".join(units(text, size)) == text
    assert all(0 < len(unit) <= size for unit in units(text, size))


def test_units_are_paragraphs_then_lines_then_characters():
    text = "one\n\ntwo two\nthree\n \n\nfourfourfour"
    assert units(text, 100) == ["one\n\n", "two two\nthree\n \n\n", "fourfourfour"]
    assert units(text, 9) == ["one\n\n", "two two\n", "three\n", " \n", "\n", "fourfourf", "our"]


def test_passages_ignore_white_space_and_short_ones():
    long = "word " * 20
    wrapped = f"{long[:40]}\n   {long[40:]}"
    assert set(passages(f"short\n\n{wrapped}")) == {long.strip()}
    assert not set(passages("x" * (COMPARED - 1)))


def test_repetitions_are_kept_once():
    first, second = "a first passage " * 10, "a second passage " * 10
    documents = [Document("a", f"{first}\n\n{second}\n"), Document("b", f"title\n\n{second}"), Document("c", first)]
    assert without_repetitions(documents) == [documents[0], Document("b", "title\n\n")]
