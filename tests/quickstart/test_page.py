"""Sentences of the quickstart's page; the page itself is looked at in `test_study`."""

import pytest

from headjax.quickstart.page import device, relative_change


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "0.0 %"), (1.004, "0.4 %"), (1.096, "9.6 %"), (1.5, "50 %"), (0.98, "-2.0 %")]
)
def test_small_changes_have_a_digit_more(value, text):
    assert relative_change(2 * value, 2.0) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_the_device_is_named():
    assert device().endswith("CPU")
