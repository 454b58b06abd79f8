"""The transcripts show the commands of their list, as they are now."""

import re
import subprocess

import pytest

from docs import transcripts
from docs.transcripts import PAGE, SESSIONS, shape


@pytest.fixture(scope="module")
def shown():
    return transcripts.transcripts(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_every_command_of_the_list_in_its_order(shown):
    assert list(shown) == [command for session in SESSIONS for command in session.commands]
    assert all(shown.values())


def test_errors_are_one_line_that_names_the_command_line(shown):
    (errors,) = [session for session in SESSIONS if session.title == "Errors"]
    for command in errors.commands:
        assert re.fullmatch(r"headjax: error: .+", shown[command])


@pytest.mark.whole
def test_quick_commands_print_what_the_page_shows(shown, tmp_path):
    transcripts.prepare(tmp_path)
    for session in SESSIONS:
        if session.is_quick:
            for command in session.commands:
                assert shape(transcripts.run(command, tmp_path)) == shape(shown[command]), command


def test_a_shape_forgets_numbers_and_widths_alone():
    assert shape("loss   2.888   1,024\n────") == shape("loss 12.1 3\n──") == ["loss 0 0", ""]
    assert shape("loss 1") != shape("accuracy 1")


def test_a_command_that_fails_without_an_error_line_is_noticed(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback (most recent call last):")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="headjax inspect model: exit code 1\nTraceback"):
        transcripts.run("headjax inspect model", tmp_path)
