"""Real Slurm and Loadmaster run the same scripts: variables, exit codes, end states, order, files.

Needs `tests/with-slurm`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sbatch_cases import CASES, Case
from tests.sbatch_judge import Outcome, Slurm, differences, loadmaster_site, play
from tests.slurm_step_cases import STEP_CASES

ALL = (*CASES, *STEP_CASES)
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Outcome], ...]]:
    """Outcome of every case under Slurm, and under Loadmaster."""
    folder = tmp_path_factory.mktemp("judge")
    slurm = play(Slurm(), ALL, folder)
    with loadmaster_site(folder) as site:
        own = play(site, ALL, folder)
        yield slurm(), own()


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name.replace(" ", "-"))
def test_a_script_ends_the_same_under_both(
    case: Case, outcomes: tuple[dict[str, Outcome], ...]
) -> None:
    slurm, own = outcomes
    found = differences(slurm[case.name], own[case.name])
    assert sorted(found) == sorted(case.where), "\n".join(found.values())


def test_each_difference_has_its_row_in_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "docs/jobs.md").read_text()
    assert [c.differs for c in ALL if c.differs and f"| {c.differs} |" not in text] == []
