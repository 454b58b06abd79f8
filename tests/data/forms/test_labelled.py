from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.forms import (
    LabelledForm,
)
from headjax.data.rows import Row
from tests.data.forms.making import train


def test_regressions(wordpiece):
    form = LabelledForm(length=8)
    row = Row("sts.csv: line 4", {"text": "a film", "label": 2.5})
    assert train(form, wordpiece, [row])[0]["labels"] == np.float32(2.5)
    for value, message in (("much", "the label 'much' is not a number"), ("nan", "the label 'nan' is not finite")):
        with pytest.raises(DataError, match=f"^sts.csv: line 4: {message}"):
            train(form, wordpiece, [Row("sts.csv: line 4", {"text": "a", "label": value})])
