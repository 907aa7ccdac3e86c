"""The operator's guide holds: its commands run against a real system, and what they print is what
it says they print.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from django.core.management import get_commands, load_command_class

from controlplane.operations.embedded.programs import free_port
from tests.builders_guide import Block, Shell, blocks, missing, steps

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "operations.md"
TEXT = GUIDE.read_text()
_MANAGE = re.compile(r"(?:\bmanage|manage\.py) ([a-z_]+)((?:[^|;&\n]|\\\n)*)")
_OPTION = re.compile(r"(?<=\s)--[a-z][a-z-]*")


def checked_only() -> list[Block]:
    return [block for block in blocks(TEXT) if block.kind == "bash"]


def by_line(block: Block) -> str:
    return f"line-{block.line}"


def test_the_guide_has_blocks_of_both_kinds_and_no_other() -> None:
    assert {block.kind for block in blocks(TEXT)} == {"console", "bash"}


@pytest.mark.parametrize(
    "wrong", ["```sh\nls\n```\n", "```\nls\n```\n", "so:\n\n    ls\n", "```console\nls\n```\n"]
)
def test_code_of_another_kind_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="line"):
        [step for block in blocks(wrong) for step in steps(block)]


@pytest.mark.parametrize(
    ("expected", "output", "lacks"),
    [
        (("a ... c",), "a  b   c\n", None),
        (("one", "three"), "one\ntwo\nthree\n", None),
        (("three", "one"), "one\ntwo\nthree\n", "one"),
        (("a",), "ab\n", "a"),
        (("...",), "", None),
    ],
)
def test_what_is_printed_is_held_against_what_was_said(
    expected: tuple[str, ...], output: str, lacks: str | None
) -> None:
    assert missing(expected, output) == lacks


@pytest.mark.parametrize("block", checked_only(), ids=by_line)
def test_what_is_not_run_is_at_least_a_script(block: Block) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_management_command_and_option_exists() -> None:
    known, wrong = get_commands(), []
    for name, rest in _MANAGE.findall(TEXT):
        if name not in known:
            wrong.append(name)
            continue
        app = known[name]
        command = load_command_class(app, name) if isinstance(app, str) else app
        options = {
            option
            for action in command.create_parser("manage.py", name)._actions
            for option in action.option_strings
        }
        wrong += [f"{name} {option}" for option in _OPTION.findall(rest) if option not in options]
    assert wrong == []


def test_every_file_that_is_named_is_there() -> None:
    paths = set(re.findall(r"(?<![\w./-])(?:deploy|docs|examples|tests)/[\w./@-]*\w", TEXT))
    assert {
        path
        for path in paths
        if not (ROOT / path).exists() and not path.startswith("deploy/certificates")
    } == set()
    assert "deploy/Dockerfile.tools" in paths


def test_every_unit_and_every_service_of_the_compose_file_that_is_named_exists() -> None:
    units = {
        re.sub(r"@\d*", "@", unit)
        for unit in re.findall(r"\bloadmaster-(?:web|beat|migrate|agent|worker)@?\d*", TEXT)
    }
    assert {unit for unit in units if not (ROOT / f"deploy/{unit}.service").exists()} == set()
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    named = re.findall(
        r"docker compose (?:exec|logs|restart|stop)((?: +-[^\s]+)*) ((?:[a-z]+ ?)+)", TEXT
    )
    assert {words.split()[0] for _, words in named} - set(services) == set()


def test_every_metric_and_every_setting_that_is_named_exists() -> None:
    metrics = (ROOT / "docs/observability.md").read_text()
    assert {
        name for name in re.findall(r"\bloadmaster_[a-z_]+\b", TEXT) if f"`{name}`" not in metrics
    } == set()
    settings = (ROOT / "docs/settings.md").read_text()
    assert {
        name
        for name in re.findall(r"\b(?:LOADMASTER|SECRET)_[A-Z_]+\b", TEXT)
        if name not in settings
    } == set()


def test_every_reason_for_waiting_that_is_explained_is_one_that_pages_show() -> None:
    section = TEXT.split("### Jobs wait though GPUs are free")[1].split("###")[0]
    explained = re.findall(r"^- \*(.+?)\*", section, re.MULTILINE)
    wording = (ROOT / "jobs/wording/reasons.py").read_text()
    assert [reason for reason in explained if reason not in wording] == []
    assert explained


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A prompt on a machine on which `make up` runs: the system on a free port, in a folder of its
    own.
    """
    home, desk = tmp_path / "up", tmp_path / "desk"
    desk.mkdir()
    bin_folder = str(Path(sys.executable).parent)
    kept = {
        k: v for k, v in os.environ.items() if k in ("HOME", "LANG", "TMPDIR", "NUMBA_CACHE_DIR")
    }
    environment = {
        **kept, "PATH": f"{bin_folder}:{os.environ['PATH']}", "LOADMASTER_HOME": str(home),
        "COLUMNS": "200",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }  # fmt: skip
    port = free_port(18_400 + os.getpid() % 1000 * 20)
    log = tmp_path / "embedded.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "manage.py"), "embedded", "--port", str(port)],
            cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        url = _address(server, log)
        prelude = f'export LOADMASTER_URL={url}\nmanage() {{ python {ROOT}/manage.py "$@"; }}'
        yield Shell(desk, environment, prelude)
    finally:
        _end_agents(desk)
        server.send_signal(signal.SIGINT)
        server.wait(timeout=120)


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where the pages are, once they are."""
    while server.poll() is None:
        if found := re.search(r"The pages are up: (\S+)", log.read_text()):
            return found[1]
        try:
            server.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(log.read_text())


def _end_agents(desk: Path) -> None:
    """Those that the guide started and, had it gone well, stopped."""
    for file in desk.glob("*.pid"):
        if (text := file.read_text().strip()) and psutil.pid_exists(int(text)):
            agent = psutil.Process(int(text))
            if "loadmaster" in " ".join(agent.cmdline()):
                agent.terminate()
                agent.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_guide_do_what_it_says(shell: Shell) -> None:
    for step in (
        step for block in blocks(TEXT) if block.kind == "console" for step in steps(block)
    ):
        status, output = shell.run(step.command)
        assert status == 0, f"line {step.line}: {step.command}\n{output}"
        assert missing(step.expected, output) is None, f"line {step.line}: {step.command}\n{output}"
