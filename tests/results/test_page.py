"""RESULTS.md and its appendix are what the raw results and the claims say."""

import re

import pytest

from results import page
from results.measures import claims, document
from results.plots import PLOTS
from results.table import FOLDER
from tests.docs.test_pages import parse


def test_the_pages_are_up_to_date():
    for path, text in ((page.PAGE, page.results()), (page.APPENDIX, page.appendix())):
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python -m results"


@pytest.mark.whole
def test_plots_are_drawn_again(tmp_path, monkeypatch):
    for name in ("PAGE", "APPENDIX"):
        monkeypatch.setattr(page, name, tmp_path / name)
    pictures = page.PICTURES
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    page.draw()
    assert (
        {file.stem for file in pictures.glob("*.png")} == {file.stem for file in tmp_path.glob("*.png")} == set(PLOTS)
    )
    assert set(document()["page"]["figures"]) == set(PLOTS)
    for name in PLOTS:
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_results_are_two_screens_of_at_most_twelve_findings_and_five_figures():
    text = page.PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^\| \[", text, re.MULTILINE)) <= 12
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) <= 5
    assert len(text.split()) < 1_200


def test_every_experiment_has_its_numbers_and_its_command():
    experiments = document()["experiments"]
    assert set(experiments) == {file.stem for file in FOLDER.glob("*.csv")}
    used = {row.data for claim in claims() for row in claim.rows}
    assert used <= set(experiments)


COMMANDS = sorted(
    {
        line
        for experiment in document()["experiments"].values()
        for line in re.sub(r"\\\n\s*", " ", experiment["command"]).splitlines()
        if line.startswith("headjax ")
    }
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_experiments_parse(line):
    assert type(parse(line.removeprefix("headjax "))).__module__ == f"headjax.commands.{line.split()[1]}"
