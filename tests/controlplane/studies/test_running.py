"""Simulations are run once whatever happens to tasks and workers: doubled, lost, killed, stopped,
cancelled.
"""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import Settings

from controlplane.studies import documents
from controlplane.studies.lifecycle import (
    MOVES,
    IllegalSimulationMoveError,
    SimulationMove,
    check_move,
    move_simulation,
)
from controlplane.studies.models import Simulation
from controlplane.studies.running.folders import folder_of, read_file, sweep
from controlplane.studies.running.process import Status
from controlplane.studies.running.runner import (
    MOST_STARTS,
    claim,
    reconcile_simulations,
    renew,
    run_next,
)
from controlplane.studies.services import simulation_cancel, simulation_delete
from jobs.moves import LostRaceError
from tests.builders import a_user
from tests.builders_clocks import Machine
from tests.builders_studies import a_simulation, after, pretending

pytestmark = pytest.mark.django_db
FINISH = "(folder / 'results.json').write_text('{}')\nsay(done=True)"


@pytest.fixture(autouse=True)
def _folder(settings: Settings, tmp_path: Path) -> None:
    settings.SIMULATIONS_DIR = tmp_path / "simulations"
    settings.SIMULATION_PROCESSES = 0


def state_of(simulation: Simulation) -> str:
    return str(Simulation.objects.values_list("state", flat=True).get(pk=simulation.pk))


def test_a_study_is_run_to_its_end_and_its_files_are_kept_in_the_database(
    settings: Settings,
) -> None:
    settings.SIMULATION_PROCESSES = 1
    simulation = a_simulation(study={"policies": [{"name": "fifo"}]})
    assert run_next() is not None
    simulation.refresh_from_db()
    assert (simulation.state, simulation.message, simulation.progress) == ("done", "", 1.0)
    results = json.loads(read_file(simulation, "results.json") or b"")
    assert [policy["name"] for policy in results["policies"]] == ["fifo"]
    assert b"<html" in (read_file(simulation, "report.html") or b"")
    assert not list(Path(settings.SIMULATIONS_DIR).iterdir())


def test_a_study_whose_long_trace_cannot_be_read_fails_naming_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "TRIED_CHARACTERS", 20)
    trace = {"type": "csv", "text": "arrival_s,run_s\n0,60\nnever,60\n"}
    simulation = a_simulation(study={"workload": trace, "policies": [{"name": "fifo"}]})
    run_next()
    simulation.refresh_from_db()
    assert simulation.state == "failed"
    assert "line 3" in simulation.message


def test_the_oldest_is_run_first(tmp_path: Path) -> None:
    old, new = a_simulation(), a_simulation()
    run_next(pretending(tmp_path, FINISH))
    assert (state_of(old), state_of(new)) == ("done", "queued")


def begin(now: datetime) -> User | None:
    """The person whose simulation begins, and is over at once."""
    simulation = claim(now)
    if simulation is None:
        return None
    return move_simulation(simulation, SimulationMove.FINISH).user


def test_people_take_turns_whatever_each_has_queued() -> None:
    ada, ben, now = a_user(), a_user(), timezone.now()
    for user in (ada, ada, ada, ben, ben):
        a_simulation(user)
    turns = [begin(now + timedelta(seconds=i)) for i in range(6)]
    assert turns == [ada, ben, ada, ben, ada, None]


def test_who_comes_later_waits_for_what_runs_and_not_for_what_another_has_queued() -> None:
    ada, ben, now = a_user(), a_user(), timezone.now()
    for _ in range(5):
        a_simulation(ada)
    for i in range(2):
        begin(now + timedelta(seconds=i))
    assert claim(now) is not None
    late = a_simulation(ben)
    Simulation.objects.filter(state="running").update(state="done", slot=None)
    assert claim(now + timedelta(hours=6)) == late


def test_the_next_is_of_the_person_with_the_fewest_running(settings: Settings) -> None:
    settings.SIMULATIONS_AT_ONCE = 2
    ada, ben, now = a_user(), a_user(), timezone.now()
    a_simulation(ada)
    assert claim(now) is not None
    a_simulation(ben)
    assert begin(now + timedelta(hours=1)) == ben
    a_simulation(ada)
    again = a_simulation(ben)
    assert claim(now + timedelta(hours=2)) == again


