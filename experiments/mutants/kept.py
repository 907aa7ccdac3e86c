"""The kept list of mutants, one table each in the TOML files of `lists`."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadmaster.wire import from_json

LISTS = Path(__file__).parent / "lists"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of `file` that breaks `promise`: `line`, which occurs there once, becomes `mutated`.

    `killed_by`: node ids of the tests of which at least one must fail then.
    """

    id: str
    promise: str
    file: str
    line: str
    mutated: str
    killed_by: tuple[str, ...]

    def change(self, root: Path) -> str:
        """Source of the file with the mutated line. Raises OSError or ValueError if stale."""
        text = (root / self.file).read_text()
        if (count := text.count(self.line)) != 1:
            raise ValueError(f"its line occurs {count} times in {self.file}")
        changed = text.replace(self.line, self.mutated)
        if self.file.endswith(".py") and ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
            raise ValueError("its mutated line means the same")
        return changed

    def trouble(self, root: Path) -> str:
        """Reason why the entry does not match the tree; empty if it does."""
        try:
            self.change(root)
        except (OSError, ValueError, SyntaxError) as error:
            return f"{self.id}: {error}"
        missing = [test for test in self.killed_by if not _exists(root, test)]
        if missing or not self.killed_by:
            return f"{self.id}: there is no test {', '.join(missing)}"
        return ""


def mutants(folder: Path = LISTS) -> tuple[Mutant, ...]:
    """Return all mutants; WireError or TOMLDecodeError if a list is malformed."""
    return tuple(
        from_json(Mutant, {"id": key, **table})
        for path in sorted(folder.glob("*.toml"))
        for key, table in tomllib.loads(path.read_text()).items()
    )


def troubles(found: tuple[Mutant, ...], root: Path) -> list[str]:
    """Return what is stale in a list: ids used twice, and entries that do not match the tree."""
    ids = [mutant.id for mutant in found]
    twice = [f"{key}: is used twice" for key in sorted(set(ids)) if ids.count(key) > 1]
    return twice + [trouble for mutant in found if (trouble := mutant.trouble(root))]


def _exists(root: Path, test: str) -> bool:
    """Return True if a node id names a function, perhaps of a class, in its file."""
    path, *names = test.partition("[")[0].split("::")
    if not names or not (root / path).exists():
        return False
    return "::".join(names) in set(_names(ast.parse((root / path).read_text()).body))


def _names(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + statement.name
        elif isinstance(statement, ast.ClassDef):
            yield from _names(statement.body, f"{within}{statement.name}::")
