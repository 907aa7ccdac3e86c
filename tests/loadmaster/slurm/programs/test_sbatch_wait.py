"""`sbatch --wait`: exit code of a job, or of all of an array, that is over."""

from typing import cast

import pytest

from loadmaster.slurm.programs.sbatch import _wait
from loadmaster.slurm.programs.server import Server


class EndedJobs:
    """Server whose jobs are over, each with its state and exit code."""

    def __init__(self, *ends: tuple[str, int | None]) -> None:
        self.ends = ends

    def jobs(self, numbers: list[str]) -> list[dict[str, object]]:
        return [{"ended_s": 1.0, "state": state, "exit_code": code} for state, code in self.ends]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([("completed", 0)], 0),
        ([("completed", 0), ("failed", 3)], 3),
        ([("completed", 0), ("failed", -9)], 1),
        ([("cancelled", None)], 1),
        ([], 1),
    ],
)
def test_highest_code_counts_and_a_signal_is_1(
    ends: list[tuple[str, int | None]], code: int
) -> None:
    assert _wait(cast(Server, EndedJobs(*ends)), "7") == code
