"""The generated reference pages hold every name, field, option and task, as the code has them now."""

import dataclasses
import re

import headjax
from docs import reference
from headjax.cli import COMMANDS
from headjax.core.serialize import class_of_kind, kinds_of


def test_every_public_name_has_its_directive():
    page = reference.names_page()
    titles = re.findall(r"^## `headjax\.(\w+)`$", page, flags=re.MULTILINE)
    assert sorted(titles) == sorted(name for name in headjax.__all__ if name != "__version__")
    assert ".. autofunction:: headjax.score_heads\n" in page
    assert ".. autoclass:: headjax.Model\n" in page
    assert ".. automodule:: headjax.plots\n" in page
    assert re.search(r"\.\. autodata:: headjax\.[\w.]+\.Batch\n", page)


def test_every_kind_and_every_field_of_a_run_is_on_the_config_page():
    page = reference.config_page()
    for name in kinds_of(object):
        if not class_of_kind(name).__module__.startswith("headjax."):
            continue  # of another test in this process
        assert page.count(f"(kind-{name})=") == 1, name
    section = page.split("(group-trainconfig)=")[1].split("(group-")[0]
    for field in dataclasses.fields(headjax.TrainConfig):
        assert f"| `{field.name}` |" in section
    for target in set(re.findall(r"\]\(#([\w-]+)\)", page)):
        assert f"({target})=" in page


def test_every_config_field_is_explained():
    reference.load_kinds()
    silent = [
        f"{cls.__name__}.{field.name}"
        for classes in reference.config_classes().values()
        for cls in classes
        if cls.__module__.startswith("headjax.")
        for field in reference.config_fields(cls)
        if not field.meaning
    ]
    assert not silent


def test_every_command_is_on_its_page_with_its_help():
    page = reference.commands_page()
    for command in COMMANDS:
        section = page.split(f"(command-{command})=")[1].split("\n(command-")[0]
        assert f"usage: headjax {command} " in section
        assert "--json PATH" in section


def test_every_task_is_on_its_page_with_what_it_needs():
    lines = [line.split(" | ") for line in reference.tasks_page().splitlines() if line.startswith("| ")]
    rows = {name.removeprefix("| "): cells for name, *cells in lines}
    assert set(rows) - {"Task", "---"} == {*headjax.data.TASKS}
    assert all(needs for needs, *_ in rows.values())
    first = {name: rows[name][2].split(",")[0] for name in ("pairs", "regression", "tokens")}
    assert first == {"pairs": "accuracy", "regression": "spearman", "tokens": "entity_f1"}
