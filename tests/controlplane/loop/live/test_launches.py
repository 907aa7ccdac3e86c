"""Gangs of a plan that are launched together are launched as each would be alone, and a bad one
takes no others along.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from clusters.models import Cluster, Device, Node
from controlplane.loop.live import apply, launches, world
from controlplane.loop.live.apply import apply_plan
from controlplane.loop.models import Round
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot, Attempt, Job, JobEvent
from jobs.moves import LostRaceError, move_jobs
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import RankPlacement, Snapshot
from profiling.models import ProfileRun
from tests.builders import a_job, a_kind, a_node, a_team, a_user, type_of
from tests.builders_live import a_round, devices_of, placing, refused, running, utc

pytestmark = pytest.mark.django_db

MOMENTS = {"id", "at", "created_at", "started_at", "submitted_at"}
"""What differs between two times that the same is written."""


def queue(cluster: Cluster, count: int, **values: Any) -> list[Job]:
    """Queued jobs of one team: job-0, job-1 ..."""
    team = a_team()
    common = {
        "team": team,
        "user": a_user(team=team),
        "kind": a_kind(steps_per_s={("V100", 1): 1.0}),
        **values,
    }
    return [a_job(cluster, **{**common, "name": f"job-{i}"}) for i in range(count)]


def seat(device: Device, **values: Any) -> RankPlacement:
    return RankPlacement(str(device.node_id), (device.uuid,), **values)


def told(*placements: Placement) -> Callable[..., Plan]:
    return lambda *_: Plan("told", PlanStatus.HEURISTIC, placements)


def one_each(jobs: Sequence[Job], devices: Sequence[Device]) -> Callable[..., Plan]:
    """Each job in its turn on one device."""
    return told(
        *(
            Placement(str(job.pk), (seat(device),))
            for job, device in zip(jobs, devices, strict=True)
        )
    )


@pytest.fixture
def mixed(cluster: Cluster, node: Node) -> Callable[..., Plan]:
    """A plan with a bit of everything: gangs, shared devices, attempts that go on or have ended, a
    profile run, and refusals.
    """
    far = a_node(cluster, gpus=8, memory_gb=1000.0)
    Device.objects.filter(pk=devices_of(node)[0].pk).update(slots=2)
    a, b, *rest = queue(
        cluster,
        9,
        may_share=True,
        gpus_max=2,
        waiting_code="no_capacity",
        waiting_detail={"jobs": ["x"]},
    )
    gang, again, fresh, cancelled, ill, big, full = rest
    Job.objects.filter(pk=again.pk).update(fence=3, checkpoint_steps=40)
    for number, ended_at in ((1, utc(1e9)), (2, None)):
        Attempt.objects.create(job=again, number=number, ended_at=ended_at)
    Attempt.objects.create(job=fresh, number=1, ended_at=utc(1e9))
    Job.objects.filter(pk__in=[big.pk, full.pk]).update(memory_gb=100.0)
    shared, whole = devices_of(node)
    d = devices_of(far)
    halves = (seat(shared, share=0.5),)
    plan = Plan("told", PlanStatus.HEURISTIC, (
        Placement(str(a.pk), halves), Placement(str(b.pk), halves, until_s=2e9, steps_quota=9),
        Placement(
            str(gang.pk), (seat(whole), seat(d[0], cpu_quota=2.0)),
            predicted_run_s=50.0, predicted_energy_cost=0.125,
        ),
        Placement(str(again.pk), (seat(d[1]),)), Placement(str(fresh.pk), (seat(d[2]),)),
        Placement(str(cancelled.pk), (seat(d[3]),)), Placement(str(ill.pk), (seat(d[4]),)),
        Placement(str(big.pk), (seat(d[5]),)), Placement(str(full.pk), (seat(d[6]),)),
    ))  # fmt: skip
    measured = a_job(cluster, name="measured", kind=a_kind(), state="profiling", repeatable=True)
    a_node(cluster, gpus=1, role="profiling")
    ProfileRun.objects.create(
        kind=measured.kind, job=measured, gpu_type=type_of(node), gpus=1, steps=20, copy=3
    )

    def solve(policy: str, parameters: object, snapshot: Snapshot) -> Plan:
        Job.objects.filter(pk=cancelled.pk).update(state="cancelled")
        Device.objects.filter(pk=d[4].pk).update(healthy=False)
        Node.objects.filter(pk=far.pk).update(memory_gb=128.0)
        return plan

    return solve


def written() -> dict[str, list[dict[str, Any]]]:
    """All rows that launches write, in an order of their content."""
    ranks = {
        a.pk: (a.job.name, a.purpose, a.rank) for a in Assignment.objects.select_related("job")
    }
    numbers = {a.pk: a.number for a in Attempt.objects.all()}
    return {
        model.__name__: sorted(
            (_plain(dict(row), ranks, numbers) for row in model._default_manager.values()), key=repr
        )
        for model in (
            Job,
            JobEvent,
            Attempt,
            Assignment,
            AssignmentSlot,
            AssignmentEvent,
            ProfileRun,
        )
    }


def _plain(row: dict[str, Any], ranks: dict[Any, Any], numbers: dict[Any, int]) -> dict[str, Any]:
    own = {name: value for name, value in row.items() if name not in MOMENTS}
    own |= {"assignment_id": ranks[own["assignment_id"]]} if "assignment_id" in own else {}
    return own | ({"attempt_id": numbers.get(own["attempt_id"])} if "attempt_id" in own else {})


def one_by_one(moving: Sequence[Any], *given: Any, **named: Any) -> None:
    """`move_jobs` that has lost the race of every batch."""
    if len(moving) > 1:
        raise LostRaceError("somebody was faster")
    move_jobs(moving, *given, **named)


def tried(
    cluster: Cluster, solve: Callable[..., Plan], patch: Callable[[pytest.MonkeyPatch], None]
) -> dict[str, Any]:
    """What a round with that plan writes, which is then undone; `patch` changes how."""
    with pytest.MonkeyPatch.context() as monkeypatch, transaction.atomic():
        patch(monkeypatch)
        row = a_round(cluster, solve)
        assert row.status == "partial", row.message
        rows = {
            **written(),
            "round": [{"status": row.status, "changes": row.changes, "rejected": row.rejected}],
        }
        for assignment in rows["Assignment"]:
            assert assignment.pop("round_id") == row.pk
        transaction.set_rollback(True)
    return rows


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_many_at_once_are_written_as_one_by_one_row_by_row(
    cluster: Cluster, mixed: Callable[..., Plan], batch: int
) -> None:
    together = tried(cluster, mixed, lambda _: None)
    assert together == tried(cluster, mixed, lambda patch: patch.setattr(launches, "BATCH", batch))
    assert together == tried(
        cluster, mixed, lambda patch: patch.setattr(launches, "move_jobs", one_by_one)
    )


def test_every_gang_of_a_mixed_plan_is_what_its_placement_says(
    cluster: Cluster, mixed: Callable[..., Plan]
) -> None:
    row = a_round(cluster, mixed)
    assert refused(row) == {"job-5": "stale", "job-6": "stale", "job-8": "stale"}
    live = Assignment.objects.order_by("job__name", "rank")
    columns = ("job__name", "rank", "world_size", "fence", "attempt__number", "start_steps")
    assert list(live.values_list(*columns)) == [
        ("job-0", 0, 1, 1, 1, 0), ("job-1", 0, 1, 1, 1, 0), ("job-2", 0, 2, 1, 1, 0),
        ("job-2", 1, 2, 1, 1, 0),
        ("job-3", 0, 1, 4, 2, 40), ("job-4", 0, 1, 1, 2, 0), ("job-7", 0, 1, 1, 1, 0),
        ("measured", 0, 1, 1, None, 0),
    ]  # fmt: skip
    shared = AssignmentSlot.objects.filter(live=True, share=0.5).order_by("slot")
    assert list(shared.values_list("assignment__job__name", "slot")) == [("job-0", 0), ("job-1", 1)]
    started = Job.objects.filter(state="starting")
    assert set(started.values_list("waiting_code", flat=True)) == {""}
    assert [job.waiting_detail for job in started] == [{}] * 6
    events = JobEvent.objects.filter(event="place")
    assert {(e.from_state, e.to_state, e.actor, e.data["round"]) for e in events} == {
        ("queued", "starting", "round", row.number)
    }
    assert sorted(e.data["fence"] for e in events) == [1, 1, 1, 1, 1, 4]


def test_what_the_earlier_ones_of_a_plan_take_is_no_longer_there_for_the_later_ones(
    cluster: Cluster, node: Node
) -> None:
    plan = one_each(queue(cluster, 2, memory_gb=100.0), devices_of(node))
    Node.objects.filter(pk=node.pk).update(memory_gb=1000.0)

    def meanwhile(*_: object) -> Plan:
        Node.objects.filter(pk=node.pk).update(memory_gb=128.0)
        return plan()

    row = a_round(cluster, meanwhile)
    assert refused(row) == {"job-1": "stale"}
    assert "memory" in row.rejected[0]["detail"]


def test_a_job_that_is_cancelled_while_its_batch_is_written_is_left_out_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = a_node(cluster, gpus=3)
    jobs = queue(cluster, 3)

    def meanwhile(*given: Any, **named: Any) -> None:
        Job.objects.filter(name="job-1").update(state="cancelled")
        move_jobs(*given, **named)

    monkeypatch.setattr(launches, "move_jobs", meanwhile)
    row = a_round(cluster, one_each(jobs, devices_of(far)))
    assert refused(row) == {"job-1": "stale"}
    assert dict(Job.objects.values_list("name", "state")) == {
        "job-0": "starting",
        "job-1": "cancelled",
        "job-2": "starting",
    }
    assert not jobs[1].attempts.exists()
    assert not jobs[1].assignments.exists()
    assert not jobs[1].events.exists()


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that does not see who holds a device: only the database does."""
    monkeypatch.setattr(
        "controlplane.loop.live.recheck.FreeCapacity._objections_to_devices", lambda *_: iter(())
    )
    monkeypatch.setattr("policies.contract.repair.validate_plan", lambda *_: ())


