"""Config files and overrides: what is set, and the one line for what cannot be."""

import pytest

from headjax.core.configuration import load_config, parse_arguments
from headjax.core.errors import ConfigError

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
    config = load_config(f"{file}:width=16,rate=1,name=a=b,smoke")
    assert config.to_dict() == {"model": {"width": 16, "name": "a=b"}, "rate": 1.0, "smoke": True}
    assert load_config(f"{file}:smoke=false").smoke is False


def test_overrides_set_fields_named_or_left_at_their_default(file):
    overrides = ["--config.model.width=3", "--config.rate=2", "--config.model.name=7", "--config.model.depth=5"]
    config = load_config(file, [*overrides, "--config.smoke=True", "--config.mesh.fsdp=2"])
    assert config.to_dict() == {
        "model": {"width": 3, "name": "7", "depth": 5},
        "rate": 2.0,
        "smoke": True,
        "mesh": {"fsdp": 2},
    }


@pytest.mark.parametrize(
    "argument, message",
    [
        ("widht=3", r"config argument: unknown argument 'widht'; did you mean 'width'\?"),
        ("width=x", r"config argument width: expected int, got 'x'"),
        ("width", r"config argument width: expected width=VALUE"),
        ("smoke=maybe", r"config argument smoke: expected true or false, got 'maybe'"),
    ],
)
def test_unusable_arguments(file, argument, message):
    with pytest.raises(ConfigError, match=rf"^{file}: {message}$"):
        load_config(f"{file}:{argument}")


@pytest.mark.parametrize(
    "override, message",
    [
        ("--config.model.width=wide", r"config\.model\.width: expected int, got 'wide'"),
        ("--config.modl.width=3", r"config\.modl: unknown group 'modl'; did you mean 'model'\?"),
        ("--config.model.width.deep=3", r"config\.model\.width: unknown group 'width'; known: "),
        ("--config.rate", r"--config\.rate: expected --config\.FIELD=VALUE"),
        ("--config.model=3", r"config\.model: expected ConfigDict, got '3'"),
    ],
)
def test_unusable_overrides(file, override, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        load_config(file, [override])


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1", r"defines no get_config\(arg\)$"),
        ("def get_config(arg=''): return {}", r"get_config must return a ConfigDict, got dict$"),
        ("def get_config(arg=''): return 1 / 0", r"ZeroDivisionError: division by zero$"),
        ("import nothing_of_that_name", r"ModuleNotFoundError: No module named"),
        ("def get_config(:", r"SyntaxError: "),
    ],
)
def test_unusable_files(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"^{path}: {message}") as error:
        load_config(str(path))
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.py: no such config file$"):
        load_config(str(tmp_path / "gone.py"))


def test_parse_arguments_of_nothing_gives_the_defaults():
    assert vars(parse_arguments("", a=1, b="x")) == {"a": 1, "b": "x"}
