"""The embedded corpus, and documents of which some text is held out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headjax
from headjax.data.files import library_sources
from headjax.data.rows import RowSource, document, hold_out_files, hold_out_text, paragraphs, passages


def split(documents, fraction):
    """Both sides of a text, in memory."""
    return {side: [*some.rows()] for side, some in hold_out_text(RowSource.of(documents).read, fraction).items()}


def text_of(document):
    return document.values["text"]


def test_source_code_is_held_out_by_whole_files_and_shares_no_passage_with_them():
    found = {side: [*source.rows()] for side, source in hold_out_files(library_sources(), 0.05).items()}
    train, held = ({document.place for document in found[side]} for side in ("train", "validation"))
    assert "json/decoder.py" in train | held
    assert not train & held
    assert not any(name.startswith(("test/", "idlelib/", "encodings/", "site-packages/")) for name in train | held)
    assert sum(len(text_of(document)) for document in found["train"]) > 5_000_000
    assert 0.01 < len(held) / len(train | held) < 0.1
    known = {passage for document in found["train"] for passage in passages(text_of(document))}
    assert not any(passage in known for document in found["validation"] for passage in passages(text_of(document)))


def test_the_side_of_a_text_stays_where_others_come_or_go():
    """That of a file follows from its name alone, that of a passage from the text before it."""
    names = [f"package/module{number}.py" for number in range(400)]
    whole, part = (
        {
            row.place
            for row in hold_out_files([document(name, f"{text} {name}\n") for name in some], 0.1)["validation"].rows()
        }
        for text, some in (("text of", names), ("other text of", names[::2]))
    )
    assert part == whole & set(names[::2])
    assert 20 <= len(whole) <= 60
    first, more = ([document(f"{kind}{i}", story(f"{kind}{i}", 40)) for i in range(10)] for kind in "sm")
    before, after = split(first, 0.1), split([*first, *more], 0.1)
    for side in ("train", "validation"):
        assert set(map(text_of, before[side])) <= set(map(text_of, after[side]))


def plain(text):
    return " ".join(text.split())


def story(name, count):
    """A text of `count` different paragraphs of about 300 characters."""
    return "\n\n".join(" ".join(f"{name}p{i}w{j}" for j in range(40)) + "." for i in range(count)) + "\n"


@pytest.mark.parametrize("parts", [paragraphs, str.splitlines])
def test_documents_that_repeat_each_other_or_themselves_leave_no_passage_on_both_sides(parts):
    """Paragraphs that documents share, or lines where a file has one sentence a line and is a single paragraph."""
    shared = [f"boilerplate {i} " * 20 for i in range(40)]
    documents = [document(str(i), "\n\n".join([story(f"s{i}", 12), *shared, "one short line"])) for i in range(12)]
    if parts is str.splitlines:
        documents = [document("lines", "\n".join([f"sentence number {i} " * 6 for i in range(400)] * 2))]
    train, validation = (
        {plain(part) for document in side for part in parts(text_of(document))}
        for side in split(documents, 0.3).values()
    )
    assert validation
    assert not {part for part in train & validation if len(part) >= 80}
    if parts is paragraphs:
        assert any(paragraph.startswith("boilerplate") for paragraph in train)
        assert any("p1w1" in paragraph for paragraph in validation)


def test_training_text_is_given_before_all_is_read():
    documents, read = [document(str(i), story(f"s{i}", 20)) for i in range(60)], []

    def reading(share):
        for one in documents:
            read.append(one.place)
            yield one

    train = iter(hold_out_text(reading, 0.2)["train"].rows())
    read.clear()
    next(train)
    assert len(read) <= 3


@given(count=st.integers(2, 30), fraction=st.floats(0.001, 0.999))
def test_both_sides_have_text_however_small_it_is(count, fraction):
    found = split([document("small", story("small", count))], fraction)
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
    with pytest.raises(headjax.DataError, match=f"^name: {said}"):
        split([document("name", text)], 0.5)