def keeping(
    assignment: Assignment, device: Device, plan: Callable[..., Plan]
) -> Callable[..., Plan]:
    """The same plan in which that job goes on."""
    return told(Placement(str(assignment.job_id), (seat(device),)), *plan().placements)


@pytest.mark.usefixtures("blind")
def test_a_slot_that_somebody_took_in_between_costs_its_gang_alone(
    cluster: Cluster, node: Node
) -> None:
    held, free = devices_of(node)
    far = a_node(cluster, gpus=2)
    old = running(cluster, "old", node, held)
    jobs = queue(cluster, 3, gpus_max=2)
    gang = Placement(str(jobs[1].pk), (seat(devices_of(far)[1]), seat(held)))
    alone = one_each([jobs[0], jobs[2]], [free, devices_of(far)[0]])().placements
    row = a_round(cluster, keeping(old, held, told(alone[0], gang, alone[1])))
    assert refused(row) == {"job-1": "stale"}
    assert row.rejected[0]["detail"].startswith("the job changed")
    jobs[1].refresh_from_db()
    assert (jobs[1].state, jobs[1].fence, jobs[1].attempts.count(), jobs[1].events.count()) == (
        "queued",
        0,
        0,
        0,
    )
    assert [list(job.assignments.values_list("state", flat=True)) for job in jobs] == [
        ["offered"],
        [],
        ["offered"],
    ]
    assert [job.events.count() for job in jobs] == [1, 0, 1]
    assert not devices_of(far)[1].slots_held.exists()


