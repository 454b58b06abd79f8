from __future__ import annotations

import numpy as np
import pytest

from headjax.core.timing import Timing
from headjax.heads import latency
from headjax.heads.head_id import all_heads
from headjax.heads.latency import LatencyTable, heads_for_speed_up, measure_latency
from tests import tiny


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config())


def measured(model, seconds, monkeypatch):
    """The table of a machine on which a model takes as many seconds as a function says."""

    def time_forward(models, batch, repeats):
        return {name: Timing(seconds(timed), 0.0, 0.0, repeats) for name, timed in models.items()}

    monkeypatch.setattr(latency, "time_forward", time_forward)
    return measure_latency(model, tiny.tokens())


def test_the_table_adds_up_what_was_timed(model, monkeypatch):
    """A machine on which a head takes 1 s, a layer without heads 0.5 s less, everything else 10 s."""

    def seconds(timed):
        left = [attention.num_heads for attention in timed.config.attentions()["decoder"]]
        return 10.0 + sum(count + (0.5 if count else 0.0) for count in left)

    table = measured(model, seconds, monkeypatch)
    assert table.base == pytest.approx(10.0)
    np.testing.assert_allclose(table.layers["decoder"], [0.0, 1.5, 2.5, 3.5, 4.5])
    order = all_heads(model.config)
    assert table.seconds(model.config) == pytest.approx(19.0)
    assert table.seconds(model.config, order[:5]) == pytest.approx(13.5)
    assert heads_for_speed_up(model.config, order, table, 1.0) == ()
    assert heads_for_speed_up(model.config, order, table, 19.0 / 13.6) == order[:5]


def test_more_heads_never_look_faster(model, monkeypatch):
    medians = iter([9.0, 8.0, 7.0, 7.5, 6.0])  # the original model, then 0 to 3 heads a layer, noise and all
    table = measured(model, lambda timed: next(medians), monkeypatch)
    assert isinstance(table, LatencyTable)
    assert (np.diff(table.layers["decoder"]) >= 0).all()
    assert table.base >= 0
