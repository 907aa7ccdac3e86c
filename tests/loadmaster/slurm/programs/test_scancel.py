"""`scancel`: which jobs it cancels, and which it signals."""

from collections.abc import Sequence
from typing import Any

import pytest

from loadmaster.slurm.programs import scancel
from loadmaster.slurm.programs.server import Server


class PlayedServer:
    """Server with one job of another name; `cancelled` are the jobs that it was asked to cancel."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def jobs(self) -> list[dict[str, Any]]:
        row = {"number": 9, "array": None, "name": "other", "user": "ada", "cluster": "volta"}
        return [{**row, "state": "running", "failure": ""}]

    def act(self, reference: str, verb: str) -> None:
        assert verb == "cancel"
        self.cancelled.append(reference)


class Site:
    """A script of job 7; `signals` are those that its own processes got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = PlayedServer()
        self.signals: list[int] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setattr(Server, "of_script", lambda: self.server)
        monkeypatch.setattr(
            scancel, "_signal_own", lambda number, options: self.signals.append(number)
        )

    def scancel(self, words: Sequence[str]) -> int:
        self._monkeypatch.setattr("sys.argv", ["scancel", *words])
        return scancel.main()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def test_own_job_gets_any_signal(site: Site) -> None:
    assert site.scancel(["-s", "USR1", "7"]) == 0
    assert site.scancel(["--batch", "7"]) == 0
    assert site.scancel(["-s", "34", "7"]) == 0
    assert site.signals == [10, 9, 34]


def test_jobs_chosen_by_name_are_cancelled_and_own_steps_go_on(site: Site) -> None:
    assert site.scancel(["--batch", "--name=other"]) == 0
    assert site.server.cancelled == ["9"]
    assert site.signals == []


def test_signal_to_jobs_chosen_by_name_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.scancel(["-s", "USR1", "--name=other"]) == 1
    assert "signal USR1 reaches steps of this script alone" in capsys.readouterr().err
    assert (site.server.cancelled, site.signals) == ([], [])
