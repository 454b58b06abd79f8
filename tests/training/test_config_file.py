"""Config files and overrides: what is set, and the one line for what cannot be."""

import pytest

import headjax
from tests.buckets import path_of
from tests.training import runs

FILE = """
from ml_collections import ConfigDict
from headjax import parse_arguments

def get_config(arg=""):
    knobs = parse_arguments(arg, width=8, rate=0.5, name="plain", smoke=False)
    return ConfigDict({"model": {"width": knobs.width, "name": knobs.name}, "rate": knobs.rate, "smoke": knobs.smoke})
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(FILE)
    return str(path)


def test_arguments_keep_the_types_of_their_defaults(file):
    config = headjax.load_config(f"{file}:width=16,rate=1,name=a=b,smoke")
    assert config.to_dict() == {"model": {"width": 16, "name": "a=b"}, "rate": 1.0, "smoke": True}
    assert headjax.load_config(f"{file}:smoke=false").smoke is False
    assert vars(headjax.parse_arguments("", a=1, b="x")) == {"a": 1, "b": "x"}


def test_a_config_in_a_bucket(bucket):
    path = path_of(bucket) / "config.py"
    path.write_text(FILE)
    assert headjax.load_config(f"{path}:width=16,name=gs://a/b").model.to_dict() == {"width": 16, "name": "gs://a/b"}
    assert headjax.load_config(str(path), ["--config.rate=2"]).rate == 2.0
    with pytest.raises(headjax.ConfigError, match=rf"^{bucket}/other.py: "):
        headjax.load_config(f"{bucket}/other.py:width=1")


def test_overrides_set_fields_named_or_left_at_their_default(file):
    overrides = ["--config.model.width=3", "--config.rate=2", "--config.model.name=7", "--config.model.depth=5"]
    config = headjax.load_config(file, [*overrides, "--config.smoke=True"])
    assert config.to_dict() == {"model": {"width": 3, "name": "7", "depth": 5}, "rate": 2.0, "smoke": True}
    assert headjax.load_config(file, [f"--config.rate={10**400}"]).rate == 10**400  # which the run's config refuses


@pytest.mark.parametrize("argument", ["widht=3", "width=x", "width", "smoke=maybe"])
def test_unusable_arguments(file, argument):
    with pytest.raises(headjax.ConfigError, match=f"^{file}: config argument.*{argument[:4]}"):
        headjax.load_config(f"{file}:{argument}")


@pytest.mark.parametrize("path", ["model.width", "rate"])
def test_unusable_overrides(file, path):
    with pytest.raises(headjax.ConfigError, match=f"^config.{path}: "):
        headjax.load_config(file, [f"--config.{path}.x=3"])


@pytest.mark.parametrize(
    "text",
    [
        *("x = 1", "def get_config(arg=''): return {}", "def get_config(arg=''): return 1 / 0"),
        *("import nothing_of_that_name", "def get_config(:", None),
    ],
)
def test_unusable_files(tmp_path, text):
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(headjax.ConfigError, match=f"^{path}: ") as error:
        headjax.load_config(str(path))
    assert "\n" not in str(error.value)


@pytest.fixture
def run(tmp_path):
    """A config file of a whole run, and what it describes with overrides."""
    file = tmp_path / "run.py"
    schedule = {"kind": "cosine", "peak": 0.01, "final": 0.5}
    fields = runs.FIELDS | {"optimizer": {"kind": "adamw", "schedule": schedule}, "initialization": None}
    file.write_text(f"from ml_collections import ConfigDict\ndef get_config(arg=''): return ConfigDict({fields})\n")
    return lambda *overrides: headjax.train_config(
        headjax.load_config(str(file), [f"--config.{each}" for each in overrides])
    )


def test_another_kind_drops_the_fields_it_does_not_have_and_text_stays_text(run):
    overrides = ("model.attention.kind=grouped", "model.attention.kv_heads=1", "optimizer.schedule.kind=constant_rate")
    found = run(*overrides, "data.validation='2024'")
    assert found == run("data.validation='2024'", *reversed(overrides))
    assert found.model.attention == (headjax.Kind(headjax.GroupedAttention, num_heads=2, kv_heads=1, head_dim=8),) * 2
    assert found.optimizer.schedule == headjax.ConstantRate(peak=0.01)
    assert found.data.validation == "2024"
    assert run("model.attention.kind=multi_head") == run()
    # A group inside another one, and a group that the file leaves out.
    inner = ("kind=multi_head", "num_heads=1", "head_dim=4")
    wrapped = run(
        "model.attention.kind=compressed",
        "model.attention.rank=3",
        *(f"model.attention.inner.{each}" for each in inner),
    )
    inside = headjax.Kind(headjax.MultiHeadAttention, num_heads=1, head_dim=4)
    assert wrapped.model.attention == (headjax.Kind(headjax.CompressedAttention, inner=inside, rank=3),) * 2
    admin = run("initialization.exclude_padding=True", "initialization.kind=admin").initialization
    assert (type(admin).__name__, admin.exclude_padding) == ("Admin", True)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ("model.attention.kind=groupd", "model.attention.kind"),
        ("model.attention.kind=grouped", "model.attention.kv_heads"),
        ("optimizer.schedule.kind=constant_rate optimizer.schedule.final=0.5", "optimizer.schedule.final"),
        ("model.attention.head_din=2", "model.attention.head_din"),
        ("model.width.deep=1", "model.width"),
        ("initialisation.kind=admin", "initialisation"),
        ("prng.kind=admin", "prng"),
        ("initialization.exclude_padding=True", "initialization.kind"),
    ],
)
def test_unusable_kinds_and_groups(run, overrides, field):
    with pytest.raises(headjax.ConfigError, match=f"^config.{field}: "):
        run(*overrides.split())
