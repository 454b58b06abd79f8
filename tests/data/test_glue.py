from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.known_data import Glue
from headjax.data.tasks import GLUE
from tests.data.vocabulary import write_lines

REAL = {
    "cola": (8551, 527 + 516, 2),
    "sst2": (60614, 872, 2),
    "mrpc": (4076, None, 2),
    "stsb": (5749, 1500, 0),
    "rte": (2490, 277, 2),
    "mnli": (9815, None, 3),
}


def test_glue_layouts(tmp_path, wordpiece, monkeypatch):
    folder = tmp_path / "glue" / "RTE"
    folder.mkdir(parents=True)
    for name in ("train", "dev"):
        write_lines(folder / f"{name}.tsv", "index\tsentence1\tsentence2\tlabel", "0\ta film\tfun\tnot_entailment")
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    data = Glue(name="rte").load(wordpiece)
    assert data.validation.values("labels").tolist() == [1]
    assert Glue(name="rte", path=str(folder)).load(wordpiece).info == data.info
    with pytest.raises(DataError, match=r"HEADJAX_DATA has no folder glue/CoLA or CoLA with train.tsv and dev.tsv or "):
        Glue(name="cola").load(wordpiece)
    with pytest.raises(DataError, match=rf"^{folder}: not a folder of mnli: expected train.tsv and dev_matched"):
        Glue(name="mnli", path=str(folder)).load(wordpiece)
    monkeypatch.delenv("HEADJAX_DATA")
    with pytest.raises(DataError, match=r"^mnli: set HEADJAX_DATA to the folder that holds glue/MNLI"):
        Glue(name="mnli").load(wordpiece)
    with pytest.raises(ConfigError, match=r"^name: unknown GLUE task 'sst-2'; did you mean 'sst2'\?"):
        Glue(name="sst-2")


@pytest.mark.parametrize("name", REAL)
def test_real_glue_files(data_dir, monkeypatch, name):
    monkeypatch.setenv("HEADJAX_DATA", str(data_dir))
    trained, evaluated, classes = REAL[name]
    table = Glue(name=name).table()
    found = table.read(quotes=False)
    train, validation = found["train"], found["validation"]
    if evaluated is None:
        assert 0.1 < len(validation) / trained < 0.3
        evaluated = len(validation)
        trained -= evaluated
    assert (len(train), len(validation)) == (trained, evaluated)
    labels = np.asarray([row.values["label"] for row in table.numbered(found)["validation"]])
    if classes:
        assert sorted(set(labels.tolist())) == list(range(classes)) == list(range(len(GLUE[name].form.label_names)))
    else:
        assert (labels.min(), labels.max()) == (0.0, 5.0)
