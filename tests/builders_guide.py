"""The operator's guide as a test reads it: its blocks, and a shell in which what a person would
type is run.

A block `console` is run: `$ ` begins a command, `> ` goes on with it, other lines are what it
prints, `...` standing for whatever differs. A block `bash` needs root, systemd, compose or a second
machine: it is only looked at. There is no third kind.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

KINDS = ("console", "bash")
_BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OWN = "a password of one's own"
_PASSWORD = re.compile(r"one-time password (\S+)")
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: its kind, its text, and the line of the document on which it begins."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the lines that its output must have, in this order."""

    command: str
    expected: tuple[str, ...]
    line: int


def blocks(text: str) -> list[Block]:
    """All blocks of a document; ValueError for one of an unknown kind or one that is merely
    indented.
    """
    found = [
        Block(m[1].strip(), m[2], text.count("\n", 0, m.start()) + 1) for m in _BLOCK.finditer(text)
    ]
    for block in found:
        if block.kind not in KINDS:
            raise ValueError(
                f"line {block.line}: a block of kind {block.kind!r}; {' or '.join(KINDS)} are known"
            )
    rest = _BLOCK.sub(lambda m: "\n" * m[0].count("\n"), text)
    for number, line in enumerate(rest.splitlines(), 1):
        if line.startswith(("    ", "\t", "```")):
            raise ValueError(f"line {number}: code outside of a block of kind {' or '.join(KINDS)}")
    return found


def steps(block: Block) -> Iterator[Step]:
    """The commands of a console block."""
    command, expected, begun = "", list[str](), block.line
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            if command:
                yield Step(command, tuple(expected), begun)
            command, expected, begun = line[2:], [], number
        elif not command:
            raise ValueError(f"line {number}: a console block begins with `$ `")
        elif line.startswith("> ") and not expected:
            command += "\n" + line[2:]
        elif line.strip():
            expected.append(line)
    yield Step(command, tuple(expected), begun)


def missing(expected: tuple[str, ...], output: str) -> str | None:
    """The first expected line that the output does not have after those before it; None if all are
    there.
    """
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    for wanted in expected:
        parts = [re.escape(" ".join(part.split())) for part in wanted.split("...")]
        pattern = re.compile(r"\s*.*\s*".join(parts))
        if wanted.strip() != "..." and not any(pattern.fullmatch(line) for line in lines):
            return wanted
    return None


class Shell:
    """Runs commands one after another as one person at one prompt would: folder, variables and
    functions stay.

    The one-time password that a command has printed last is typed in where `loadmaster login` asks
    for it.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], prelude: str) -> None:
        self.folder, self.environment = folder, dict(environment)
        self.state = folder.parent / "shell-state"
        self.state.write_text(f"{prelude}\ncd {folder}\n")
        self.password = ""

    def run(self, command: str) -> tuple[int, str]:
        """(exit status, output and errors)."""
        keep = (
            f'rc=$?; {{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} > {self.state};'
            " exit $rc"
        )
        done = subprocess.run(
            ["bash", "-c", f"source {self.state}\n{command}\n{keep}"],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            input=f"{self.password}\n{_OWN}\n" if command.startswith("loadmaster login") else "",
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        if command.startswith("loadmaster login"):
            self.password = _OWN
        if found := _PASSWORD.findall(done.stdout):
            self.password = found[-1]
        return done.returncode, done.stdout
