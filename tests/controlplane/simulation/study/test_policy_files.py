from pathlib import Path

import pytest

from controlplane.simulation.study.policy_files import make_from_file
from policies.contract.policy import PolicyError, PolicyParameterError
from tests.builders_policies import a_snapshot

POLICY = '''
from __future__ import annotations
from dataclasses import dataclass
from loadmaster.policy_api import Plan, PlanStatus, Snapshot, parameter

@dataclass(frozen=True, slots=True)
class Idle:
    """Does nothing."""
    patience: int = parameter(3, meaning="how long", minimum=0)
    def __call__(self, snapshot: Snapshot) -> Plan:
        return Plan("idle", PlanStatus.HEURISTIC, memory={"patience": self.patience})
'''
ANOTHER = """
@dataclass(frozen=True)
class Other(Idle):
    def __call__(self, snapshot): return Plan("other", PlanStatus.HEURISTIC)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "idle.py"
    path.write_text(POLICY)
    return path


def test_the_one_policy_of_a_file_is_made_with_its_parameters(file: Path) -> None:
    assert make_from_file(file, None, {"patience": 5})(a_snapshot()).memory == {"patience": 5}


def test_of_several_policies_one_is_named(file: Path) -> None:
    file.write_text(POLICY + ANOTHER)
    assert make_from_file(file, "Other", {})(a_snapshot()).policy == "other"
    with pytest.raises(PolicyError, match="several policies; give `name`, one of: Idle, Other"):
        make_from_file(file, None, {})
    with pytest.raises(PolicyError, match="no policy 'Third'; give `name`, one of: Idle, Other"):
        make_from_file(file, "Third", {})


def test_parameters_are_checked_as_those_of_registered_policies(file: Path) -> None:
    with pytest.raises(
        PolicyParameterError, match="patiense: no such parameter; known are: patience"
    ):
        make_from_file(file, None, {"patiense": 5})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "holds no policy"),
        ("raise ZeroDivisionError('oh')\n", "cannot be run: ZeroDivisionError: oh"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_file_without_a_policy_says_what_is_wrong(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(PolicyError, match=words):
        make_from_file(file, None, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none\.py: no such file"):
        make_from_file(tmp_path / "none.py", None, {})
