"""Docstrings in parts, and as Markdown."""

from docs.reference import escape, parse_docstring, table


def test_a_docstring_is_divided_into_text_and_sections():
    found = parse_docstring(
        """Return a thing.

        More about `it`:

            code

        Args:
            first, second: two numbers, of which
                one is long.
            third: another: with a colon.

        Returns:
            A thing.

        Raises:
            ValueError: never.
        """
    )
    assert found.text.endswith("    code")
    assert found.sections == {
        "Args": {
            "first": "two numbers, of which\none is long.",
            "second": "two numbers, of which\none is long.",
            "third": "another: with a colon.",
        },
        "Returns": {"": "A thing."},
        "Raises": {"ValueError": "never."},
    }


def test_text_that_looks_like_a_tag_is_escaped_outside_of_code():
    assert escape("a < b, `scores.<name>`") == "a &lt; b, `scores.<name>`"


def test_a_table_keeps_its_columns():
    assert table(("a", "b"), [("x | y", "two\nlines")]).splitlines()[2] == "| x \\| y | two lines |"
