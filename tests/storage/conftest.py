"""A directory on disk and one in a bucket, each of version 1."""

import pytest

from headjax.storage.paths import path_of
from tests.storage.versions import save


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "model", 1)
    return tmp_path / "model"


@pytest.fixture
def home(bucket):
    """An empty folder of a bucket."""
    return path_of(bucket)


@pytest.fixture
def far(home):
    save(home / "model", 1)
    return home / "model"
