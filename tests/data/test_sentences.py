from __future__ import annotations

import pytest

from headjax.data.bert_text import sentences


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One.  Two\nis it? Three!", ["One.", "Two is it?", "Three!"]),
        ("A heading\n\nIts text. More", ["A heading", "Its text.", "More"]),
        ("Mr. Bingley met Dr. J. Watson at 3 p.m. He left.", ["Mr. Bingley met Dr. J. Watson at 3 p.m. He left."]),
        ("It cost 3.5 dollars. 7 were left.", ["It cost 3.5 dollars.", "7 were left."]),
        ('"Why?" he asked. "So."', ['"Why?" he asked.', '"So."']),
        ("“Why? So.” (Really.) Yes...  No", ["“Why?", "So.”", "(Really.)", "Yes...", "No"]),
        ("see e.g. Figure 2. then on", ["see e.g. Figure 2. then on"]),
        (" \n \n", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_nothing_is_lost(data_dir):
    text = (data_dir / "lm" / "gutenberg" / "pride_and_prejudice.txt").read_text(encoding="utf-8")
    found = sentences(text)
    assert " ".join(found).split() == text.split()
    assert 4000 < len(found) < 12000
    assert not any(one.endswith(("Mr.", "Mrs.")) for one in found)
