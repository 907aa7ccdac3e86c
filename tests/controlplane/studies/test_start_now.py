"""Changes that would start a waiting job now, decided by a real policy on a snapshot, and asked
about a live cluster.
"""

import threading
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.loop.live.solver import solve_here
from controlplane.loop.rounds import decide
from controlplane.studies.what_if import start_now as module
from controlplane.studies.what_if.changes import changes_for
from controlplane.studies.what_if.start_now import StartNow, Trial, start_now
from controlplane.studies.what_if.turns import TURNS, BusyError
from jobs.models import Job
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import NodeState, RankPlacement, Snapshot
from policies.host import registry
from tests import builders
from tests.builders_pages import Demo, a_busy_cluster
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

SPEEDS = {(t, g): float(g) for t in ("V100", "T4") for g in range(1, 9)}


def tried(snapshot: Snapshot, *closed: str, policy: str = "fifo") -> StartNow:
    """Try the changes to job j with this policy, in this process."""
    name_of = {job: job for job in snapshot.jobs.position}
    decider = registry.make(policy, {})
    trial = Trial("j", changes_for(snapshot, "j", closed), lambda seen: decide(seen, decider))
    trial.run(time.monotonic() + 60.0)
    return trial.answer(name_of)


def waiting(nodes: list[Any], *others: Any, **fields: Any) -> Snapshot:
    jobs = [*others, a_job("j", arrival_s=1.0, **fields)]
    return a_snapshot(nodes, jobs, [a_kind("k", SPEEDS)])


def busy(node: str, *devices: str, **fields: Any) -> Any:
    return a_job(f"on {node}", running=on(node, *devices), **fields)


