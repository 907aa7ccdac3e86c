"""Ends at the walltime and the deadline, dependencies and job arrays in the simulated world."""

from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import RoundResult
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import WorkloadError, load
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import Simulation
from policies.contract.snapshot import NodeView, PriceInterval
from policies.host import registry
from tests.builders_policies import a_cpu_node

KIND = {"id": "batch", "throughputs": [
    {"gpu_type": "", "gpus": 0, "steps_per_s": 1.0, "source": "declared"}
]}  # fmt: skip


def job(name: str, run_s: float, **fields: Any) -> dict[str, Any]:
    """A batch job of one core that runs so long."""
    usual = {
        "id": name, "kind": "batch", "arrival_s": 0.0, "remaining_steps": run_s,
        "total_steps": run_s, "gpus_min": 0, "gpus_max": 0, "cores": 1.0, "batch": True,
        "preemptible": False,
    }  # fmt: skip
    return {**usual, **fields}


def run(
    *jobs: dict[str, Any],
    nodes: tuple[NodeView, ...] = (),
    policy: str = "fifo",
    switches: Switches | None = None,
    **options: Any,
) -> tuple[Simulation, Outcome]:
    workload = load({"type": "jobs", "jobs": list(jobs), "kinds": [KIND], **options}, 1)
    scenario = Scenario(
        nodes or (a_cpu_node(cores=8.0),), workload.kinds, (PriceInterval(0.0, inf, 0.2, 1.5),)
    )
    simulation = Simulation(
        scenario, workload.jobs, registry.make(policy, {}), rules=workload.rules,
        switches=switches or Switches(),
    ).run()  # fmt: skip
    return simulation, simulation.outcome(policy, "jobs")


def states(outcome: Outcome) -> dict[str, str]:
    return {
        name: JobEnd(state).name.lower()
        for name, state in zip(outcome.job_ids, outcome.state.tolist(), strict=True)
    }


def spans(outcome: Outcome) -> dict[str, tuple[float, float]]:
    times = zip(outcome.first_start_s.tolist(), outcome.ended_s.tolist(), strict=True)
    return dict(zip(outcome.job_ids, times, strict=True))


def why(outcome: Outcome) -> dict[str, str]:
    return {one.job: one.reason for one in outcome.not_completed}


def test_a_job_that_says_kill_ends_at_its_walltime_and_one_that_says_warn_goes_on() -> None:
    _, outcome = run(
        job("k", 100.0, walltime_s=60.0, on_walltime="kill"),
        job("w", 100.0, walltime_s=60.0, on_walltime="warn"),
        job("exact", 60.0, walltime_s=60.0, on_walltime="kill"),
    )
    assert spans(outcome) == {"k": (0.0, 60.0), "w": (0.0, 100.0), "exact": (0.0, 60.0)}
    assert states(outcome) == {"k": "killed", "w": "completed", "exact": "completed"}
    assert why(outcome) == {"k": "it was killed at its walltime of 60 s"}


@pytest.mark.parametrize(("switch", "state"), [(0, "completed"), (1, "killed")])
def test_a_switch_says_whether_batch_jobs_are_killed_that_do_not_say_it(
    switch: int, state: str
) -> None:
    switches = Switches(kill_at_walltime=switch)
    _, outcome = run(
        job("silent", 100.0, walltime_s=60.0),
        job("warned", 100.0, walltime_s=60.0, on_walltime="warn"),
        switches=switches,
    )
    assert states(outcome) == {"silent": state, "warned": "completed"}


def test_a_killed_job_frees_its_cores_and_counts_in_averages_with_its_walltime() -> None:
    _, outcome = run(
        job("k", 1000.0, cores=8.0, walltime_s=60.0, on_walltime="kill"),
        job("next", 40.0, cores=8.0),
    )
    assert spans(outcome)["next"] == (60.0, 100.0)
    assert outcome.jct_s.tolist() == [60.0, 100.0]
    assert outcome.fastest_s.tolist() == [60.0, 40.0]


def test_a_job_ends_at_its_deadline_running_or_waiting_and_nothing_runs_after_it() -> None:
    _, outcome = run(
        job("runs", 100.0, cores=8.0, deadline_s=50.0),
        job("waits", 10.0, cores=8.0, deadline_s=30.0),
        job("later", 10.0, cores=8.0),
        job("just", 10.0, cores=1.0, arrival_s=90.0, deadline_s=100.0),
    )
    found = spans(outcome)
    assert found["runs"] == (0.0, 50.0)
    assert found["waits"][1] == 30.0
    assert found["later"] == (50.0, 60.0)
    assert states(outcome) == {
        "runs": "overdue", "waits": "overdue", "later": "completed", "just": "completed",
    }  # fmt: skip


def test_a_job_overdue_during_a_decision_is_not_launched() -> None:
    _, outcome = run(
        job("late", 10.0, cores=8.0, deadline_s=3.0),
        job("next", 10.0, cores=8.0),
        switches=Switches(decision_s=5.0),
    )
    assert states(outcome) == {"late": "overdue", "next": "completed"}
    assert outcome.launches.tolist() == [0, 1]
    assert spans(outcome)["next"] == (10.0, 20.0)


