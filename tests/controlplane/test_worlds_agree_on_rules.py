"""One trace of batch jobs with kills, deadlines, arrays and dependencies goes the same way through
the simulated world and the live one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pytest

from clusters.models import Cluster, Node
from controlplane.loop.models import Round
from controlplane.simulation.workloads.rules import After, Array, Condition, Rules
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.run import Simulation
from jobs.models import Dependency, Job, JobArray, Kind
from loadmaster.features import LIMITS, SHARED
from policies.contract.snapshot import KindView
from tests.builders import a_job, a_node, a_team, a_user
from tests.builders_worlds import START_S, FixedKnowledge, LiveRun, LookingEngine
from tests.controlplane.test_worlds_agree import engine as _engine
from tests.controlplane.test_worlds_agree import simulated, stays, the_cluster, the_jobs, the_kinds

pytestmark = pytest.mark.django_db

engine = _engine
"""The clock that Django reads too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A batch job: arrival, run time, cores, walltime if it is killed there, array, deadline, and
    what it waits for: conditions by name of a job or an array.
    """

    at_s: float
    run_s: int
    cores: float = 2.0
    walltime_s: float | None = None
    array: str = ""
    deadline_s: float | None = None
    after: Mapping[str, str] | None = None


TRACE: Mapping[str, Asked] = {
    "killed": Asked(3, 500, 4.0, walltime_s=200),
    "in-time": Asked(4, 150, walltime_s=200),
    "a0": Asked(10, 100, array="A"),
    "a1": Asked(10, 400, array="A", walltime_s=90),
    "a2": Asked(10, 60, array="A"),
    "a3": Asked(10, 80, array="A"),
    "a4": Asked(10, 70, array="A"),
    "b0": Asked(12, 50, array="B"),
    "b1": Asked(12, 120, array="B"),
    "ok": Asked(15, 40, after={"in-time": "afterok"}),
    "ok-of-killed": Asked(16, 40, after={"killed": "afterok"}),
    "not-of-killed": Asked(17, 40, after={"killed": "afternotok"}),
    "any-of-killed": Asked(18, 45, after={"killed": "afterany"}),
    "not-of-in-time": Asked(19, 45, after={"in-time": "afternotok"}),
    "ok-of-A": Asked(20, 30, after={"A": "afterok"}),
    "any-of-A": Asked(21, 30, after={"A": "afterany"}),
    "not-of-A": Asked(22, 30, after={"A": "afternotok"}),
    "ok-of-B": Asked(23, 30, after={"B": "afterok", "a0": "afterok"}),
    "not-of-B": Asked(24, 30, after={"B": "afternotok"}),
    "of-never": Asked(25, 30, after={"ok-of-killed": "afternotok"}),
    "element": Asked(26, 30, after={"a3": "afterany"}),
    "late": Asked(30, 300, 8.0, deadline_s=420),
    "too-late": Asked(31, 60, 8.0, deadline_s=90),
    "big": Asked(33, 120, 8.0),
}
AT_ONCE = {"A": 2, "B": 1}
ENDS = {
    JobEnd.COMPLETED: "completed", JobEnd.KILLED: "failed", JobEnd.OVERDUE: "failed",
    JobEnd.NEVER_READY: "failed",
}  # fmt: skip


def the_batch_jobs(cluster: Cluster, kinds: Mapping[str, KindView]) -> dict[str, Job]:
    """The jobs, without their arrays and dependencies."""
    kind, team, found = Kind.objects.get(pk=int(kinds["batch"].id)), a_team(), {}
    for name, asked in TRACE.items():
        submitted = datetime.fromtimestamp(START_S + asked.at_s, UTC)
        deadline = asked.deadline_s and datetime.fromtimestamp(START_S + asked.deadline_s, UTC)
        job = a_job(
            cluster, team=team, user=a_user(f"of-{name}", team=team), name=name, state="held",
            kind=kind, total_steps=asked.run_s, cores=asked.cores, gpus_min=0, gpus_max=0,
            batch=True, preemptible=False, walltime_s=asked.walltime_s, on_walltime="kill",
            deadline_at=deadline or None, max_retries=3,
        )  # fmt: skip
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted)
        job.submitted_at = submitted
        found[name] = job
    return found


def the_rules(jobs: Mapping[str, Job]) -> Rules:
    """The trace's rules for the simulated world."""
    elements = {
        array: tuple(str(jobs[name].pk) for name, asked in TRACE.items() if asked.array == array)
        for array in AT_ONCE
    }
    after = {}
    for name, asked in TRACE.items():
        if asked.after:
            after[str(jobs[name].pk)] = tuple(
                After(elements[other], Condition(condition), name=other)
                if other in elements
                else After((str(jobs[other].pk),), Condition(condition))
                for other, condition in asked.after.items()
            )
    kills = {str(jobs[name].pk): True for name, asked in TRACE.items() if asked.walltime_s}
    arrays = {name: Array(jobs, AT_ONCE[name]) for name, jobs in elements.items()}
    return Rules(kills, after, arrays)


