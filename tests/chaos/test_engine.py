"""A run strikes its schedule once, goes on where it was interrupted, and judges by what it
found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from experiments.chaos.checks.findings import holds
from experiments.chaos.engine import BLOWS, Run
from experiments.chaos.jobs.forms import BATCH, LIMITED
from experiments.chaos.kept import keep
from experiments.chaos.schedule import Blow
from experiments.chaos.system import ChaosError, Site, System
from experiments.chaos.workload import Workload
from loadmaster.demo.journals import JobJournal, LaunchFacts


class Still:
    """A system that is up and to which nothing happens."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, 1, {"lease_s": 1.0, "grace_s": 1.0, "margin_s": 1.0}, 1)
        self.parts: dict[str, Any] = {}
        self.slowness = 1.0
        for name in (LIMITED, BATCH):
            (self.site.journals / name).mkdir(parents=True, exist_ok=True)

    def wait(self, seconds: float) -> None:
        pass

    def client(self) -> Any:
        return self

    def __enter__(self) -> Still:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def jobs(self) -> list[str]:
        return ["job"]


class OneJob:
    """A workload of one job, which has run and is over."""

    def __init__(self, system: Still, refused: str = "") -> None:
        self.submitted = [{"id": "job", "steps": 1}]
        self.states = {"job": "completed"}
        self.unfinished: list[str] = []
        self.is_over = True
        self.refused = refused
        self._journals = system.site.journals
        self.all = self.submitted
        self.limited: list[dict[str, Any]] = []
        self.batch: list[dict[str, Any]] = []

    def start(self) -> None:
        (self._journals / "submitted.json").write_text(json.dumps(self.submitted))
        if not self.refused:
            with JobJournal(self._journals, LaunchFacts("job", "a", 1)) as journal:
                journal.resumed(0)
                journal.step(1)

    def submit_no_more(self) -> None:
        pass


class Recording:
    """A field that remembers what was struck, away the first time it is asked."""

    def __init__(self, stop_after: int = 100) -> None:
        self.struck: list[int] = []
        self._stop_after = stop_after
        self._away = True

    def strike(self, blow: Blow) -> str | None:
        if self._away:
            self._away = False
            return None
        if len(self.struck) == self._stop_after:
            raise KeyboardInterrupt
        self.struck.append(blow.number)
        return f"struck {blow.target}"

    def mend(self) -> None:
        pass


BLOW_LIST = [Blow(number, "web", "kill", 0.0, 0.0, "web") for number in range(5)]


def a_run(system: Still, field: Recording, refused: str = "") -> Run:
    workload = cast(Workload, OneJob(system, refused))
    return Run(cast(System, system), workload, BLOW_LIST, field, lambda _: None, patience_s=0.1)


def test_every_blow_is_struck_once_and_the_result_tells_of_it(tmp_path: Path) -> None:
    field = Recording()
    result = a_run(Still(tmp_path), field).play()
    assert field.struck == [0, 1, 2, 3, 4]
    assert (result["struck"], result["jobs"], result["doubled"], holds(result)) == (
        {"web": 5},
        1,
        0,
        True,
    )


def test_an_interrupted_run_goes_on_after_the_last_blow(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        a_run(Still(tmp_path), Recording(stop_after=2)).play()
    field = Recording()
    result = a_run(Still(tmp_path), field).play()
    assert field.struck == [2, 3, 4]
    assert result["struck"] == {"web": 5}
    assert len((tmp_path / BLOWS).read_text().splitlines()) == 5


def test_a_run_whose_jobs_are_refused_says_why(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match="cluster: there is none"):
        a_run(Still(tmp_path), Recording(), "cluster: there is none").play()


@pytest.mark.parametrize(
    "change",
    [
        {"lost": ["x"]},
        {"overlaps": ["x"]},
        {"held_twice": ["x"]},
        {"doubled": 1},
        {"doubled": None},
        {"states": {"failed": 1}},
        {"limited": {"wrong": ["x"], "states": {"failed": 1}}},
        {"limited": {"wrong": [], "states": {"completed": 1}}},
        {"batch": {"wrong": ["x"], "states": {}, "never": {}}},
        {"batch": {"wrong": [], "states": {"failed": 1}, "never": {}}},
        {"batch": {"wrong": [], "states": {}, "never": {"completed": 1}}},
    ],
)
def test_a_run_that_lost_or_doubled_anything_does_not_hold(change: dict[str, Any]) -> None:
    good: dict[str, Any] = {"lost": [], "overlaps": [], "held_twice": [], "doubled": 0}
    good |= {"states": {"completed": 3}, "limited": {"wrong": [], "states": {"failed": 2}}}
    good |= {"batch": {"wrong": [], "states": {"completed": 2}, "never": {"failed": 1}}}
    assert holds(good)
    assert not holds(good | change)


def test_a_folder_keeps_its_ports_and_is_moved_aside_when_its_database_is_gone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    first = keep(folder, "postgresql:///a")
    assert keep(folder, "postgresql:///a") == first
    (folder / BLOWS).write_text("{}\n")
    keep(folder, "postgresql:///b")
    assert not (folder / BLOWS).exists()
    assert (tmp_path / "run.1" / BLOWS).exists()
