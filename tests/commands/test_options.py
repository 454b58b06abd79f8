"""Options from dataclasses: types, bounds, spellings, and errors that name an option as it was typed."""

import dataclasses
import shlex
from typing import Literal

import pytest

from headjax.cli import Parser
from headjax.commands.options import (
    CommandOptions,
    argument,
    check_places,
    option,
    option_name,
    parse_options,
)
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, Rate, Size
from headjax.storage import integrity


def of_thousand(text: str) -> int:
    if not text.endswith("k"):
        raise ValueError(f"expected thousands such as 3k, got {text!r}")
    return 1000 * int(text[:-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    source: str = argument("SOURCE", "where it comes from")
    out: str = argument("OUT", "where it goes")
    warm_up: Count = option(3, "steps at first")
    dropout: Rate = option(0.25, "share of zeros", "R")
    kind: Literal["one", "two"] = option("one", "how it is made")
    layers: tuple[Size, ...] = option((), "only these", "LAYERS")
    names: tuple[str, ...] = option((), "only these, 10% of them", "NAMES")
    files: tuple[str, ...] = option((), "some files", "FILE", words="many")
    set: tuple[str, ...] = option((), "one field", "FIELD=VALUE", words="repeated")
    memory: int | None = option(None, "its memory", "SIZE", read=of_thousand, shown="2k")
    check: bool = option(False, "look at it again")
    remove: str | None = option(None, "some heads", "HEADS", one_of="goal")
    keep: Size | None = option(None, "some heads", one_of="goal")
    count: Count = option(2, "how often", name="--times")
    repair: Literal["mean", "zero"] = option("mean", "what stands for them", requires="remove")
    overrides: tuple[str, ...] = ()


def parsed(*words: str, goal: tuple[str, ...] = ("--keep", "1"), **given):
    return parse_options(Options, [*words, *goal], Parser(prog="headjax try"), **given)


def test_defaults_are_those_of_the_dataclass():
    assert parsed("a", "b") == Options(source="a", out="b", keep=1)


def test_every_type_is_read():
    words = shlex.split("--warm-up 7 --dropout 1e-1 --kind two --layers 3,1 --names x,y --memory 2k")
    more = ("--set", "p=1", "--check", "--set", "q=2", "--json", "-", "--files", "f", "g")
    assert parsed("a", "b", *words, *more, overrides=("z",)) == Options(
        source="a", out="b", warm_up=7, dropout=0.1, kind="two", layers=(3, 1), names=("x", "y"), memory=2000,
        set=("p=1", "q=2"), check=True, json="-", files=("f", "g"), keep=1, overrides=("z",),
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [("a", "b"), ("a", "--warm-up", "3", "b"), ("--check", "a", "b")],
)
def test_a_word_stands_anywhere(words):
    found = parsed(*words)
    assert (found.source, found.out) == ("a", "b")


def test_a_name_can_be_shortened():
    assert parsed("a", "b", "--war", "8").warm_up == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b", "--warm-up", "-1"), "--warm-up: must not be negative, got -1"),
        (("a", "b", "--warm-up", "1.5"), "--warm-up: expected a whole number, got '1.5'"),
        (("a", "b", "--warm-up"), "--warm-up: expected one argument"),
        (("a", "b", "--dropout", "half"), "--dropout: expected a number, got 'half'"),
        (("a", "b", "--dropout", "1"), "--dropout: must be at least 0 and below 1, got 1.0"),
        (("a", "b", "--dropout", "nan"), "--dropout: must be finite, got nan"),
        (("a", "b", "--kind", "three"), "--kind: must be one of one, two, got 'three'"),
        (("a", "b", "--layers", "3,x"), "--layers: expected numbers such as 16,32,64, got '3,x'"),
        (("a", "b", "--layers", "3,0"), "--layers[1]: must be an integer of at least 1, got 0"),
        (("a", "b", "--memory", "3"), "--memory: expected thousands such as 3k, got '3'"),
        (("a", "b", "--remove", "all"), "--keep: not allowed with argument --remove"),
        (("a", "b", "--json", ""), "--json: it is empty"),
        (("", "b"), "SOURCE: it is empty"),
        (("a", "b", "--names", "x,,y"), "--names: it is empty"),
        (("a", "b", "--json", "a\udcff"), "--json: not UTF-8: 'a\\udcff'"),
        (("a", "b", "--warm-up", str(2**63)), "--warm-up: must be below 2**63 in size, got 9223372036854775808"),
        (("a", "b", "c"), "unrecognized arguments: c"),
        (("a", "b", "--nothing"), "unrecognized arguments: --nothing"),
        (("a",), "the following arguments are required: OUT"),
        ((), "the following arguments are required: SOURCE, OUT"),
    ],
)
def test_errors_name_the_option_as_typed(words, message):
    with pytest.raises(HeadjaxError) as error:
        parsed(*words)
    assert str(error.value) == message


def test_an_option_may_have_another_name_than_its_field():
    options = parsed("a", "b", "--times", "4")
    assert options.count == 4
    assert [option_name(options, field) for field in ("count", "warm_up", "out")] == ["--times", "--warm-up", "OUT"]
    with pytest.raises(HeadjaxError, match=r"^--times: must not be negative, got -4$"):
        parsed("a", "b", "--times", "-4")


def test_one_option_of_a_group_is_needed():
    with pytest.raises(HeadjaxError, match=r"^one of the arguments --remove --keep is required$"):
        parsed("a", "b", goal=())


def test_an_option_that_does_nothing_without_another_needs_it():
    assert parsed("a", "b", "--repair", "zero", goal=("--remove", "all")).repair == "zero"
    with pytest.raises(HeadjaxError, match=r"^--repair: needs --remove$"):
        parsed("a", "b", "--repair", "mean")  # also with the default, which would be ignored as well


def test_the_help_shows_defaults(capsys):
    with pytest.raises(SystemExit) as stopped:
        parsed("--help")
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "headjax try" in shown
    for text in (
        "OUT where it goes", "steps at first (default 3)", "(default 0.25)", "{one,two}",
        "--times N how often (default 2)",
        "with --remove: what stands for them (default mean)",
        "10% of them", "its memory (default 2k)", "look at it again --remove", "write the result as JSON",
    ):  # fmt: skip
        assert text in shown


def test_a_folder_is_overwritten_if_asked_for_and_headjaxs_own(tmp_path):
    """Both are known before any work is done for it."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Writing(CommandOptions):
        out: str = argument("OUT", "folder", writes="new")

    (tmp_path / "config.json").write_text("{}")
    integrity.write_record(tmp_path)
    with pytest.raises(HeadjaxError, match="--overwrite"):
        check_places(Writing(out=str(tmp_path)))
    check_places(Writing(out=str(tmp_path), overwrite=True))
    check_places(Writing(out=str(tmp_path / "new")))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HeadjaxError, match=r"notes\.txt"):
        check_places(Writing(out=str(tmp_path), overwrite=True))