def test_deleting_what_has_run_gains_no_turn() -> None:
    ada, ben, now = a_user(), a_user(), timezone.now()
    for user in (ada, ada, ben):
        a_simulation(user)
    assert begin(now) == ada
    simulation_delete(Simulation.objects.get(state="done"), ada)
    assert begin(now + timedelta(hours=1)) == ben


def test_a_clock_that_was_ahead_takes_nobodys_turns() -> None:
    ada, ben, now = a_user(), a_user(), timezone.now()
    a_simulation(ada)
    assert begin(now + timedelta(days=365)) == ada
    for user in (ben, ben, ada, ada):
        a_simulation(user)
    turns = [begin(now + timedelta(seconds=i)) for i in range(4)]
    assert turns == [ben, ada, ben, ada]


def test_a_doubled_task_finds_nothing_to_do() -> None:
    a_simulation()
    assert claim(timezone.now()) is not None
    assert run_next() is None


def test_no_more_run_at_once_than_there_are_slots(settings: Settings) -> None:
    settings.SIMULATIONS_AT_ONCE = 2
    for _ in range(3):
        a_simulation()
    taken = [claim(timezone.now()) for _ in range(3)]
    assert [s.slot if s else None for s in taken] == [1, 2, None]


def test_its_folder_is_for_the_server_alone(settings: Settings) -> None:
    folder = folder_of(a_simulation())
    assert [p.stat().st_mode & 0o777 for p in (folder, Path(settings.SIMULATIONS_DIR))] == [
        0o700,
        0o700,
    ]


def test_progress_is_written_while_it_runs(tmp_path: Path) -> None:
    simulation = a_simulation()
    script = (
        "say(progress=0.5, message='1 of 2 runs done', left_s=9.0)\ntime.sleep(0.4)\nsay(error='as"
        " it was told')"
    )
    run_next(pretending(tmp_path, script))
    simulation.refresh_from_db()
    assert (simulation.state, simulation.progress, simulation.message) == (
        "failed",
        0.5,
        "as it was told",
    )
    assert simulation.left_s is None


def test_a_process_that_dies_fails_its_simulation_with_the_reason(tmp_path: Path) -> None:
    simulation = a_simulation()
    run_next(pretending(tmp_path, "os.kill(os.getpid(), 9)"))
    simulation.refresh_from_db()
    assert simulation.state == "failed"
    assert "signal 9" in simulation.message


def test_death_is_noticed_while_its_children_live(tmp_path: Path) -> None:
    """Processes that compare choices are forks, which hold the pipe of the messages."""
    simulation = a_simulation()
    script = "if os.fork(): os.kill(os.getpid(), 9)\ntime.sleep(600)"
    run_next(pretending(tmp_path, script))
    simulation.refresh_from_db()
    assert simulation.message == "its process was killed (signal 9) without a result"


def test_cancelling_ends_the_process_and_removes_its_folder(
    tmp_path: Path, settings: Settings
) -> None:
    simulation = a_simulation()
    ports = pretending(tmp_path, "time.sleep(60)")
    pids: list[int] = []

    def stopping() -> bool:
        if pids:
            simulation_cancel(Simulation.objects.get(pk=simulation.pk), simulation.user)
        return False

    def process(folder: Path) -> object:
        made = ports.process(folder)
        pids.append(made.pid)
        return made

    watched: Any = process  # it gives what it was given
    run_next(type(ports)(watched, stopping, ports.turn_s))
    assert state_of(simulation) == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert not list(Path(settings.SIMULATIONS_DIR).iterdir())


def test_deleting_one_that_runs_ends_it_too(tmp_path: Path) -> None:
    simulation = a_simulation()
    seen: list[bool] = []

    def stopping() -> bool:
        if seen:
            simulation_delete(simulation, simulation.user)
        seen.append(True)
        return False

    run_next(pretending(tmp_path, "time.sleep(60)", stopping=stopping))
    assert not Simulation.objects.exists()


