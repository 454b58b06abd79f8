from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import headjax

NAMES = [name for name in headjax.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_public_names_exist_and_are_explained(name):
    found = getattr(headjax, name)
    assert inspect.getdoc(found)
    assert name in dir(headjax)


def test_the_documentation_lists_them_all_and_no_others():
    text = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    listed = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(NAMES)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        headjax.atention  # noqa: B018
