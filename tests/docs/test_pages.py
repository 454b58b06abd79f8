"""The pages of docs/ and README: links lead somewhere, command lines parse, and Python blocks run.

A block that cannot run here says why in a comment above it, which no reader of the site sees:

    <!-- not run: needs SST-2 -->
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import headjax
from docs import reference
from headjax.cli import COMMANDS, Parser
from headjax.commands.options import CommandOptions, name_of, parse_options
from tests import tiny
from tests.commands.language_folder import write_language_folder
from tests.commands.test_golden import CONTRACT

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"
PAGES = [
    *(ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md", "RELIABILITY.md", "tpu/README.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if GENERATED not in path.parents),
]


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Block(NamedTuple):
    """A fenced block of code: its language, its text, and the reason in the comment above it."""

    language: str
    text: str
    reason: str


FENCE = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^>]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)^ *```$",
    flags=re.MULTILINE | re.DOTALL,
)


def blocks(path: Path) -> list[Block]:
    found = []
    for match in FENCE.finditer(path.read_text(encoding="utf-8")):
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(match["language"], text, match["reason"] or ""))
    return found


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


# Links.


def slugs(text: str) -> set[str]:
    """The anchors of a page: of its headings, and those that it names."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def generated():
    """The text of the pages that the site's build generates, by file."""
    return {GENERATED / name: page() for name, page in reference.PAGES.items()}


def dead_links(source: Path, text: str, generated: dict[Path, str]) -> list[str]:
    """The links of a page that lead to no file, or to no heading in it."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (source.parent / name).resolve() if name else source
        is_on_site = target in generated and (ROOT / "docs") in source.parents
        if not is_on_site and (target in generated or not target.exists()):
            dead.append(link)
        elif anchor:
            there = generated[target] if target in generated else target.read_text(encoding="utf-8")
            dead += [] if anchor in slugs(there) else [link]
    return dead


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_links_and_anchors_lead_somewhere(path, generated):
    assert not dead_links(path, prose(path), generated)


def test_every_guarantee_names_a_test_that_exists():
    named = set(re.findall(r"`([a-z_/]*test_\w+\.py)`", (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")))
    assert len(named) > 15
    assert [test for test in sorted(named) if not (ROOT / "tests" / test).is_file()] == []


# Command lines.


def command_lines(path: Path) -> list[str]:
    """The commands in fenced and indented blocks, continued lines joined."""
    fenced = [block.text for block in blocks(path) if block.language in ("", "sh", "bash", "console")]
    indented = "\n".join(re.findall(r"^ {4,}(\S.*)$", prose(path), flags=re.MULTILINE))
    text = re.sub(r"\\\n\s*", " ", "\n".join((*fenced, indented)))
    return re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?headjax (.+)$", text, flags=re.MULTILINE)


def parse(line: str) -> CommandOptions:
    """Return a command's options, read as the command line does."""
    name, *words = shlex.split(line, comments=True)
    options = importlib.import_module(f"headjax.commands.{name}").Options
    typed = [word for word in words if not word.startswith("--config.")]
    given = {"overrides": ()} if "overrides" in options.__dataclass_fields__ else {}
    assert given or len(typed) == len(words)
    return parse_options(options, typed, Parser(prog=f"headjax {name}"), **given)


LINES = [pytest.param(line, id=f"{by_name(path)}: {line[:40]}") for path in PAGES for line in command_lines(path)]


@pytest.mark.parametrize("line", LINES)
def test_command_lines_parse(line):
    assert type(parse(line)).__module__ == f"headjax.commands.{line.split()[0]}"


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_commands_and_options_within_sentences_exist(path):
    for span in re.findall(r"`headjax ([^`]+)`", prose(path)):
        name, *words = span.split()
        if not re.fullmatch(r"[a-z]+", name):
            continue
        assert name in COMMANDS, span
        fields = importlib.import_module(f"headjax.commands.{name}").Options.__dataclass_fields__.values()
        options = [field for field in fields if "option" in field.metadata]
        known = {"--help", *map(name_of, options)}
        asked = {word.split("=")[0] for word in words if word.startswith("--") and not word.startswith("--config.")}
        assert asked <= known, span


# JSON.


@pytest.mark.parametrize("line", CONTRACT)
def test_the_page_of_json_has_every_key_of_the_contract(line):
    page = reference.json_page()
    rows = dict(re.findall(r"^\| ([`*][\w ]+[`*]) \| (.*) \|$", page, re.MULTILINE))
    row = rows[f"`{line.split()[0]}`"]
    while shared := re.search(r"\*[\w ]+\*", row):  # names of keys that several commands write
        row = row.replace(shared[0], rows[shared[0]])
    assert {key.split(".")[0] for key in CONTRACT[line].split()} <= set(re.findall(r"`([^`]+)`", row))


# Python.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the pages speak of: `model` and `mine`, a classifier, with `reviews.tsv`, and `decoder`."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("model", "mine"):
        tiny.text_encoder(headjax.tasks.Classification(classes=2), headjax.byte_tokenizer(), max_length=32).save(
            folder / name
        )
    rows = "".join(f"film {i} is {'good' if i % 3 else 'bad'}\t{int(i % 3 > 0)}\n" for i in range(32))
    (folder / "reviews.tsv").write_text(f"sentence\tlabel\n{rows}")
    write_language_folder(folder / "language", max_length=32)
    (folder / "language" / "model").rename(folder / "decoder")
    return folder


RUNNABLE = [path for path in PAGES if any(block.language == "python" and not block.reason for block in blocks(path))]


@pytest.mark.whole
@pytest.mark.parametrize("path", RUNNABLE, ids=by_name)
def test_python_blocks_run_one_after_another(path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    module = type(sys)("page")
    monkeypatch.setitem(sys.modules, "page", module)  # dataclasses look up their module
    before = set(vars(module))
    for block in blocks(path):
        if block.language == "python" and not block.reason:
            exec(compile(block.text, by_name(path), "exec"), vars(module))
    assert set(vars(module)) - before  # the blocks have run and left their names
