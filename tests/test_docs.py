"""The documents hold: their links lead somewhere, and what they tell people to type exists."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands
from typer.main import get_command

from loadmaster.agent.cli import agent_app
from loadmaster.cli.main import app
from policies.host import registry

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?:\[[^\]]*\]\(|<img src=\")([^)\s\"]+)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|(?<=:\n))(?:(?: {4}.*)?\n)+")
_INLINE = re.compile(r"`([^`\n]+)`")
_MAKE = re.compile(r"\bmake ([a-z][a-z0-9-]*)")
_LOADMASTER = re.compile(r"(?:^|[\s/$])loadmaster ([a-z][a-z-]*)((?: [a-z][a-z-]*)?)")
_OPTION = re.compile(r"(?<=\s)--?[a-z][a-z-]*")
_FILE = re.compile(r"(?<![\w./<>{}*-])((?:[a-z_]+/)+[\w.-]+\.(?:py|json|css|sh|yaml|toml))\b")
_FUNCTION = re.compile(r"((?:[a-z_]+/)+[a-z_]+\.py):([a-z_]+)")
_MODULE = re.compile(r"python -m ([a-z_]+(?:\.[a-z_]+)*)")
_PACKAGES = {path.name for path in ROOT.iterdir() if path.is_dir()}
_MANAGE = re.compile(r"manage\.py ([a-z_]+)")


def documents() -> list[Path]:
    """Every document of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def code(document: Path) -> Iterator[str]:
    """The lines of a document's code, in blocks and within sentences."""
    text = document.read_text() + "\n"
    for found in (*_FENCE.finditer(text), *_INDENTED.finditer(text)):
        yield from (
            line
            for line in found[0].splitlines()
            if not line.lstrip().startswith(("import ", "from "))
        )
    yield from _INLINE.findall(_FENCE.sub("", text))


def anchors(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dangling(document: Path) -> list[str]:
    """The relative links that lead nowhere."""
    wrong = []
    for link in _LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("document", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    assert dangling(document) == []


def test_every_document_is_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in seen:
            continue
        seen.add(document)
        links = [
            (document.parent / link.partition("#")[0]).resolve()
            for link in _LINK.findall(document.read_text())
        ]
        waiting += [target for target in links if target.suffix == ".md" and target.exists()]
    assert set(documents()) - seen == set()


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for document in documents()
        for line in code(document)
        for target in _MAKE.findall(line)
    }
    assert named - targets == set()
    assert {"demo", "up", "test", "test-all"} <= named


def test_every_file_of_the_project_that_is_named_exists() -> None:
    named = {
        path
        for document in documents()
        for line in code(document)
        for path in _FILE.findall(line)
        if path.partition("/")[0] in _PACKAGES
    }
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert "loadmaster/agent/reconcile.py" in named


def test_every_function_that_is_named_with_its_file_is_there() -> None:
    named = {
        found
        for document in documents()
        for line in code(document)
        for found in _FUNCTION.findall(line)
    }
    assert {
        f"{path}:{name}"
        for path, name in named
        if not re.search(rf"^(?:async )?def {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    } == set()
    assert ("loadmaster/agent/reconcile.py", "reconcile") in named


def test_every_module_that_is_run_exists() -> None:
    named = {
        module
        for document in documents()
        for line in code(document)
        for module in _MODULE.findall(line)
        if module.partition(".")[0] in _PACKAGES
    }
    assert {module for module in named if find_spec(module) is None} == set()
    assert "policies" in named


def test_lines_have_at_most_100_columns() -> None:
    assert [
        f"{document.relative_to(ROOT)}:{number}"
        for document in documents()
        for number, line in enumerate(document.read_text().splitlines(), 1)
        if len(line) > 100
    ] == []


def test_documents_stay_short() -> None:
    """docs/ has at most 51,500 words, those of docs/asvs.md, tables and commands included."""
    texts = [document.read_text() for document in documents() if document.parent != ROOT]
    assert sum(len(text.split()) for text in texts) <= 52_000


def test_every_decision_has_its_own_number_and_stands_in_the_index_with_its_title() -> None:
    folder = ROOT / "docs/adr"
    index = " ".join((folder / "README.md").read_text().split())
    files = sorted(folder.glob("0*.md"))
    titles = {file.name: file.read_text().splitlines()[0].removeprefix("# ") for file in files}
    assert [
        f"[{title[:4]}]({name}): {title[6:]}."
        for name, title in titles.items()
        if f"- [{name[:4]}]({name}): {title[6:]}." not in index or name[:4] != title[:4]
    ] == []
    assert len({name[:4] for name in titles}) == len(titles)


def test_each_policy_is_described_in_150_words() -> None:
    text = (ROOT / "docs/policies.md").read_text()
    described = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert {name for name, words in described.items() if len(words.split()) > 150} == set()
    assert set(registry.BUILT_IN) - set(described) == set()


def test_every_command_of_manage_py_that_is_named_exists() -> None:
    named = {
        name
        for document in documents()
        for line in code(document)
        for name in _MANAGE.findall(line)
    }
    assert named - set(get_commands()) == set()
    assert {"replay_round", "recompute_cost"} <= named


@cache
def commands() -> dict[str, Any]:
    """The commands of `loadmaster` by name. To put them together takes a good part of a second."""
    return {**getattr(get_command(app), "commands", {}), "agent": get_command(agent_app)}


def wrong_commands(line: str) -> Iterator[str]:
    """What a line says of `loadmaster` that the command line does not know: commands, and options
    of those it knows. Behind `--sbatch SCRIPT` all words are sbatch's.
    """
    for found in _LOADMASTER.finditer(line):
        name, rest = found[1], re.split(r"\||(?<=--sbatch) ", line[found.end(1) :])[0]
        command = commands().get(name)
        inner = getattr(command, "commands", None)
        if inner:
            name, command = f"{name}{found[2]}", inner.get(found[2].strip())
        if command is None:
            yield f"loadmaster {name}"
            continue
        known = {option for parameter in command.params for option in parameter.opts}
        yield from (
            f"loadmaster {name} {option}" for option in _OPTION.findall(rest) if option not in known
        )


@pytest.mark.parametrize("document", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_and_option_of_the_command_line_that_is_named_exists(document: Path) -> None:
    assert [wrong for line in code(document) for wrong in wrong_commands(line)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("loadmaster submit job.yaml --watch", []),
        ("loadmaster login http://localhost --usernam ada", ["loadmaster login --usernam"]),
        ("$ loadmaster summit job.yaml", ["loadmaster summit"]),
        ("loadmaster secret set TEAM NAME", []),
        ("loadmaster submit --watch --sbatch run.sh --array=0-9", []),
        ("loadmaster submit --wtch --sbatch run.sh", ["loadmaster submit --wtch"]),
        (
            "loadmaster agent --server https://loadmaster.example --tokn x",
            ["loadmaster agent --tokn"],
        ),
        ("loadmaster secret give TEAM", ["loadmaster secret give"]),
    ],
)
def test_wrong_commands_are_noticed(line: str, wrong: list[str]) -> None:
    assert list(wrong_commands(line)) == wrong
