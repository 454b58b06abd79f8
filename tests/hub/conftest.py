"""Models and directories that the tests of the hub share."""

import shutil

import pytest

from headjax.heads.pruning import prune
from headjax.hub import to_huggingface
from tests.hub.directories import BERT, RAGGED, model_of


@pytest.fixture(scope="module")
def bert():
    return model_of(BERT)


@pytest.fixture(scope="module")
def ragged(bert):
    return prune(bert, RAGGED)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    model = model_of(BERT)
    folder = tmp_path_factory.mktemp("bert") / "bert"
    to_huggingface(model, folder)
    return model, folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "bert")
    return tmp_path / "bert"