def test_a_job_killed_during_a_decision_is_not_launched_again() -> None:
    _, outcome = run(
        job("killed", 100.0, cores=8.0, walltime_s=60.0, on_walltime="kill"),
        job("next", 10.0, cores=8.0, arrival_s=63.0),
        switches=Switches(decision_s=5.0),
    )
    assert outcome.launches.tolist() == [1, 1]
    assert states(outcome) == {"killed": "killed", "next": "completed"}


def test_each_condition_waits_for_its_end_and_what_can_never_be_ends_with_a_reason() -> None:
    killed = {"walltime_s": 60.0, "on_walltime": "kill"}
    _, outcome = run(
        job("bad", 100.0, **killed),
        job("good", 50.0),
        job("ok-of-good", 10.0, dependencies={"good": "afterok"}),
        job("any-of-bad", 10.0, dependencies={"bad": "afterany"}),
        job("not-of-bad", 10.0, dependencies={"bad": "afternotok"}),
        job("ok-of-bad", 10.0, dependencies=["bad"]),
        job("not-of-good", 10.0, dependencies={"good": "afternotok"}),
        job("after-never", 10.0, dependencies={"ok-of-bad": "afternotok"}),
    )
    found = spans(outcome)
    assert found["ok-of-good"] == (50.0, 60.0)
    assert found["any-of-bad"] == found["not-of-bad"] == found["after-never"] == (60.0, 70.0)
    assert why(outcome)["ok-of-bad"] == (
        "it waited for job bad, which was killed at its walltime (afterok)"
    )
    assert why(outcome)["not-of-good"] == "it waited for job good, which completed (afternotok)"
    assert (found["not-of-good"][1], found["ok-of-bad"][1]) == (50.0, 60.0)


def test_a_dependency_that_has_not_arrived_yet_is_waited_for() -> None:
    _, outcome = run(job("first", 10.0, dependencies=["late"]), job("late", 20.0, arrival_s=100.0))
    assert spans(outcome) == {"first": (120.0, 130.0), "late": (100.0, 120.0)}


def test_at_most_so_many_elements_of_an_array_run_at_once_and_the_rest_is_not_shown() -> None:
    elements = [job(f"e{i}", 10.0, array="A") for i in range(6)]
    simulation, outcome = run(*elements, arrays={"A": 2})
    assert [start for start, _ in spans(outcome).values()] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    rounds: list[RoundResult] = simulation.rounds
    assert max(len(one.snapshot.jobs) for one in rounds) == 2


def test_a_job_waits_for_a_whole_array_and_for_an_element() -> None:
    elements = [job(f"e{i}", 10.0 * (i + 1), array="A") for i in range(3)]
    elements[1] |= {"walltime_s": 5.0, "on_walltime": "kill"}
    _, outcome = run(
        *elements,
        job("any", 1.0, dependencies={"A": "afterany"}),
        job("not", 1.0, dependencies={"A": "afternotok"}),
        job("ok", 1.0, dependencies={"A": "afterok"}),
        job("element", 1.0, dependencies={"e0": "afterok"}),
    )
    found = spans(outcome)
    assert found["any"][0] == found["not"][0] == 30.0
    assert found["element"][0] == 10.0
    assert why(outcome)["ok"] == (
        "it waited for array A, of which job e1 was killed at its walltime (afterok)"
    )


def test_a_job_waits_for_the_start_of_another_and_minutes_after_it() -> None:
    simulation, outcome = run(
        job("first", 500.0, cores=8.0),
        job("second", 500.0, cores=4.0),
        job("at-start", 10.0, dependencies={"second": "after"}),
        job("later", 10.0, dependencies={"second": "after+2"}),
        job("too", 10.0, dependencies={"at-start": "afterok", "second": "after+1"}),
    )
    found = spans(outcome)
    assert found["second"][0] == 500.0
    assert found["at-start"] == (500.0, 510.0)
    assert found["later"] == (620.0, 630.0)
    assert found["too"] == (560.0, 570.0)
    shown = [{view.id for view in one.snapshot.jobs} for one in simulation.rounds]
    assert "at-start" not in shown[0], "no policy may take it for one that waits for an end"


def test_a_job_that_ends_without_a_start_counts_as_started() -> None:
    never = job("never", 10.0, dependencies={"fails": "afterok"})
    fails = job("fails", 10.0, walltime_s=5.0, on_walltime="kill")
    _, outcome = run(fails, never, job("follows", 10.0, dependencies={"never": "after"}))
    assert spans(outcome)["follows"] == (5.0, 15.0)


