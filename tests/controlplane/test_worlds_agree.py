"""The keystone: one trace through the simulated world and through the live one, with a runtime that
only pretends, ends the same.

The live side is real from the events to the agent's services; virtual are only the clock and the
work itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from controlplane.loop.models import Round
from controlplane.loop.rounds import RejectCode
from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.rules import NO_RULES, Rules
from controlplane.simulation.world.run import Simulation
from jobs.models import Assignment, Job, Kind, Team
from loadmaster.features import SHARED, features_with
from policies.contract.plan import WaitCode
from policies.contract.snapshot import KindView, Source, Throughput
from policies.host import third_parties
from policies.host.registry import make
from profiling.models import PredictedRun
from tests.builders import a_cluster, a_gpu_type, a_job, a_node, a_team, a_user
from tests.builders_third_party import PLACES_BATCH, SPOILS_SEATS, a_package
from tests.builders_worlds import (
    LAUNCH_S,
    PERIOD_S,
    RESTART_S,
    START_S,
    STOP_S,
    FixedKnowledge,
    Incident,
    LiveRun,
    LookingEngine,
    let_happen,
)

pytestmark = pytest.mark.django_db

# Steps per second on (V100, 1), (V100, 2), (T4, 1), (T4, 2).
RATES = {"conv": (2.0, 3.2, 0.8, 1.25), "lstm": (1.0, 1.25, 0.5, 0.8)}

# Name, kind, arrival, steps, GPUs at most, due (None: never), weight, priority.
TRACE = (
    ("a", "conv", 0, 1600, 2, 900, 0.001, 1),
    ("b", "lstm", 5, 500, 2, None, 0.001, 2),
    ("c", "conv", 10, 1200, 1, 1500, 0.002, 1),
    ("d", "lstm", 61, 700, 2, 1600, 0.001, 3),
    ("e", "conv", 130, 300, 2, 260, 0.01, 5),
    ("f", "lstm", 190, 400, 1, 900, 0.004, 2),
    ("g", "conv", 250, 900, 2, 2000, 0.001, 1),
    ("h", "lstm", 310, 100, 1, 320, 0.02, 5),
    ("i", "conv", 400, 2000, 2, 4000, 0.0005, 1),
    ("j", "lstm", 555, 600, 2, 1400, 0.003, 4),
    ("k", "conv", 700, 500, 1, None, 0.0, 1),
    ("l", "lstm", 705, 250, 1, 1200, 0.002, 2),
)


BatchJob: TypeAlias = tuple[str, int, int, float, int]

BATCH: tuple[BatchJob, ...] = (
    ("B1", 3, 200, 4.0, 0),
    ("B2", 12, 400, 6.0, 0),
    ("B3", 20, 90, 2.0, 1),
    ("B4", 20, 150, 8.0, 0),
    ("B5", 320, 600, 3.0, 0),
    ("B6", 400, 60, 8.0, 0),
)
"""Batch jobs: name, arrival, run time, cores, GPUs."""

WIDE = (("W1", 0, 500), ("W2", 262, 300), ("W3", 640, 800))
"""Training jobs of three GPUs: name, arrival, steps."""

UNITS = {"B4": (2, 0), "B5": (4, 1), "B6": (3, 2)}
"""Units of some, and the most on a node."""
REPEATED: tuple[BatchJob, ...] = (
    ("long-1", 3, 300, 5.0, 0),
    ("short-1", 4, 40, 5.0, 0),
    ("long-2", 5, 320, 5.0, 0),
    ("short-2", 6, 50, 5.0, 0),
    ("long-3", 330, 350, 5.0, 0),
    ("short-3", 331, 45, 5.0, 0),
    ("long-4", 332, 700, 5.0, 0),
    ("short-4", 333, 60, 5.0, 0),
    ("short-5", 334, 30, 5.0, 0),
)
"""The same of two users, each with jobs that are alike."""


@dataclass(frozen=True, slots=True)
class Stay:
    """What both worlds must agree on."""

    job: str
    seats: tuple[tuple[str, tuple[str, ...]], ...]
    """Node and devices of each rank."""
    start_s: float
    start_steps: int
    end_s: float
    end_steps: int


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> LookingEngine:
    """A virtual clock that Django reads too."""
    engine = LookingEngine(START_S)
    monkeypatch.setattr(
        "django.utils.timezone.now", lambda: datetime.fromtimestamp(engine.now_s, UTC)
    )
    return engine


def the_kinds() -> dict[str, KindView]:
    places = (("V100", 1), ("V100", 2), ("T4", 1), ("T4", 2))
    found = {}
    for number, (name, rates) in enumerate(RATES.items()):
        kind = Kind.objects.create(digest=f"{number:064d}", name=name)
        known = tuple(
            Throughput(t, g, rate, Source.MEASURED)
            for (t, g), rate in zip(places, rates, strict=True)
        )
        found[name] = KindView(str(kind.pk), name, known)
    batch = Kind.objects.create(digest="b" * 64, name="batch")
    anywhere = (("", 0), ("V100", 1), ("T4", 1))
    known = tuple(Throughput(t, g, 1.0, Source.MEASURED) for t, g in anywhere)
    found["batch"] = KindView(str(batch.pk), "batch", known)
    return found


def the_batch_jobs(
    cluster: Cluster, kinds: dict[str, KindView], trace: Sequence[BatchJob] = BATCH
) -> list[Job]:
    """Batch jobs beside the others, some on several nodes, and a node without GPUs."""
    Node.objects.filter(cluster=cluster).update(features=list(features_with("process", SHARED)))
    a_node(
        cluster, gpus=0, name="c1", epoch=1, cores=8.0, features=features_with("process", SHARED)
    )
    team, jobs = a_team(), []
    people = {name.partition("-")[0] for name, *_ in trace}
    of = {person: a_user(f"of-{person}", team=team) for person in sorted(people)}
    for name, arrival, run_s, cores, gpus in trace:
        submitted = datetime.fromtimestamp(START_S + arrival, UTC)
        units, most = UNITS.get(name, (1, 0))
        job = a_job(
            cluster, team=team, user=of[name.partition("-")[0]], name=name, state="held",
            units=units, units_per_node=most,
            kind=Kind.objects.get(pk=int(kinds["batch"].id)), total_steps=run_s, cores=cores,
            gpus_min=gpus, gpus_max=gpus, batch=True, preemptible=False,
        )  # fmt: skip
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted)
        job.submitted_at = submitted
        jobs.append(job)
    return jobs


def the_wide_jobs(
    cluster: Cluster, kinds: dict[str, KindView], trace: Sequence[tuple[str, int, int]]
) -> list[Job]:
    """Training jobs of three GPUs, which only the two nodes with V100s have together."""
    Node.objects.filter(cluster=cluster).update(
        features=list(features_with("process", SHARED)), address="192.0.2.1"
    )
    kind = Kind.objects.create(digest="w" * 64, name="wide")
    known = Throughput("V100", 3, 2.0, Source.MEASURED, spread=True)
    kinds["wide"] = KindView(str(kind.pk), "wide", (known,))
    team = a_team()
    user = a_user(team=team)
    jobs = []
    for name, arrival, steps in trace:
        submitted = datetime.fromtimestamp(START_S + arrival, UTC)
        job = a_job(
            cluster,
            team=team,
            user=user,
            kind=kind,
            name=name,
            total_steps=steps,
            gpus_min=3,
            gpus_max=3,
            priority=5,
            state="held",
        )
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted)
        job.submitted_at = submitted
        jobs.append(job)
    return jobs


GangMaker: TypeAlias = Callable[
    [Cluster, dict[str, KindView], Sequence[tuple[str, int, int]]], list[Job]
]
"""Maker of the gangs of a trace, which may change what is known of kinds."""


def the_cluster(policy: str, parameters: Mapping[str, Any]) -> Cluster:
    cluster = a_cluster(
        policy=policy,
        policy_parameters=dict(parameters),
        period_s=PERIOD_S,
        restart_cost_s=RESTART_S + LAUNCH_S + STOP_S,  # as policies see it
        seed=7,
    )
    t4 = a_gpu_type("T4", idle_w=10.0, peak_w=80.0)
    a_node(cluster, gpu_type="V100", gpus=2, name="v2", epoch=1)
    a_node(cluster, gpu_type="V100", gpus=1, name="v1", epoch=1)
    a_node(cluster, gpu_type=t4, gpus=2, name="t2", epoch=1)
    return cluster


def the_jobs(cluster: Cluster, kinds: dict[str, KindView]) -> list[Job]:
    team = a_team()
    user = a_user(team=team)
    jobs = []
    for name, kind, arrival, steps, gpus, due, weight, priority in TRACE:
        submitted = datetime.fromtimestamp(START_S + arrival, UTC)
        job = a_job(
            cluster,
            team=team,
            user=user,
            kind=Kind.objects.get(pk=int(kinds[kind].id)),
            name=name,
            total_steps=steps,
            gpus_max=gpus,
            due_at=None if due is None else submitted + timedelta(seconds=due),
            tardiness_weight=weight,
            priority=priority,
            state="held",
        )
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted)
        job.submitted_at = submitted
        jobs.append(job)
    return jobs


def simulated(
    cluster: Cluster,
    knowledge: FixedKnowledge,
    incidents: Sequence[Incident],
    rules: Rules = NO_RULES,
) -> Simulation:
    """The same cluster and jobs, read from the database before anything has run.

    `rules` are what no policy is told; the jobs must not have them in the database yet.
    """
    Job.objects.filter(cluster=cluster).update(state="queued")
    empty = observe(cluster.pk, START_S, 0, knowledge).snapshot
    Job.objects.filter(cluster=cluster).update(state="held")
    scenario = Scenario(
        nodes=empty.nodes,
        kinds=empty.kinds,
        energy=empty.energy,
        gpu_types=empty.gpu_types,
        teams=empty.teams,
        round_s=PERIOD_S,
        seed=cluster.seed,
        launch_s=LAUNCH_S,
        stop_s=STOP_S,
    )
    waits = {job: [o for a in after for o in a.jobs] for job, after in rules.after.items()}
    anew: dict[str, Any] = {
        "restart_cost_s": RESTART_S,
        "expected_run_s": inf,
        "expected_source": "",
    }
    jobs = [replace(job, dependencies=tuple(waits.get(job.id, ())), **anew) for job in empty.jobs]
    predictor: Any = cluster.predictor
    policy = make(cluster.policy, cluster.policy_parameters)
    simulation = Simulation(
        scenario,
        jobs,
        policy,
        START_S,
        switches=Switches(checkpoint_every_s=0.0, predictor=predictor),
        rules=rules,
    )
    let_happen(simulation.state, simulation.engine, {n.name: n.id for n in empty.nodes}, incidents)
    return simulation.run()


def stays(launches: Iterable[Launch]) -> list[Stay]:
    found = [
        Stay(
            launch.job,
            tuple((seat.node, seat.devices) for seat in launch.ranks),
            round(launch.start_s - START_S, 3),
            launch.start_steps,
            round(launch.end_s - START_S, 3),
            launch.end_steps or 0,
        )
        for launch in launches
    ]
    return sorted(found, key=lambda s: (s.start_s, s.job))


def seats_of(simulation: Simulation) -> set[tuple[str, int, str, int]]:
    """Name, number of the seat, node and units of all seats of batch jobs."""
    names = {node.id: node.name for node in simulation.state.scenario.nodes}
    return {
        (job.view.name, rank, names[seat.node], seat.units)
        for job in simulation.state.jobs.values()
        if job.view.batch
        for launch in job.launches
        for rank, seat in enumerate(launch.ranks)
    }


def both_worlds(
    policy: str,
    parameters: Mapping[str, Any],
    engine: LookingEngine,
    incidents: Sequence[Incident] = (),
    *,
    batch: Sequence[BatchJob] = (),
    wide: Sequence[tuple[str, int, int]] = (),
    gangs: GangMaker = the_wide_jobs,
    predictor: str = "walltime",
    max_gpus: int | None = None,
) -> Simulation:
    """Run the trace through both worlds and hold them against each other; the simulation, for what
    the test is about.
    """
    cluster = the_cluster(policy, parameters)
    Cluster.objects.filter(pk=cluster.pk).update(predictor=predictor)
    cluster.predictor = predictor
    kinds = the_kinds()
    jobs = the_jobs(cluster, kinds)
    if batch:
        jobs += the_batch_jobs(cluster, kinds, batch)
    if wide:
        jobs += gangs(cluster, kinds, wide)
    knowledge = FixedKnowledge(tuple(kinds.values()))
    Team.objects.update(max_gpus=max_gpus)
    simulation = simulated(cluster, knowledge, incidents)
    live = LiveRun(cluster, jobs, knowledge, engine, incidents)
    engine.after_each = live._look_for_events
    live.run()
    expected = stays(launch for job in simulation.state.jobs.values() for launch in job.launches)
    assert stays(live.runtime.started) == expected
    assert seats_of(simulation) == {
        (name, rank, node, units)
        for name, rank, node, units in Assignment.objects.filter(job__batch=True).values_list(
            "job__name", "rank", "node__name", "units"
        )
    }
    assert not Job.objects.filter(cluster=cluster).exclude(state="completed").exists()
    assert Round.objects.filter(cluster=cluster).count() == len(simulation.rounds)
    return simulation


@pytest.mark.parametrize("policy", ["fifo", "edf", "priority", "randomized_greedy"])
def test_one_trace_gives_the_same_assignments_in_both_worlds(
    policy: str, engine: LookingEngine
) -> None:
    simulation = both_worlds(policy, {}, engine)
    if policy == "randomized_greedy":
        assert simulation.state.table.launched.sum() > len(TRACE), (
            "the trace must have a job moved, or it shows too little"
        )
        assert Round.objects.filter(status="partial").exists(), (
            "and somebody who waits for what it gives up"
        )


def test_both_worlds_agree_on_the_published_programs_mode(engine: LookingEngine) -> None:
    both_worlds("randomized_greedy", {"mode": "coded"}, engine)


@pytest.mark.parametrize(
    "policy",
    ["fifo", "backfilling", pytest.param("randomized_greedy", marks=pytest.mark.slow)],
)
def test_batch_jobs_beside_training_jobs_end_the_same_in_both_worlds(
    policy: str, engine: LookingEngine
) -> None:
    simulation = both_worlds(policy, {}, engine, batch=BATCH)
    jobs = [job for job in simulation.state.jobs.values() if job.view.batch]
    assert [len(job.launches) for job in jobs] == [1] * len(BATCH)
    assert len({launch.ranks[0].node for job in jobs for launch in job.launches}) > 1
    assert max(rank for _, rank, *_ in seats_of(simulation)) > 0, "one is on several nodes"


@pytest.mark.parametrize("policy", ["fifo", "randomized_greedy"])
def test_a_team_with_a_limit_runs_the_same_in_both_worlds(
    policy: str, engine: LookingEngine
) -> None:
    simulation = both_worlds(policy, {}, engine, max_gpus=2)
    used = [sum(p.gpus for p in one.plan.placements) for one in simulation.rounds]
    assert max(used) == 2, "of five GPUs"
    codes = {entry.code for one in simulation.rounds for entry in one.plan.waiting}
    assert WaitCode.TEAM_LIMIT in codes


@pytest.mark.parametrize("policy", ["fifo", "priority", "randomized_greedy"])
def test_gangs_wider_than_a_node_run_the_same_in_both_worlds(
    policy: str, engine: LookingEngine
) -> None:
    simulation = both_worlds(policy, {}, engine, wide=WIDE)
    assert len(Assignment.objects.filter(rank=1).values("job").distinct()) == len(WIDE)
    over_nodes = [
        launch
        for job in simulation.state.jobs.values()
        for launch in job.launches
        if len(launch.ranks) > 1
    ]
    assert len(over_nodes) >= len(WIDE)


@pytest.mark.parametrize("predictor", ["last_two", "data_driven"])
def test_run_times_are_predicted_alike_in_both_worlds(
    predictor: str, engine: LookingEngine
) -> None:
    """Under shortest first, where they decide."""
    simulation = both_worlds(
        "backfilling", {"order": "shortest"}, engine, batch=REPEATED, predictor=predictor
    )
    told = dict(
        Assignment.objects.filter(job__batch=True).values_list("job__name", "predicted_source")
    )
    columns = simulation.state.table.columns
    sources = zip(columns.others["name"], simulation.state.predictions.source, strict=True)
    assert {name: source for name, source in sources if name in told} == told
    errors = PredictedRun.objects.order_by("pk").values_list("source", "predicted_s", "run_s")
    ended = simulation.state.predictions.ended
    assert [tuple(error) for error in errors] == [
        (e.source, e.predicted_s, pytest.approx(e.run_s)) for e in ended
    ]
    learnt = "last_two" if predictor == "last_two" else "user+name+kind+request"
    assert learnt in told.values(), "the trace must have something to learn from"


@pytest.fixture
def _third_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Policies of a third party, known to this process and its children."""
    a_package(tmp_path, {"places_batch": PLACES_BATCH, "spoils_seats": SPOILS_SEATS})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield
    third_parties.forget()