def write_rules(jobs: Mapping[str, Job]) -> None:
    """The same in the database."""
    arrays = {
        name: JobArray.objects.create(indices="0-9", size=9, lowest=0, highest=9, at_once=most)
        for name, most in AT_ONCE.items()
    }
    for name, asked in TRACE.items():
        if asked.array:
            Job.objects.filter(pk=jobs[name].pk).update(
                array=arrays[asked.array], array_index=int(name[1:])
            )
        for other, condition in (asked.after or {}).items():
            on = {"on_array": arrays[other]} if other in arrays else {"on": jobs[other]}
            Dependency.objects.create(job=jobs[name], condition=condition, **on)


def both(
    policy: str, engine: LookingEngine, *, training: bool
) -> tuple[Simulation, dict[str, Job]]:
    """Run the trace, beside training jobs or alone, through both worlds and compare them."""
    cluster, kinds = the_cluster(policy, {}), the_kinds()
    a_node(cluster, gpus=0, name="c1", epoch=1, cores=8.0)
    Node.objects.update(features=["process", LIMITS, SHARED])
    knowledge = FixedKnowledge(tuple(kinds.values()))
    named = the_batch_jobs(cluster, kinds)
    jobs = [*(the_jobs(cluster, kinds) if training else ()), *named.values()]
    simulation = simulated(cluster, knowledge, (), the_rules(named))
    write_rules(named)
    live = LiveRun(cluster, jobs, knowledge, engine)
    for asked in TRACE.values():
        if asked.deadline_s is not None:
            engine.at(START_S + asked.deadline_s, partial(reconcile, live))
    engine.after_each = partial(look, live, [0])
    live.run()
    expected = stays(launch for job in simulation.state.jobs.values() for launch in job.launches)
    assert stays(live.runtime.started) == expected
    table = simulation.state.table
    states = {str(pk): state for pk, state in Job.objects.values_list("pk", "state")}
    assert states == {
        job: ENDS[JobEnd(end)]
        for job, end in zip(table.columns.ids, table.state.tolist(), strict=True)
    }
    assert Round.objects.filter(cluster=cluster).count() == len(simulation.rounds)
    return simulation, named


def reconcile(live: LiveRun) -> None:
    live._reconcile()


def look(live: LiveRun, seen: list[int]) -> None:
    """A pass of the reconciler whenever a job has ended, as one comes soon in a real system."""
    ended = Job.objects.exclude(completed_at=None).count()
    if ended != seen[0]:
        live._reconcile()
        seen[0] = Job.objects.exclude(completed_at=None).count()
    live._look_for_events()


@pytest.mark.parametrize(
    ("policy", "training"),
    [
        ("fifo", False),
        ("backfilling", False),
        pytest.param("fifo", True, marks=pytest.mark.slow),
        pytest.param("backfilling", True, marks=pytest.mark.slow),
        pytest.param("edf", True, marks=pytest.mark.slow),
    ],
)
def test_kills_arrays_and_dependencies_end_the_same_in_both_worlds(
    policy: str, training: bool, engine: LookingEngine
) -> None:
    simulation, jobs = both(policy, engine, training=training)
    table, reasons = simulation.state.table, simulation.state.end_reasons
    rows = {name: table.row_of[str(job.pk)] for name, job in jobs.items()}
    ends = {name: JobEnd(int(table.state[row])) for name, row in rows.items()}
    assert {name for name, end in ends.items() if end is JobEnd.KILLED} == {"killed", "a1"}
    assert {name for name, end in ends.items() if end is JobEnd.NEVER_READY} == {
        "ok-of-killed", "not-of-in-time", "ok-of-A", "not-of-B",
    }  # fmt: skip
    assert ends["too-late"] is JobEnd.OVERDUE
    said = {name: Job.objects.get(pk=job.pk).failure_reason for name, job in jobs.items()}
    for name, row in rows.items():
        assert bool(said[name]) == (row in reasons), name
    assert said["ok-of-A"].startswith("it waited for array")
    assert all(len(job.launches) <= 1 for job in simulation.state.jobs.values() if job.view.batch)
