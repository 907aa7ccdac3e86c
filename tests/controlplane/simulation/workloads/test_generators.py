import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.workloads import WorkloadError, load
from controlplane.simulation.workloads.andreas import (
    JOBS_AT_ONE_RATE,
    SECONDS_PER_EPOCH,
    WEIGHTS,
    seconds_per_epoch,
)


def test_the_andreas_generator_makes_ten_jobs_a_node_of_the_measured_applications() -> None:
    workload = load({"type": "andreas", "nodes": 20}, 1)
    assert len(workload.jobs) == 200
    assert {k.id for k in workload.kinds} == set(SECONDS_PER_EPOCH)
    assert workload.facts["tuning"] == 2.5
    assert {j.priority for j in workload.jobs} == {1, 2, 3, 4, 5}


def test_a_job_is_due_between_its_least_and_its_most_time_after_it_arrives() -> None:
    workload = load({"type": "andreas", "nodes": 30}, 3)
    for job in workload.jobs:
        kind = next(k for k in workload.kinds if k.id == job.kind)
        times = [job.remaining_steps / t.steps_per_s for t in kind.throughputs]
        assert min(times) <= job.due_s - job.arrival_s <= max(times)
        assert job.tardiness_weight == pytest.approx(WEIGHTS[job.priority - 1])


def test_clusters_of_ten_jobs_come_at_a_high_and_a_low_rate_by_turns() -> None:
    arrival_s = load({"type": "andreas", "nodes": 400, "tuning": 1.0}, 1).jobs.columns.numbers[
        "arrival_s"
    ]
    gaps = np.diff(arrival_s)
    high = (np.arange(1, len(arrival_s)) // JOBS_AT_ONE_RATE) % 2 == 0
    assert gaps[~high].mean() / gaps[high].mean() == pytest.approx(4.0, rel=0.1)


def test_the_load_is_inverse_to_the_tuning_and_stated() -> None:
    loads = [
        load({"type": "andreas", "nodes": 50, "tuning": tuning}, 1).facts["load"]
        for tuning in (2.5, 1.0, 0.5)
    ]
    assert loads[1] / loads[0] == pytest.approx(2.5)
    assert loads[2] / loads[1] == pytest.approx(2.0)


def test_times_on_more_gpus_than_were_measured_go_on_from_the_measurements() -> None:
    for name in SECONDS_PER_EPOCH:
        times = [seconds_per_epoch(name, "V100", g) for g in (1, 2, 3, 4)]
        assert times == sorted(times, reverse=True)
        assert times[3] > times[0] / 4
    assert load({"type": "andreas", "scenario": 2}, 1).jobs[0].gpus_max == 4


@pytest.mark.parametrize(
    "spec",
    [{"type": "andreas"}, {"type": "poisson", "speeds": {"V100": 1.0}, "gpus": {"1": 1, "4": 1}}],
)
def test_equal_seeds_give_equal_jobs_and_others_others(spec: dict[str, object]) -> None:
    one, same, other = (load(spec, seed) for seed in (1, 1, 2))
    assert one.jobs == same.jobs
    assert one.jobs != other.jobs


@given(
    jobs=st.integers(1, 200),
    gap_s=st.floats(0.0, 1e6),
    run_s=st.floats(1.0, 1e3),
    sigma=st.floats(0.0, 3.0),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=50, deadline=None)
def test_poisson_jobs_are_in_order_and_every_number_is_one(
    jobs: int, gap_s: float, run_s: float, sigma: float, seed: int
) -> None:
    spec = {
        "type": "poisson",
        "jobs": jobs,
        "gap_s": gap_s,
        "run_s": run_s,
        "sigma": sigma,
        "speeds": {"V100": 1},
    }
    columns = load(spec, seed).jobs.columns
    assert len(columns.ids) == jobs
    assert np.all(np.diff(columns.numbers["arrival_s"]) >= 0.0)
    assert np.all(columns.numbers["remaining_steps"] > 0.0)
    assert all(
        np.isfinite(columns.numbers[n]).all()
        for n in ("arrival_s", "remaining_steps", "walltime_s")
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {},
            (
                "type: must be one of andreas, csv, gavel, gavel_generator, jobs, kit, philly,"
                " poisson, swf, not None"
            ),
        ),
        ({"type": ["swf"]}, "type: must be one of"),
        (
            {"type": "andreas", "colour": 1},
            "colour: no such field; known are: type, nodes, scenario",
        ),
        ({"type": "andreas", "nodes": 0}, "nodes: must be >= 1"),
        ({"type": "andreas", "scenario": 3}, "scenario: must be >= 1 and <= 2, not 3"),
        ({"type": "andreas", "tuning": float("nan")}, "tuning: must be a finite number"),
        (
            {"type": "poisson", "gpus": {"0": 1.0}, "speeds": {"V100": 1}},
            "gpus: must give the odds of each count",
        ),
        (
            {"type": "poisson", "due_factor": [3.0, 1.0], "speeds": {"V100": 1}},
            r"due_factor: must be \[least, most\]",
        ),
        ({"type": "poisson"}, "speeds: give the speed of the jobs on each GPU type"),
        ({"type": "swf"}, "path: give either a path or a text"),
        (
            {"type": "swf", "path": "nowhere.swf", "speeds": {"V100": 1}},
            "path: nowhere.swf cannot be read",
        ),
    ],
)
def test_a_wrong_specification_is_told_what_would_be_right(
    spec: dict[str, object], words: str
) -> None:
    with pytest.raises(WorkloadError, match=words):
        load(spec, 1)
