"""Formats: later ones are refused with what to install, earlier ones and files without one pass."""

from pathlib import Path

import pytest

from headjax.core.errors import CheckpointError, DataError
from headjax.core.formats import check_format, stated
from headjax.version import __version__

FILE = Path("folder/config.json")


@pytest.mark.parametrize("data", [{}, {"format": 1}, {"format": 2}, stated(2)])
def test_formats_up_to_the_known_one_pass(data):
    check_format(data, 2, FILE)


@pytest.mark.parametrize(
    "data, writer, install",
    [
        ({"format": 3}, None, "a later headjax"),
        ({"format": 3, "headjax": "9.1.0"}, None, "headjax 9.1.0 or later"),
        ({"format": 3, "headjax": 7}, None, "a later headjax"),
        ({"format": 3}, "9.2.0", "headjax 9.2.0 or later"),
    ],
)
def test_a_later_format_says_what_to_install(data, writer, install):
    said = f"{FILE}: format 3 is newer than headjax {__version__} reads (2); install {install}"
    with pytest.raises(DataError) as caught:
        check_format(data, 2, FILE, writer, DataError)
    assert str(caught.value) == said


def test_what_is_no_number_is_no_format():
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        check_format({"format": "two"}, 2, FILE)