def test_a_worker_that_is_stopped_gives_it_back_to_go_on_elsewhere(tmp_path: Path) -> None:
    simulation = a_simulation()
    run_next(
        pretending(
            tmp_path,
            "say(progress=0.3, message='', left_s=None)\ntime.sleep(60)",
            stopping=after(2),
        )
    )
    simulation.refresh_from_db()
    assert (simulation.state, simulation.starts, simulation.slot, simulation.owner) == (
        "queued",
        0,
        None,
        "",
    )


def test_one_that_goes_on_finds_what_is_finished(tmp_path: Path) -> None:
    simulation = a_simulation()
    ports = pretending(tmp_path, "(folder / 'run-1').write_text('finished')\nsay(busy=True)")
    run_next(ports)
    assert state_of(simulation) == "queued"
    told = "(folder / 'results.json').write_text((folder / 'run-1').read_text())\nsay(done=True)"
    run_next(pretending(tmp_path, told))
    assert read_file(simulation, "results.json") == b"finished"


@pytest.mark.parametrize("gone", ["expired", "a dead process here"])
def test_the_reconciler_queues_what_nobody_runs_any_more(gone: str) -> None:
    simulation = a_simulation()
    claimed = claim(timezone.now())
    assert claimed is not None
    here = Machine()
    if gone == "expired":
        reconcile_simulations(here.watch)
        here.now_s += 31
    else:
        place, _, _, rest = claimed.owner.split(".")
        Simulation.objects.update(owner=f"{place}.999999999.1.{rest}")
    assert reconcile_simulations(here.watch)
    simulation.refresh_from_db()
    assert (simulation.state, simulation.slot) == ("queued", None)
    with pytest.raises(LostRaceError):
        move_simulation(claimed, SimulationMove.FINISH)


def test_the_reconciler_leaves_alone_what_is_renewed_and_asks_for_no_useless_worker() -> None:
    a_simulation()
    claimed, here = claim(timezone.now()), Machine()
    assert claimed is not None
    a_simulation()
    for _ in range(5):
        assert not reconcile_simulations(here.after(20))
        assert renew(claimed, Status(0.1), timezone.now() - timedelta(hours=1))
    assert list(Simulation.objects.order_by("created_at").values_list("state", flat=True)) == [
        "running",
        "queued",
    ]


def test_one_whose_workers_keep_dying_is_given_up() -> None:
    simulation = a_simulation()
    here = Machine()
    for _ in range(MOST_STARTS):
        assert claim(timezone.now()) is not None
        reconcile_simulations(here.watch)
        reconcile_simulations(here.after(31))
    simulation.refresh_from_db()
    assert simulation.state == "failed"
    assert f"died {MOST_STARTS} times" in simulation.message


def test_folders_of_what_is_over_are_swept_away(settings: Settings) -> None:
    waiting, over = a_simulation(), a_simulation(a_user(), state="cancelled")
    for simulation in (waiting, over):
        folder_of(simulation)
    assert sweep() == 1
    assert [p.name for p in Path(settings.SIMULATIONS_DIR).iterdir()] == [str(waiting.pk)]


def test_the_table_of_moves_is_the_only_way() -> None:
    assert {state for _, state in MOVES.items()} == set(Simulation.State)
    with pytest.raises(IllegalSimulationMoveError, match="done cannot cancel"):
        check_move(Simulation.State.DONE, SimulationMove.CANCEL)


@pytest.mark.parametrize("meanwhile", [{"state": "cancelled"}, {"owner": "another worker"}])
def test_a_simulation_moves_only_as_it_was_read(
    meanwhile: dict[str, str],
) -> None:
    simulation = a_simulation(state="running", owner="this worker")
    Simulation.objects.update(**meanwhile)
    with pytest.raises(LostRaceError):
        move_simulation(simulation, SimulationMove.FINISH)
    assert state_of(simulation) == meanwhile.get("state", "running")


@pytest.mark.parametrize("meanwhile", [{"state": "cancelled"}, {"owner": "another worker"}])
def test_a_simulation_that_is_another_workers_is_not_renewed(meanwhile: dict[str, str]) -> None:
    simulation = a_simulation(state="running", owner="this worker")
    Simulation.objects.update(**meanwhile)
    assert not renew(simulation, Status(), timezone.now())
