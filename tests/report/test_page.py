"""The page is one file that asks for nothing else and repeats hostile text harmlessly."""

import html.parser
import re

import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.report import numbers
from headjax.report.curves import learning_curves, pruning_curves
from headjax.report.maps import head_map
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.report.style import GRID, INK, PAPER
from headjax.report.tables import Column, Table

HOSTILE = "</title><script>alert('1')</script><img src=x onerror=alert(1)> & \"quoted\" {{ 7*7 }}"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Tree(html.parser.HTMLParser):
    """Start tags with attributes, text, and whether every element is closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def sections():
    curves = learning_curves({HOSTILE: [(0, 3.0), (1, 2.0)], "b": [(0, 3.0), (1, 2.1)]}, title=HOSTILE)
    heads = head_map({"decoder": np.array([[1.0, np.nan]])}, title="Heads", unit="nats")
    table = Table((Column(HOSTILE), Column("N", numbers.count, "higher")), [(HOSTILE, 1), ("b", 2)], HOSTILE, [HOSTILE])
    return [
        Section(HOSTILE, HOSTILE, [Picture(curves, HOSTILE), Picture(heads, "Captions")]),
        Section("Table", "Run `headjax score`, twice.\n\nThen stop.", [Picture(heads, "Again")], table),
        Section("Empty"),
    ]


@pytest.fixture(scope="module")
def page(sections):
    return render_page(HOSTILE, HOSTILE, sections, HOSTILE, {HOSTILE: HOSTILE})


def test_hostile_text_stays_text(page):
    tree = Tree(page)
    assert not tree.open
    assert not tree.all("script")
    assert not tree.all("img")
    assert not any(name.startswith("on") for _, attrs in tree.tags for name in attrs)
    assert HOSTILE in "".join(tree.words)
    assert "49" not in "".join(word for word in tree.words if "7*7" in word)


def test_the_page_asks_for_nothing_else(page):
    policy = next(attrs["content"] for attrs in Tree(page).all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")
    inlined = re.sub(r'"data:image/png;base64,[^"]*"', '""', page)
    assert not re.search(r"https?:|//\w|@import", inlined)
    for _, attrs in Tree(page).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:"))


def test_equal_input_gives_equal_bytes(page, sections):
    assert render_page(HOSTILE, HOSTILE, sections, HOSTILE, {HOSTILE: HOSTILE}) == page


def test_identifiers_are_unique_and_references_meet_them(page):
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)|labelledby="([^"]+)"', page)
    assert {name for found in references for name in found if name} <= set(names)


def test_figures_have_words_numbers_and_captions(page):
    tree = Tree(page)
    figures = tree.all("svg")
    assert len(figures) == len(tree.all("figcaption")) == 3
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in figures)
    assert [word for word in tree.words if re.fullmatch(r"Figure \d\.", word)] == [
        "Figure 1.",
        "Figure 2.",
        "Figure 3.",
    ]


def test_figures_take_their_theme_from_the_page(page):
    body = page.split("</head>")[1]
    assert not any(color in body for color in (INK, PAPER, GRID))
    used = set(re.findall(r"var\(--([a-z0-9]+)\)", body))
    light, dark = page.split("prefers-color-scheme: dark")[:2]
    assert {"ink", "paper", "grid", "c0"} <= used
    for name in used:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark


def test_text_has_paragraphs_and_code():
    page = render_page("t", "One `code <b>` span.\n\nA lone ` stays.", [])
    assert "<p>One <code>code &lt;b&gt;</code> span.</p>" in page
    assert "<p>A lone ` stays.</p>" in page


def test_parts_that_are_absent_leave_nothing_behind():
    page = render_page("Title", "", [Section("Empty")])
    assert not {"table", "figure", "dl", "nav", "footer", "p"} & {tag for tag, _ in Tree(page).tags}
    assert not {"section", "h2"} & {tag for tag, _ in Tree(render_page("Title", "", [])).tags}


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    assert write_page(path, "First", "", []) == path
    first = path.read_bytes()
    broken = pruning_curves({"a": [(0.0, 1.0), (1.0, 2.0)]})
    monkeypatch.setattr(type(broken), "svg", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(path, "Second", "", [Section("s", figures=[Picture(broken, "c")])])
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_text_that_utf8_cannot_hold_is_spelled_out(tmp_path):
    path = write_page(tmp_path / "page.html", "broken \udcff bytes", "", [])
    assert "broken \\udcff bytes" in path.read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadjaxError, match=r"page.html: cannot be written \("):
        write_page(tmp_path / "file" / "page.html", "t", "", [])
