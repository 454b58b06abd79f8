"""The page about the heads of a model that knows nothing of headjax."""

import html
import re

import numpy as np
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close
from tests.sites.houses import HOUSES, SUMS, batches, loss, snapshot
from tests.sites.test_scores import gates_of, mean_loss, scaled

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
    model, judge = HOUSES["einsum"](), nnx.jit(mean_loss)

    def results(given):
        repaired = headjax.reconstruct(model, given(), ["layers.0.attn/0", "layers.0.attn/1"], loss=loss).model
        path, few = tmp_path / "page.html", {"orders": ("importance_layer",), "percentages": (50,)}
        page = headjax.report_heads(model, given(), path, loss=loss, held_out=given(), **few).read_text()
        return [judge(repaired, batch) for batch in BATCHES], cells(page)

    assert results(lambda: iter(BATCHES)) == results(lambda: BATCHES)


def test_curves_are_the_loss_without_the_heads_of_the_order(tmp_path, monkeypatch):
    model, drawn = HOUSES["flax"](), {}

    def drawing(curves, **options):
        drawn.update(curves)
        return headjax.plots.pruning_curves(curves, **options)

    monkeypatch.setattr("headjax.head_report.page.pruning_curves", drawing)
    orders = ("importance", "ablation", "random")
    headjax.report_heads(model, BATCHES[:1], tmp_path / "a.html", loss=loss, orders=orders, percentages=(50,), seeds=2)
    assert [len(drawn[name]) for name in orders] == [2, 2, 3]
    gates = gates_of(model)
    assert_close(drawn["importance"][0][1], mean_loss(scaled(model, gates), BATCHES[0]), sums=SUMS)
    for by in ("importance", "ablation"):
        removed = headjax.order_heads(model, BATCHES[:1], by, loss=loss)[:4]
        gates = {site: np.ones(4) for site in gates_of(model)}
        for head in removed:
            gates[f"layers.{head.layer}.attn"][head.head] = 0.0
        assert_close(drawn[by][1][1], mean_loss(scaled(model, gates), BATCHES[0]), sums=SUMS)
    assert "the same examples" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    "options, message",
    [({"orders": ["importanse"]}, "importanse"), ({"loss": None}, "loss"), ({"held_out": []}, "batches")],
)
def test_what_has_no_page_is_one_line(options, message, tmp_path):
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.report_heads(HOUSES["flax"](), BATCHES[:1], tmp_path / "a.html", **({"loss": loss} | options))
    assert not (tmp_path / "a.html").exists()
