"""The page about the heads of a model that knows nothing of headjax."""

import html
import re

import pytest

import headjax
from tests.sites.houses import HOUSES, batches, loss, snapshot
from tests.sites.test_scores import mean_loss

BATCHES = batches(3)


def cells(page):
    """The rows of the page's table: text, or the value that it is sorted by."""
    rows = re.findall(r"<tr>(.*?)</tr>", page[page.index("Where the heads lie") :], re.DOTALL)
    found = [re.findall(r'<td[^>]*data-value="([^"]*)"', row) for row in rows]
    return [[html.unescape(value) for value in row] for row in found if row]


@pytest.mark.parametrize("name", ["einsum", "scanned"])
def test_the_page_has_every_layer_and_its_numbers(name, tmp_path):
    model = HOUSES[name]()
    before = snapshot(model)
    path = headjax.report_heads(
        model, BATCHES[:2], tmp_path / "page.html", loss=loss, held_out=BATCHES[2:], percentages=(25, 50), seeds=2
    )
    assert snapshot(model)[0] == before[0]
    page = path.read_text()
    heads = headjax.score_heads(model, BATCHES[:2], loss=loss).score("importance")
    layers = dict.fromkeys(str(head).rpartition("/")[0] for head in heads)
    assert [(row[0], *map(float, row[1:])) for row in cells(page)] == [(layer, 4, 2, 3) for layer in layers]
    assert "other examples" in page


def test_batches_may_come_once(tmp_path):
    """As a generator, as data loaders give them."""
    model = HOUSES["einsum"]()

    def results(given):
        repaired = headjax.reconstruct(model, given(), ["layers.0.attn/0", "layers.0.attn/1"], loss=loss).model
        path, few = tmp_path / "page.html", {"orders": ("importance_layer",), "percentages": (50,)}
        page = headjax.report_heads(model, given(), path, loss=loss, held_out=given(), **few).read_text()
        return [mean_loss(repaired, batch) for batch in BATCHES], cells(page)

    assert results(lambda: iter(BATCHES)) == results(lambda: BATCHES)


@pytest.mark.parametrize(
    "options, message",
    [({"orders": ["importanse"]}, "importanse"), ({"loss": None}, "loss"), ({"held_out": []}, "batches")],
)
def test_what_has_no_page_is_one_line(options, message, tmp_path):
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.report_heads(HOUSES["flax"](), BATCHES[:1], tmp_path / "a.html", **({"loss": loss} | options))
    assert not (tmp_path / "a.html").exists()
