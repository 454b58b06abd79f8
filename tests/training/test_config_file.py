"""Config files and overrides: what is set, and the one line for what cannot be."""

import dataclasses

import pytest

from headjax.core.configuration import parse_arguments
from headjax.core.errors import ConfigError
from headjax.core.serialize import from_data, kind
from headjax.storage.paths import path_of
from headjax.training.config_file import load_config_file

FILE = """
from ml_collections import ConfigDict
from headjax.core.configuration import parse_arguments

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
    config = load_config_file(f"{file}:width=16,rate=1,name=a=b,smoke")
    assert config.to_dict() == {"model": {"width": 16, "name": "a=b"}, "rate": 1.0, "smoke": True}
    assert load_config_file(f"{file}:smoke=false").smoke is False
    assert vars(parse_arguments("", a=1, b="x")) == {"a": 1, "b": "x"}


def test_a_config_in_a_bucket(bucket):
    path = path_of(bucket) / "config.py"
    path.write_text(FILE)
    assert load_config_file(f"{path}:width=16,name=gs://a/b").model.to_dict() == {"width": 16, "name": "gs://a/b"}
    assert load_config_file(str(path), ["--config.rate=2"]).rate == 2.0
    with pytest.raises(ConfigError, match=rf"^{bucket}/other.py: "):
        load_config_file(f"{bucket}/other.py:width=1")


def test_overrides_set_fields_named_or_left_at_their_default(file):
    overrides = ["--config.model.width=3", "--config.rate=2", "--config.model.name=7", "--config.model.depth=5"]
    config = load_config_file(file, [*overrides, "--config.smoke=True"])
    assert config.to_dict() == {"model": {"width": 3, "name": "7", "depth": 5}, "rate": 2.0, "smoke": True}


@pytest.mark.parametrize("argument", ["widht=3", "width=x", "width", "smoke=maybe"])
def test_unusable_arguments(file, argument):
    with pytest.raises(ConfigError, match=f"^{file}: config argument.*{argument[:4]}"):
        load_config_file(f"{file}:{argument}")


@pytest.mark.parametrize(
    "path, text",
    [
        *(("model.width", text) for text in ("=wide", "=1if 2 else", ".x=3")),
        *(("model", text) for text in ("=3", "={'a.b': 1}", "={'a': {1: 2}}")),
        *(("rate", "={[]: 1}"), ("rate", "=" + "-" * 10_000 + "1"), ("modl", ".x=3")),
    ],
)
def test_unusable_overrides(file, path, text):
    with pytest.raises(ConfigError, match=f"^config.{path}: "):
        load_config_file(file, [f"--config.{path}{text}"])


@pytest.mark.parametrize(
    "text",
    [
        *("x = 1", "def get_config(arg=''): return {}", "def get_config(arg=''): return 1 / 0"),
        *("import nothing_of_that_name", "def get_config(:", None),
        *(
            f"from ml_collections import ConfigDict\ndef get_config(arg=''): return ConfigDict({fields})"
            for fields in ("{1: 2}", "{'a': 1, 2: 3}", "{'a': {(1, 2): 3, 'b': 4}}")
        ),
    ],
)
def test_unusable_files(tmp_path, text):
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"^{path}: ") as error:
        load_config_file(str(path))
    assert "\n" not in str(error.value)


class Shape:
    """Base of the shapes of this file's tests."""


@kind("test_round")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Round(Shape):
    radius: float
    colour: str = "red"


@kind("test_box")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Box(Shape):
    width: int
    height: int = 2
    colour: str = "red"
    within: Shape | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """What the file of `drawing` describes."""

    shape: Shape
    frame: Shape | None = None
    title: str = ""


@pytest.fixture
def drawing(tmp_path):
    path = tmp_path / "drawing.py"
    shape = {"kind": "test_round", "radius": 1.5, "colour": "blue"}
    path.write_text(
        "from ml_collections import ConfigDict\n"
        f"def get_config(arg=''): return ConfigDict({{'shape': {shape}, 'frame': None}})\n"
    )
    return str(path)


def drawn(file, *overrides):
    return from_data(Drawing, load_config_file(file, [f"--config.{each}" for each in overrides], Drawing).to_dict())


def test_another_kind_drops_the_fields_it_does_not_have(drawing):
    overrides = ("shape.kind=test_box", "shape.width=3")
    assert drawn(drawing, *overrides) == drawn(drawing, *reversed(overrides))
    assert drawn(drawing, *overrides).shape == Box(width=3, colour="blue")
    assert drawn(drawing, "shape.kind=test_round") == drawn(drawing)


def test_a_group_that_the_file_leaves_out_can_be_named_and_text_stays_text(drawing):
    overrides = ("frame.kind=test_box", "frame.width=1", "frame.within.kind=test_round", "frame.within.radius=2")
    found = drawn(drawing, *overrides, "title=2024")
    assert (found.frame, found.title) == (Box(width=1, within=Round(radius=2.0)), "2024")


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ("shape.kind=test_bx", "shape.kind"),
        ("shape.kind=test_box", "shape.width"),
        ("shape.kind=test_box shape.width=3 shape.radius=2", "shape.radius"),  # which the new kind lacks
        ("shape.radios=2", "shape.radios"),
        ("shape.radius.deep=1", "shape.radius"),
        ("frme.kind=test_box", "frme"),
        ("title.kind=test_box", "title"),
        ("frame.width=1", "frame.kind"),
    ],
)
def test_unusable_kinds_and_groups(drawing, overrides, field):
    with pytest.raises(ConfigError, match=f"^config.{field}: "):
        drawn(drawing, *overrides.split())