CASES: dict[str, tuple[Snapshot, tuple[str, ...], str, str]] = {
    "there is room already": (waiting([a_node("n1")]), (), "nothing", ""),
    "another type is free": (
        waiting(
            [a_node("n1", gpus=1), a_node("n2", "T4", gpus=1)],
            busy("n1", "gpu0"),
            allowed_types=("V100",),
        ),
        (),
        "types",
        "loadmaster clone j --set allowed_types=[]",
    ),
    "nodes without the label are free": (
        waiting([a_node("n1")], labels=("ssd",)),
        (),
        "labels",
        "loadmaster clone j --set labels=[]",
    ),
    "fewer GPUs are free for a batch job, whose number is fixed": (
        waiting(
            [a_node("n1", gpus=4)], busy("n1", "gpu0"), gpus_min=4, gpus_max=4, batch=True, units=2
        ),
        (),
        "gpus",
        "loadmaster clone j --set gpus_min=2 --set gpus_max=2",
    ),
    "fewer GPUs are free": (
        waiting([a_node("n1", gpus=4)], busy("n1", "gpu0"), gpus_min=4, gpus_max=4),
        (),
        "gpus",
        "loadmaster clone j --set gpus_min=3",
    ),
    "less memory is free": (
        waiting([a_node("n1", memory_gb=32.0)], busy("n1", "gpu0", memory_gb=20.0), memory_gb=16.0),
        (),
        "less",
        "loadmaster clone j --set cores=0 --set memory_gb=12",
    ),
    "a cordoned node is free": (
        waiting([a_node("n1", state=NodeState.CORDONED)]),
        ("n1",),
        "uncordon",
        "loadmaster uncordon n1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_change_that_starts_the_job_is_named_with_its_command(case: str) -> None:
    snapshot, closed, code, command = CASES[case]
    found = tried(snapshot, *closed)
    first = found.starts[0]
    assert (first.code, first.command) == (code, command)
    assert first.effect == "no other job stops, moves or waits for it"
    is_unchanged = first.condition == "The next decision starts it without a change"
    assert is_unchanged == (code == "nothing")


def test_a_greater_priority_is_offered_with_the_jobs_that_then_wait() -> None:
    others = [a_job("first", priority=3), busy("n1", "gpu0")]
    found = tried(waiting([a_node("n1", gpus=2)], *others), policy="priority")
    (start,) = found.starts
    assert (start.words, start.command) == ("priority 4", "loadmaster clone j --set priority=4")
    assert (start.displaced, start.hidden) == (("first",), 0)
    assert start.effect == "1 job would stop, move or wait for it: first"


def test_changes_that_displace_fewer_jobs_come_first() -> None:
    nodes = [a_node("n1", gpus=1), a_node("n2", "T4", gpus=1)]
    snapshot = waiting(nodes, busy("n1", "gpu0"), allowed_types=("V100",))
    nothing, types, priority = changes_for(snapshot, "j")
    places = {
        nothing.code: {"on n1": "n1"},
        types.code: {"j": "n2", "on n1": "n1"},
        priority.code: {"j": "n1"},
    }
    offered = [nothing, priority, types]

    def told(seen: Snapshot) -> Plan:
        return a_plan(places[next(c.code for c in offered if c.snapshot is seen)])

    trial = Trial("j", offered, told)
    trial.run(time.monotonic() + 60.0)
    found = trial.answer({})
    assert [start.code for start in found.starts] == ["types", "priority"]
    assert (found.starts[1].hidden, found.starts[1].displaced) == (1, ())
    assert found.starts[1].effect.endswith(": 1 of other teams")


def a_plan(places: dict[str, str]) -> Plan:
    placed = tuple(
        Placement(job, (RankPlacement(node, ("gpu0",)),)) for job, node in places.items()
    )
    return Plan("told", PlanStatus.HEURISTIC, placed)


def test_a_change_without_room_for_the_job_is_not_decided() -> None:
    snapshot = waiting([a_node("n1", gpus=1)], busy("n1", "gpu0"), allowed_types=("V100",))
    assert [change.code for change in changes_for(snapshot, "j")] == ["nothing", "priority"]


def test_a_decision_that_takes_too_long_is_not_waited_for() -> None:
    snapshot, *_ = CASES["another type is free"]
    go_on = threading.Event()

    def slow(seen: Snapshot) -> Any:
        if not go_on.wait(30.0):
            raise AssertionError("nobody lets it go on")
        return registry.make("fifo", {})(seen)

    trial = Trial("j", changes_for(snapshot, "j"), slow)
    trial.run(time.monotonic() + 0.05)
    assert trial.answer({}).note
    go_on.set()


@pytest.fixture(name="demo")
def _demo(monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setattr(module, "solve_apart", solve_here)
    monkeypatch.setattr(module, "BUDGET_S", 60.0)  # of a slow machine that compiles
    return a_busy_cluster()


def asked(user: User, job: Job) -> Any:
    client = Client()
    client.force_login(user)
    return client.get(f"/api/v1/jobs/{job.pk}/start-now/")


@pytest.mark.django_db
def test_the_owner_is_told_and_nothing_changes(demo: Demo) -> None:
    before = list(Job.objects.values("pk", "state", "waiting_code").order_by("pk"))
    answer = asked(demo.user, demo.waiting)
    assert answer.status_code == 200
    assert answer.json()["tried"]
    assert "not-for-ada" not in answer.content.decode()
    assert list(Job.objects.values("pk", "state", "waiting_code").order_by("pk")) == before


@pytest.mark.django_db
def test_the_page_does_not_call_the_present_state_a_change(demo: Demo) -> None:
    Job.objects.filter(pk=demo.waiting.pk).update(labels=["moon"])
    client = Client()
    client.force_login(demo.user)
    page = client.get(f"/jobs/{demo.waiting.pk}/start-now/").content.decode()
    assert "No single change would start it now" in page
    assert "nothing changed" not in page


@pytest.mark.django_db
def test_a_stranger_finds_no_such_job(demo: Demo) -> None:
    stranger = builders.a_user(team=builders.a_team())
    assert asked(stranger, demo.waiting).status_code == 404
    client = Client()
    client.force_login(stranger)
    assert client.get(f"/jobs/{demo.waiting.pk}/start-now/").status_code == 404


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["running", "completed", "held"])
def test_a_job_that_does_not_wait_is_refused(demo: Demo, state: str) -> None:
    job = Job.objects.filter(state=state, team=demo.team)[0]
    answer = asked(demo.user, job)
    assert answer.status_code == 409
    assert state in answer.json()["error"]["detail"]


@pytest.mark.django_db
def test_a_job_that_the_next_decision_does_not_see_says_why(demo: Demo) -> None:
    Job.objects.filter(pk=demo.waiting.pk).update(
        retry_at=builders.at(600), waiting_code="resting", waiting_detail={}
    )
    demo.waiting.refresh_from_db()
    assert "pauses after a failure" in start_now(demo.user, demo.waiting).note


@pytest.mark.django_db
def test_the_page_has_a_button_and_shows_the_answer(demo: Demo) -> None:
    client = Client()
    client.force_login(demo.user)
    assert 'id="ask-start-now"' in client.get(f"/jobs/{demo.waiting.pk}/").content.decode()
    assert 'id="ask-start-now"' not in client.get(f"/jobs/{demo.running.pk}/").content.decode()
    answer = client.get(f"/jobs/{demo.waiting.pk}/start-now/").content.decode()
    assert "would start it now" in answer or "<strong>With" in answer
    refused = client.get(f"/jobs/{demo.running.pk}/start-now/").content.decode()
    assert "only a job that waits" in refused


@pytest.mark.django_db
def test_a_second_question_is_asked_to_wait(demo: Demo) -> None:
    with TURNS.of(-1):
        with pytest.raises(BusyError, match="others are asking"):
            start_now(demo.user, demo.waiting)
        refused = asked(demo.user, demo.waiting)
        assert (refused.status_code, refused["Retry-After"]) == (429, "2")