@pytest.mark.usefixtures("_third_parties")
def test_a_third_partys_policy_places_batch_jobs_in_both_worlds(engine: LookingEngine) -> None:
    simulation = both_worlds("places_batch", {}, engine, batch=BATCH)
    shown = {one.plan.message for one in simulation.rounds}
    assert set(Round.objects.values_list("message", flat=True)) == shown
    assert "2 batch jobs" in shown


@pytest.mark.usefixtures("_third_parties")
def test_gangs_with_a_bad_seat_are_left_out_in_both_worlds(engine: LookingEngine) -> None:
    simulation = both_worlds("spoils_seats", {}, engine)
    left_out = [r for one in simulation.rounds for r in one.applied.rejected]
    refused = [r for r in left_out if r.code is RejectCode.REFUSED]
    rejected = Round.objects.order_by("number").values_list("rejected", flat=True)
    live = [entry["job"] for entries in rejected for entry in entries if entry["code"] == "refused"]
    assert live == [r.key[0] for r in refused]
    assert len(refused) > 3


INCIDENTS = (
    Incident(333.3, "v2", 452.1),
    Incident(601.7, "t2", 1200.4, until_s=722.2),
    Incident(803.3, "v1", 911.9),
)
"""A node is lost and comes back, one is drained, one more is lost."""


@pytest.mark.parametrize(
    ("policy", "parameters"),
    [
        ("fifo", {}),
        ("randomized_greedy", {}),
        pytest.param("edf", {}, marks=pytest.mark.slow),
        pytest.param("priority", {}, marks=pytest.mark.slow),
        pytest.param("randomized_greedy", {"mode": "coded"}, marks=pytest.mark.slow),
    ],
)
def test_nodes_that_are_lost_and_drained_end_the_same_in_both_worlds(
    policy: str, parameters: dict[str, Any], engine: LookingEngine
) -> None:
    simulation = both_worlds(policy, parameters, engine, INCIDENTS)
    assert simulation.state.table.failed.sum() >= 1, (
        "somebody must have been on a node that was lost"
    )
    assert {"node_lost", "node_drained"} <= {
        r for one in simulation.rounds for r in one.snapshot.trigger.reasons
    }
