"""What cannot fit into memory is refused before it is built."""

import pytest

from headjax.core import limits
from headjax.core.errors import ConfigError, HeadjaxError


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500M", 500 * 2**20), ("8g", 8 * 2**30), ("2KiB", 2048), ("3 ", 3)]
)
def test_a_variable_sets_the_memory(monkeypatch, text, size):
    assert limits.host_memory() is None or limits.host_memory() > 2**28
    monkeypatch.setenv(limits.MEMORY, text)
    assert limits.host_memory() == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "8X", "9" * 5000, "nan"])
def test_a_variable_without_a_size_is_an_error(monkeypatch, text):
    monkeypatch.setenv(limits.MEMORY, text)
    with pytest.raises(HeadjaxError, match=r"^HEADJAX_MEMORY: "):
        limits.host_memory()


def test_arrays_that_cannot_fit_are_named():
    limits.check_memory("config.batch_size", 2**30, 2**30, "8 examples")
    limits.check_memory("config.batch_size", 2**60, None, "8 examples")
    with pytest.raises(ConfigError, match=r"^config.batch_size: "):
        limits.check_memory("config.batch_size", 2**31, 2**30, "8 examples")