@pytest.mark.usefixtures("blind")
def test_what_a_gang_would_have_taken_is_there_for_the_next_one_when_it_fails(
    cluster: Cluster, node: Node
) -> None:
    held, free = devices_of(node)
    old = running(cluster, "old", node, held)
    row = a_round(
        cluster, keeping(old, held, one_each(queue(cluster, 2, memory_gb=100.0), [held, free]))
    )
    assert refused(row) == {"job-0": "stale"}
    assert Job.objects.get(name="job-1").state == "starting"


@pytest.mark.usefixtures("blind")
def test_a_profile_run_in_a_batch_that_fails_is_launched_once(cluster: Cluster, node: Node) -> None:
    held, _ = devices_of(node)
    old = running(cluster, "old", node, held)
    measured = a_job(cluster, name="measured", kind=a_kind(), state="profiling", repeatable=True)
    a_node(cluster, gpus=1, role="profiling")
    ProfileRun.objects.create(
        kind=measured.kind, job=measured, gpu_type=type_of(node), gpus=1, steps=20, copy=3
    )
    row = a_round(cluster, keeping(old, held, one_each(queue(cluster, 1), [held])))
    assert refused(row) == {"job-0": "stale"}
    measured.refresh_from_db()
    assert (measured.fence, [e.event for e in measured.events.all()]) == (1, ["profile_run"])
    assert measured.assignments.count() == 1
    assert ProfileRun.objects.get().state == "running"


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each plan took to be applied."""
    counts: list[int] = []

    def counted(*given: Any) -> Any:
        with CaptureQueriesContext(connection) as captured:
            applied = apply_plan(*given)
        counts.append(len(captured))
        return applied

    monkeypatch.setattr(world, "apply_plan", counted)
    return counts


OF_A_PLAN, OF_A_BATCH = 7, 11
"""Queries of a plan with launches: what has ended (twice), locks, nodes, devices, jobs; then for
each batch of them.
"""


@pytest.mark.parametrize(
    ("count", "batch", "batches"), [(1, 100, 1), (10, 100, 1), (50, 100, 1), (50, 20, 3)]
)
def test_launches_cost_queries_by_the_batch(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    queries: list[int],
    count: int,
    batch: int,
    batches: int,
) -> None:
    monkeypatch.setattr(launches, "BATCH", batch)
    far = a_node(cluster, gpus=count, cores=100.0)
    a_round(cluster, one_each(queue(cluster, count), devices_of(far)))
    assert Job.objects.filter(state="starting").count() == count
    assert queries == [OF_A_PLAN + batches * OF_A_BATCH]


@pytest.mark.parametrize("batch", [100, 3])
def test_gangs_of_one_plan_meet_at_ports_of_their_own_which_cost_one_query_of_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, queries: list[int], batch: int
) -> None:
    monkeypatch.setattr(launches, "BATCH", batch)
    nodes = [
        a_node(cluster, gpus=6, cores=100.0, address="10.0.0.5") for _ in range(2)
    ]  # two agents on one machine
    first, second = (devices_of(node) for node in nodes)
    jobs = queue(cluster, 6, gpus_max=2)
    pairs = zip(jobs, first, second, strict=True)
    a_round(cluster, told(*(Placement(str(job.pk), (seat(a), seat(b))) for job, a, b in pairs)))
    ports = list(Assignment.objects.order_by("job", "rank").values_list("gang_port", flat=True))
    assert ports[::2] == ports[1::2]
    assert len(set(ports)) == 6
    assert queries == [OF_A_PLAN + 1 + -(-6 // batch) * OF_A_BATCH]


def test_terms_that_many_gangs_have_in_common_are_changed_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, queries: list[int]
) -> None:
    devices = devices_of(a_node(cluster, gpus=7, cores=100.0))
    jobs = queue(cluster, 7)

    def until(*ends_s: float) -> Callable[..., Plan]:
        pairs = zip(jobs, devices, ends_s, strict=True)
        return told(
            *(
                Placement(str(job.pk), (seat(device),), until_s=end_s)
                for job, device, end_s in pairs
            )
        )

    a_round(cluster, until(*[2e9] * 7))
    assert set(Assignment.objects.values_list("term_at", flat=True)) == {None}, (
        "a launch's own term is no change"
    )
    a_round(cluster, until(*[3e9] * 7))
    a_round(cluster, until(*[4e9] * 5, *[5e9] * 2))
    monkeypatch.setattr(apply, "ROWS_PER_STATEMENT", 3)
    a_round(cluster, until(*[6e9] * 7))
    assert queries[1:] == [1 + 1, 1 + 2, 1 + 3], "what has ended, and the terms"
    assert set(Assignment.objects.values_list("term_until", flat=True)) == {utc(6e9)}
    assert Assignment.objects.filter(term_at__isnull=False).count() == 7


def test_a_plan_that_launches_nothing_does_not_look_for_room(
    cluster: Cluster, node: Node, queries: list[int]
) -> None:
    a_round(cluster, placing())
    assert queries == [1], "what has ended"
    assert Round.objects.get().status == "applied"
