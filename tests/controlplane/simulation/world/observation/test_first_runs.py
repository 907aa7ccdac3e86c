"""With `first_run_steps` policies know a speed only once a launch has shown it."""

from dataclasses import replace
from math import inf
from typing import Any

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.run import Simulation
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    GpuTypeView,
    JobView,
    KindView,
    PriceInterval,
    RankPlacement,
    Snapshot,
    Source,
)
from profiling.speeds import ASSUMED_RUN_S
from tests.builders_policies import a_job, a_kind, a_node

KIND = a_kind("k", {("V100", 1): 2.0, ("V100", 2): 3.0, ("T4", 1): 0.5})
NODES = (a_node("v", "V100", 2), a_node("t", "T4", 1))
TYPES = (GpuTypeView("V100", 14.0, 16.0), GpuTypeView("T4", 8.0, 16.0))


def a_run(*jobs: JobView, steps: int = 10) -> Simulation:
    scenario = Scenario(NODES, (KIND,), gpu_types=TYPES)
    return Simulation(scenario, jobs, Fifo(), switches=Switches(first_run_steps=steps)).run()


def job_of(job: str, kind: str, steps: int, **fields: Any) -> JobView:
    return a_job(job, kind, remaining_steps=float(steps), total_steps=float(steps), **fields)


def seen(run: Simulation, at_s: float) -> dict[tuple[str, int], tuple[float, Source]]:
    """Speeds and sources of the present kind that the policy saw in the first round since then."""
    found = next(r.snapshot for r in run.rounds if r.snapshot.now_s >= at_s)
    (kind,) = found.kinds
    return {(t.gpu_type, t.gpus): (t.steps_per_s, t.source) for t in kind.throughputs}


def test_a_new_kinds_first_job_is_assumed_to_take_an_hour_on_the_slowest_gpu() -> None:
    known = seen(a_run(job_of("a", "k", 7200)), 0.0)
    assert known["T4", 1] == (7200 / ASSUMED_RUN_S, Source.ASSUMED)
    assert {source for _, source in known.values()} == {Source.ASSUMED}
    assert known["V100", 1][0] == 2.0 * 14.0 / 8.0


def test_its_first_steps_measure_where_it_runs_and_ask_for_a_round() -> None:
    run = a_run(job_of("a", "k", 7200, gpus_max=1))
    assert run.rounds[1].snapshot.trigger.reasons == ("profile",)
    (placed,) = run.rounds[0].plan.placements
    (where,) = (node for node in NODES if node.id == placed.ranks[0].node)
    known, truth = seen(run, 1.0), {(t.gpu_type, t.gpus): t.steps_per_s for t in KIND.throughputs}
    measured = {config for config, (_, source) in known.items() if source is Source.MEASURED}
    assert measured == {(where.gpu_type, 1)}
    assert known[where.gpu_type, 1][0] == truth[where.gpu_type, 1]
    assert run.rounds[1].snapshot.now_s == 10 / truth[where.gpu_type, 1]


def test_a_job_of_fewer_steps_measures_by_its_end() -> None:
    run = a_run(job_of("a", "k", 4), job_of("b", "k", 4, arrival_s=100.0))
    last = seen(run, 100.0)
    assert Source.MEASURED in {source for _, source in last.values()}


def test_a_launch_stopped_before_its_first_steps_measures_nothing() -> None:
    def stops_at_once(snapshot: Snapshot) -> Plan:
        (job,) = snapshot.jobs
        if job.running or snapshot.now_s > 0.0:
            return Plan("p", PlanStatus.HEURISTIC, (), (Waiting("a", WaitCode.POSTPONED),))
        return Plan("p", PlanStatus.HEURISTIC, (Placement("a", (RankPlacement("v", ("gpu0",)),)),))

    scenario = replace(Scenario(NODES, (KIND,), gpu_types=TYPES), round_s=2.0, stop_s=1.0)
    jobs = (job_of("a", "k", 7200),)
    run = Simulation(scenario, jobs, stops_at_once, switches=Switches(first_run_steps=10))
    run.run(until_s=60.0)
    assert {source for _, source in seen(run, 10.0).values()} == {Source.ASSUMED}


def test_estimates_of_a_kind_follow_what_others_have_shown() -> None:
    other = KindView("o", "o", KIND.throughputs)
    scenario = Scenario(NODES, (KIND, other), gpu_types=TYPES)
    jobs = (
        job_of("a", "k", 100, gpus_max=1, allowed_types=("V100",)),
        job_of("b", "k", 100, gpus_max=1, allowed_types=("T4",), arrival_s=1000.0),
        job_of("c", "o", 100, gpus_max=1, allowed_types=("V100",), arrival_s=2000.0),
        job_of("d", "o", 100, gpus_max=1, allowed_types=("V100",), arrival_s=3000.0),
    )
    run = Simulation(scenario, jobs, Fifo(), switches=Switches(first_run_steps=10)).run()
    known = seen(run, 3000.0)
    assert known["V100", 1] == (2.0, Source.MEASURED)
    speed, source = known["T4", 1]
    assert source is Source.ESTIMATED
    assert 0.5 < speed < 2.0 * 8.0 / 14.0  # between what k has shown and the data sheets


def test_a_waiting_job_explores_gpus_that_may_be_cheaper_as_live() -> None:
    prices = (PriceInterval(0.0, inf, 0.3, 1.0),)
    scenario = Scenario(NODES, (KIND,), prices, gpu_types=TYPES)
    jobs = [job_of("a", "k", 100, gpus_max=1, allowed_types=("V100",))]
    jobs += [job_of(f"j{n}", "k", 10**5, gpus_max=1, arrival_s=1000.0) for n in range(5)]
    run = Simulation(scenario, jobs, Fifo(), switches=Switches(first_run_steps=3)).run()
    explorers = {
        (job, kind)
        for r in run.rounds
        for job, kind in zip(
            r.snapshot.jobs.columns.ids, r.snapshot.jobs.columns.kinds, strict=True
        )
        if kind != "k"
    }
    assert explorers == {("j0", "k+T4:1")}
