"""Plots under short public names."""

import headjax
from headjax.heads.head_id import HeadId
from tests.tiny import decoder_config, model


def test_a_map_of_scores_tells_each_head_that_has_one():
    scores = {HeadId("decoder", layer, head): layer + head / 10 for layer in range(2) for head in range(4)}
    del scores[HeadId("decoder", 1, 2)]
    norms = dict.fromkeys(scores, 7.0)
    plot = headjax.plots.score_map(
        model(decoder_config()), scores, title="Heads", unit="nats", more={"output_norm": norms}
    )
    assert {spot.text.splitlines()[0] for spot in plot.spots} == {str(head) for head in scores}
    assert {spot.text.splitlines()[2] for spot in plot.spots} == {"output norm: 7.00"}
    assert "<svg" in plot.svg()


def test_every_name_that_is_promised_is_there():
    assert all(hasattr(headjax.plots, name) for name in headjax.plots.__all__)
    assert callable(headjax.gates.without)
