"""The kept list of mutants matches the tree, so that `make mutants` tries what it says."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.mutants.kept import Mutant, mutants, troubles
from loadmaster.wire import WireError

ROOT = Path(__file__).parents[2]
HERE = "tests/mutants/test_kept_list.py"


def a_mutant(**changes: str | tuple[str, ...]) -> Mutant:
    test = f"{HERE}::test_the_list_matches_the_tree"
    return replace(
        Mutant("M1", "It adds.", "sums.py", "a + b", "a - b", (test,)),
        **changes,  # type: ignore[arg-type]  # mypy does not follow fields by name
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a file of two lines, and this test."""
    (tmp_path / "sums.py").write_text("c = a + b\nd = c\nd = c\n")
    (tmp_path / HERE).parent.mkdir(parents=True)
    (tmp_path / HERE).write_text(Path(__file__).read_text())
    return tmp_path


def test_the_list_matches_the_tree() -> None:
    assert troubles(mutants(), ROOT) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"line": "a * b"}, "M1: its line occurs 0 times in sums.py"),
        ({"line": "d = c"}, "M1: its line occurs 2 times in sums.py"),
        ({"mutated": "(a + b)"}, "M1: its mutated line means the same"),
        ({"file": "none.py"}, "M1: [Errno 2]"),
        ({"mutated": "a +"}, "M1: invalid syntax"),
        ({"killed_by": (f"{HERE}::test_none",)}, f"M1: there is no test {HERE}::test_none"),
        ({"killed_by": ()}, "M1: there is no test"),
    ],
)
def test_an_entry_that_does_not_match_says_why(
    tree: Path, changes: dict[str, str], said: str
) -> None:
    found = troubles((a_mutant(**changes),), tree)
    assert [text.startswith(said) for text in found] == ([True] if said else [])


def test_an_id_is_used_once(tree: Path) -> None:
    assert troubles((a_mutant(), a_mutant()), tree) == ["M1: is used twice"]


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text('[M1]\npromise = "It adds."\n')
    with pytest.raises(WireError, match="file"):
        mutants(tmp_path)
