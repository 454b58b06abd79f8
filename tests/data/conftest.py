"""Text that several tests read."""

from __future__ import annotations

import pytest

from headjax.data.corpus import embedded_corpus


@pytest.fixture(scope="session")
def corpus():
    return embedded_corpus()
