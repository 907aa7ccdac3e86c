"""`scontrol update`: what holds or releases a job is done, all else is refused with a remedy."""

from typing import Any

import pytest

from loadmaster.slurm.programs import scontrol
from loadmaster.slurm.programs.server import Server


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Actions that the server is asked for, as (job, action)."""
    done: list[tuple[str, str]] = []

    class Noting(Server):
        def __init__(self) -> None:
            """Ask no server."""

        def act(self, reference: str, verb: str) -> None:
            done.append((reference, verb))

    monkeypatch.setattr(Server, "of_script", Noting)
    return done


def updated(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["scontrol", "update", *words])
    return scontrol.main()


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (("JobId=12", "Priority=0"), [("12", "hold")]),
        (("jobid=12_3,13", "priority=0"), [("12_3", "hold"), ("13", "hold")]),
        (("Job=12", "Priority=-1"), [("12", "release")]),
        (("job", "12", "Priority=0"), [("12", "hold")]),
    ],
)
def test_a_change_that_holds_or_releases_is_done(
    monkeypatch: pytest.MonkeyPatch,
    acts: list[tuple[str, str]],
    words: tuple[str, ...],
    done: list[tuple[str, str]],
) -> None:
    assert updated(monkeypatch, *words) == 0
    assert acts == done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("JobId=12", "TimeLimit=30"), "cancel 12, and submit it again with --time=30"),
        (("JobId=12", "Name=other"), "submit it again with --job-name=other"),
        (("JobId=12", "Dependency=afterok:7"), "again with --dependency=afterok:7"),
        (("JobId=12", "StartTime=now"), "submit it again with --begin=now"),
        (("JobId=12", "Nice=100"), "Nice of a job stays as it was submitted; cancel 12, and"),
        (("JobId=12", "Priority=99"), "Priority of a job stays as it was submitted"),
        (("JobId=12", "Priority=0", "NumCPUs=4"), "NumCPUs of a job stays"),
        (("TimeLimit=30",), "update is for jobs here; name them by JobId="),
        (("NodeName=n1", "State=DRAIN"), "update is for jobs here"),
        (("job", "12"), "No changes specified"),
        (("JobId=12", "TimeLimit", "30"), "cancel 12, and submit it again with --time=30"),
    ],
)
def test_any_other_change_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
    acts: list[tuple[str, str]],
    capsys: Any,
    words: tuple[str, ...],
    said: str,
) -> None:
    assert updated(monkeypatch, *words) == 1
    assert said in capsys.readouterr().err
    assert acts == []
