"""The page is one file that asks for nothing else, repeats hostile text harmlessly, and works in a browser."""

import base64
import hashlib
import html.parser
import re

import numpy as np
import pytest

import headjax
from headjax.core import numbers
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.report.tables import Column, Table
from tests.report.test_plots import losses

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

    def policy(self):
        return next(attrs["content"] for attrs in self.all("meta") if "http-equiv" in attrs)


@pytest.fixture(scope="module")
def sections():
    curves = losses({HOSTILE: [(0, 3.0), (1, 2.0)], "b": [(0, 3.0), (1, 2.1)]}, title=HOSTILE)
    heads = headjax.plots.head_map({"decoder": np.array([[1.0, np.nan]])}, title="Heads", unit="nats")
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
    assert len(tree.all("script")) == 1
    assert all(attrs["src"].startswith("data:image/svg+xml;base64,") for attrs in tree.all("img"))
    assert not any(name.startswith("on") for _, attrs in tree.tags for name in attrs)
    assert HOSTILE in "".join(tree.words)
    assert "49" not in "".join(word for word in tree.words if "7*7" in word)


def test_the_page_asks_for_nothing_else_and_runs_the_script_of_its_policy_alone(page):
    policy = Tree(page).policy()
    assert policy.startswith("default-src 'none'")
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    inlined = re.sub(r'"data:image/svg\+xml;base64,[^"]*"', '""', page)
    assert not re.search(r"https?:|//\w|@import", inlined)
    for _, attrs in Tree(page).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:"))


def test_identifiers_are_unique_and_references_meet_them(page):
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)|labelledby="([^"]+)"', page)
    assert {name for found in references for name in found if name} <= set(names)


def test_figures_have_words_and_captions_and_cells_what_tables_sort_by(page):
    tree = Tree(page)
    figures = tree.all("img")
    assert len(figures) == len(tree.all("figcaption")) == 3
    assert all(attrs["alt"] for attrs in figures)
    assert {"1.0", "2.0", "b"} <= {attrs["data-value"] for attrs in tree.all("td")}


def test_text_has_paragraphs_and_code_and_what_is_absent_leaves_nothing_behind():
    page = render_page("t", "One `code <b>` span.\n\nA lone ` stays.", [])
    assert "<p>One <code>code &lt;b&gt;</code> span.</p>" in page
    assert "<p>A lone ` stays.</p>" in page
    page = render_page("Title", "", [Section("Empty")])
    assert not {"table", "figure", "dl", "nav", "footer", "p"} & {tag for tag, _ in Tree(page).tags}
    assert not {"section", "h2"} & {tag for tag, _ in Tree(render_page("Title", "", [])).tags}


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "report.html"
    assert write_page(path, render_page("broken \udcff bytes", "", [])) == path
    first = path.read_text(encoding="utf-8")
    assert "broken \\udcff bytes" in first
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(headjax.HeadjaxError, match=r"page\.html: "):
        write_page(path / "page.html", first)


WEIGHTS = np.zeros((4, 3, 3), np.uint8)
WEIGHTS[:] = 255 * np.eye(3, dtype=np.uint8)
WEIGHTS[3] = [[255, 0, 0], [51, 204, 0], [0, 102, 153]]
HEADS = ["encoder/0/0", "encoder/0/1", "encoder/1/0", "encoder/1/1"]
TOKEN = "</script><b>"


@pytest.fixture(scope="module")
def viewer():
    stack = {
        "queries": ["a", TOKEN, "c"],
        "keys": ["a", TOKEN, "c"],
        "heads": HEADS,
        "weights": base64.b64encode(WEIGHTS.tobytes()).decode(),
    }
    names = [*HEADS, "encoder/0", "encoder/1"]
    without = {name: {"prediction": f"no ({number}%)", "change": 0.25} for number, name in enumerate(names)}
    view = {"stacks": {"encoder": stack}, "whole": "yes (90%)", "without": without}
    importance = dict(zip(HEADS, (0.1, 0.4, 0.2, 0.3), strict=True))
    data = {"importance": importance, "unit": "nats", "examples": [view, view]}
    return render_page("Heads", "", [Section("What each head attends to", viewer=data)])


def test_no_text_ends_the_data_and_pages_without_a_viewer_have_no_part_of_it(viewer):
    assert viewer.count("</script>") == 2  # that of the data, that of the page
    assert "<b>" not in viewer.split('type="application/json">')[1].split("</script>")[0]
    assert "class Viewer" not in render_page("Heads", "", [Section("Text", "Text.")])
