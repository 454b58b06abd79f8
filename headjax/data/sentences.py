"""Text into sentences, by rule."""

from __future__ import annotations

import re

ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof rev st sr jr gen col capt lt sgt hon gov sen rep messrs mme mlle vs etc e.g i.e cf no vol pp fig
    inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec a.m p.m u.s u.k
    """.split()  # noqa: SIM905 (a list of one word a line would hide the code)
)
"""Words after whose full stop a sentence goes on, without that stop."""

_CLOSING, _OPENING = "\"'\u2019\u201d)\\]", "\"'\u2018\u201c(\\["
_END = re.compile(rf"([.!?]+)([{_CLOSING}]*)\s+(?=[{_OPENING}]?[A-Z0-9])")
_LAST_WORD = re.compile(r"([^\W_]+(?:\.[^\W_]+)*)$")


def sentences(text: str) -> list[str]:
    """The sentences of a text, white space made single spaces; none is blank.

    A sentence ends at a blank line, and at `.`, `!` or `?` (with what closes quotations and brackets after it) before
    white space and a capital or a digit, unless the full stop belongs to an abbreviation or an initial.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        start = 0
        for match in _END.finditer(plain):
            if match[1] == "." and _abbreviated(plain[start : match.start()]):
                continue
            found.append(plain[start : match.end(2)])
            start = match.end()
        if plain[start:]:
            found.append(plain[start:])
    return found


def _abbreviated(before: str) -> bool:
    """Whether the word that a full stop follows is an abbreviation or an initial."""
    word = _LAST_WORD.search(before)
    return word is not None and (word[1].lower() in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))
