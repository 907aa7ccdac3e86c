"""A run strikes its schedule once, goes on where it was interrupted, and judges by what it
found.
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.findings import find, holds
from experiments.chaos.checks.invariants import Invariant, summed
from experiments.chaos.engine import BLOWS, Run
from experiments.chaos.jobs.forms import TRAINING
from experiments.chaos.kept import keep
from experiments.chaos.rounds import Rounds
from experiments.chaos.schedule import Blow
from experiments.chaos.system import ChaosError, Site, System
from experiments.chaos.workload import LISTS, Load, Workload
from loadmaster.demo.journal_checks import SUBMITTED
from loadmaster.demo.journals import JobJournal, LaunchFacts


class Still:
    """A system that is up and to which nothing happens."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, 1, {"lease_s": 1.0, "grace_s": 1.0, "margin_s": 1.0}, 1)
        self.parts: dict[str, Any] = {}
        self.slowness = 1.0
        self.rows = [a_row("job")]
        for name in LISTS:
            (self.site.journals / name).mkdir(parents=True, exist_ok=True)

    def wait(self, seconds: float) -> None:
        pass

    def client(self) -> Any:
        return self

    def __enter__(self) -> Still:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def records(self) -> dict[str, Any]:
        return {"invariants": [], "lost": {}}

    def lost_unduly(self, counts: object) -> list[str]:
        return []

    def slowest_starts_s(self) -> dict[str, float]:
        return {}

    def jobs(self) -> list[SimpleNamespace]:
        return self.rows


def a_row(pk: str, waiting: object = None) -> SimpleNamespace:
    return SimpleNamespace(id=pk, waiting=waiting)


class OneJob:
    """A workload of one job, which has run and is over."""

    def __init__(self, system: Still, refused: str = "") -> None:
        self.all = [{"id": "job", "steps": 1, "form": TRAINING}]
        self.states = {"job": "completed"}
        self.unfinished: list[str] = []
        self.is_over = True
        self.refused = refused
        self.rounds = Rounds(lambda: 0.0, seen=3)
        self.load = Load(1, 1, 1, ("training", "gang"))
        self._journals = system.site.journals / TRAINING

    def of(self, name: str) -> list[dict[str, Any]]:
        return self.all if name == TRAINING else []

    def start(self) -> None:
        (self._journals / SUBMITTED).write_text(json.dumps(self.all))
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
    assert (result["struck"], result["figures"]["training_steps"]) == ({"web": 5}, 1)
    found = {one["name"]: (one["checked"], one["wrong"]) for one in result["invariants"]}
    assert found[named.JOB_LOST] == found[named.JOB_DOUBLED] == found[named.STEPS] == (1, ())
    assert found[named.GANGS] == (0, ()), "there was none"
    assert (found[named.NODES], found[named.ROUNDS]) == ((5, ()), (3, ()))
    assert not holds(result), "that no two processes ran at a time was never put to the test"


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


def test_a_run_holds_if_each_invariant_was_checked_and_none_violated() -> None:
    good = {"name": "a", "checked": 2, "wrong": ()}
    assert holds({"invariants": [good]})
    assert not holds({"invariants": [good, {**good, "wrong": ("x",)}]})
    assert not holds({"invariants": [good, {**good, "checked": 0}]})


def test_invariants_of_one_name_are_counted_together() -> None:
    found = summed([Invariant("a", 1), Invariant("b", 0, ("y",)), Invariant("a", 2, ("x",))])
    assert found == (Invariant("a", 3, ("x",)), Invariant("b", 0, ("y",)))


def test_jobs_beyond_those_submitted_and_wrong_ends_are_told(tmp_path: Path) -> None:
    system = Still(tmp_path)
    workload = OneJob(system)
    workload.start()
    workload.states["job"] = "failed"
    system.rows = [a_row("job", waiting="for a GPU"), a_row("another")]
    result = find(cast(System, system), cast(Workload, workload), 0)
    found = {one["name"]: one["wrong"] for one in result["invariants"]}
    assert found[named.JOB_DOUBLED] == ("2 jobs, not 1",)
    why = "; it waits: for a GPU"
    assert found[named.RIGHT_END] == (f"job job (training) is failed, not completed{why}",)


def test_the_time_without_a_round_counts_while_the_server_is_whole() -> None:
    now, whole = [0.0], [0.0]
    rounds = Rounds(lambda: whole[0], lambda: now[0])

    def at(now_s: float, **numbers: int) -> float:
        now[0] = now_s
        rounds.look(numbers)
        return rounds.longest_s

    assert at(1, a=5, b=1) == 0
    assert at(3, a=5, b=1) == 2
    assert at(4, a=6, b=1) == 3, "the cluster that waits longest counts"
    assert at(30, a=7, b=9) == 3, "nobody has seen that none was held meanwhile"
    whole[0] = inf
    assert at(40, a=7, b=9) == 3
    whole[0] = 41.0
    assert at(46, a=7, b=9) == 5
    assert (rounds.seen, rounds.longest_at_s) == (10, 46)


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