def test_one_of_several_dependencies_suffices_where_a_job_says_so() -> None:
    either = {"one_suffices": True}
    killed = {"walltime_s": 20.0, "on_walltime": "kill"}
    _, outcome = run(
        job("fails", 100.0, **killed),
        job("short", 50.0),
        job("long", 90.0),
        job("first-end", 1.0, dependencies={"long": "afterany", "short": "afterok"}, **either),
        job("not-the-failed", 1.0, dependencies={"fails": "afterok", "long": "afterok"}, **either),
        job("start", 1.0, dependencies={"long": "afterok", "short": "after+1"}, **either),
        job("none", 1.0, dependencies={"fails": "afterok", "short": "afternotok"}, **either),
    )
    found = spans(outcome)
    assert found["first-end"][0] == 50.0
    assert found["not-the-failed"][0] == 90.0
    assert found["start"][0] == 60.0
    assert states(outcome)["none"] == "never_ready"
    assert found["none"][1] == 50.0


@pytest.mark.parametrize(
    ("jobs", "options", "problem"),
    [
        ([job("a", 1.0, dependencies=["a"])], {}, "it depends on itself"),
        (
            [job("a", 1.0, dependencies=["b"]), job("b", 1.0, dependencies={"a": "afterany"})],
            {},
            "wait for each other in a circle",
        ),
        ([job("a", 1.0, dependencies={"b": "before"})], {}, "must be one of after, afterok,"),
        ([job("a", 1.0, dependencies={"b": "afterok+5"})], {}, "must be one of after, afterok,"),
        ([job("a", 1.0, dependencies={}, one_suffices=1)], {}, "one_suffices: must be true or"),
        ([job("a", 1.0, on_walltime="end")], {}, "on_walltime: must be kill or warn"),
        ([job("a", 1.0)], {"arrays": {"A": 2}}, "no job has array 'A'"),
        ([job("a", 1.0, array="a")], {}, "'a' is a job too"),
        ([job("a", 1.0, array="A")], {"arrays": {"A": 0}}, "arrays"),
    ],
)
def test_bad_rules_are_refused_with_the_field(
    jobs: list[dict[str, Any]], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(WorkloadError, match=problem):
        run(*jobs, **options)


def test_a_table_of_decision_times_delays_the_starts() -> None:
    switches = Switches(decision_times=((1, 2.0), (3, 4.0)))
    assert [switches.decides_in_s(jobs) for jobs in (0, 1, 2, 3, 9)] == [2.0, 2.0, 3.0, 4.0, 4.0]
    _, outcome = run(job("a", 10.0), job("b", 10.0), switches=switches)
    assert spans(outcome)["a"][0] == 3.0


def test_the_fractions_of_cores_and_named_resources_in_use_are_reported() -> None:
    node = a_cpu_node(cores=8.0, memory_gb=16.0, resources=(("mic", 2.0),))
    _, outcome = run(
        job("a", 10.0, cores=4.0, memory_gb=16.0), job("b", 10.0, resources={"mic": 1.0}),
        nodes=(node,),
    )  # fmt: skip
    assert outcome.used == pytest.approx({"cores": 0.625, "memory_gb": 1.0, "mic": 0.5})


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(1, 30),
            st.integers(1, 30),
            st.sampled_from(["kill", "warn"]),
            st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["ok", "any", "notok"]))),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["fifo", "backfilling", "edf"]),
)
def test_conditions_limits_and_kills_hold_in_every_workload(
    asked: list[tuple[int, int, int, str, list[tuple[int, str]], bool]], policy: str
) -> None:
    jobs, first_s = [], min(one[0] for one in asked)
    for i, (at_s, run_s, limit_s, walltime, others, in_array) in enumerate(asked):
        after = {f"j{n}": f"after{condition}" for n, condition in others if n < i}
        fields: dict[str, Any] = {"dependencies": after} if after else {}
        fields |= {"array": "A"} if in_array else {}
        jobs.append(
            job(
                f"j{i}", float(run_s), arrival_s=float(at_s - first_s), walltime_s=float(limit_s),
                on_walltime=walltime, **fields,
            )
        )  # fmt: skip
    arrays = {"A": 2} if any(one[-1] for one in asked) else {}
    _, outcome = run(*jobs, policy=policy, arrays=arrays)
    found, ended = states(outcome), spans(outcome)
    for one in jobs:
        check_one(one, found, ended)
    moments = [start for start, _ in ended.values()]
    for moment in moments:
        running = [
            one for one in jobs
            if "array" in one and ended[one["id"]][0] <= moment < ended[one["id"]][1]
        ]  # fmt: skip
        assert len(running) <= 2


def check_one(
    one: dict[str, Any], found: dict[str, str], ended: dict[str, tuple[float, float]]
) -> None:
    """Compare a job's end with its rules, read again from the workload."""
    after = one.get("dependencies", {})
    unwanted = {"afterok": False, "afternotok": True}
    may_start = all(
        unwanted.get(condition) != (found[other] == "completed")
        for other, condition in after.items()
    )
    start_s, end_s = ended[one["id"]]
    if not may_start:
        assert found[one["id"]] == "never_ready"
        return
    assert start_s >= max([one["arrival_s"], *(ended[other][1] for other in after)])
    killed = one["on_walltime"] == "kill" and one["walltime_s"] < one["remaining_steps"]
    assert found[one["id"]] == ("killed" if killed else "completed")
    assert end_s - start_s == min(
        one["remaining_steps"], one["walltime_s"] if killed else one["remaining_steps"]
    )
