"""`headjax convert`: what it costs, what is converted, and what an imported model becomes."""

import headjax
from tests.closeness import assert_trees_equal

TASK = "--task text.txt --limit 16 --batch-size 8"


def test_without_a_task_the_model_goes_from_file_to_file(run, folder, tmp_path):
    """With the same arrays, bit by bit, as from memory."""
    run("convert model OUT/streamed --to collaborative:shared_dim=8")
    expected = headjax.convert(headjax.load(folder / "model"), "collaborative:shared_dim=8").model
    found = headjax.load(tmp_path / "streamed")
    assert found.config == expected.config
    assert_trees_equal(found.params, expected.params)


def test_some_layers_are_converted(run, tmp_path):
    data = run(f"convert model OUT/some {TASK} --to collaborative:shared_dim=8 --layers 1 --calibrate 16").data
    assert [error["layer"] for error in data["error_per_layer"]] == [1]
    assert data["selection"]["examples"] == 16
    assert isinstance(headjax.load(tmp_path / "some").config.attentions()["decoder"][0], headjax.Kind)
