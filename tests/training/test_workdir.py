"""The folder of a run: `tests/training/test_loop.py` has whose run it is."""

import numpy as np

from headjax.training.workdir import BestModel
from tests import tiny


def test_the_best_model_is_kept_and_found_again(tmp_path):
    model = tiny.model(tiny.decoder_config())

    def offer(best, step, accuracy, loss=1.0):
        metrics = {"accuracy": accuracy, "loss": loss}
        entry = {"action": "train", "steps": step, "metrics": metrics}
        best.offer(step, metrics, lambda: model.replace(history=(entry,)))
        return best.step

    best = BestModel(tmp_path, "accuracy", True)
    assert best.step is None
    steps = [offer(best, step, value) for step, value in enumerate((np.nan, 0.5, 0.4, np.nan, 0.5, 0.7), start=1)]
    assert steps == [1, 2, 2, 2, 2, 6]
    # A run that goes on knows the value that later evaluations have to beat.
    again = BestModel(tmp_path, "accuracy", True)
    assert (again.step, offer(again, 7, 0.6), offer(again, 8, 0.8)) == (6, 6, 8)
    # Of equal metrics that with the smaller loss is better.
    assert (offer(again, 9, 0.8, loss=0.9), offer(again, 10, 0.8, loss=1.1)) == (9, 9)
    assert again.load().history[-1]["steps"] == 9
    lower = BestModel(tmp_path / "loss")
    assert [offer(lower, 1, 0.5), lower.load().history[-1]["steps"]] == [1, 1]
