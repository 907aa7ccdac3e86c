"""An SWF log's status, preceding jobs and think times, and logs written and read again."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.report.swf_writer import lines_of, records_of
from controlplane.simulation.study.files import cluster_of
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import Workload, WorkloadError, load
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from policies.host import registry
from tests.controlplane.simulation.workloads.data import whole_file

LINE = "{id} {submit} {wait} {run} 2 -1 -1 2 {limit} -1 {status} 3 1 -1 4 -1 {before} {think}\n"
CLUSTERS = Path("experiments/reproduce/pcp20/clusters")
TWO_CORES = {
    "nodes": [{"name": "n", "gpus": 0, "cores": 2, "power_w": [0]}], "round_s": 1e9,
}  # fmt: skip


def a_line(number: int, **fields: object) -> str:
    usual = {"submit": number, "wait": 5, "run": 10, "limit": 20, "status": 1, "before": -1}
    return LINE.format(**{**usual, "think": -1, **fields}, id=number)


def read(text: str, **fields: Any) -> Workload:
    return load({"type": "swf", "text": text, "gpus": "batch", **fields}, 1)


def run(workload: Workload, switches: Switches | None = None) -> Outcome:
    policy = registry.make("fifo", {})
    return simulate(
        scenario_of(TWO_CORES), workload, policy, name="fifo", seed=1,
        switches=switches or Switches(),
    )  # fmt: skip


def test_a_job_is_ready_its_think_time_after_its_preceding_one_and_waits_from_then() -> None:
    text = a_line(1, submit=0, run=100) + a_line(2, submit=1, before=1, think=30)
    outcome = run(read(text))
    assert outcome.first_start_s.tolist() == [0.0, 130.0]
    assert outcome.arrival_s.tolist() == [0.0, 130.0]
    assert outcome.jct_s.tolist() == [100.0, 10.0]


@pytest.mark.parametrize("before", [2, 9, 3])
def test_preceding_job_that_is_on_no_line_above_is_counted(before: int) -> None:
    workload = read(a_line(1) + a_line(2, before=before) + a_line(3))
    assert workload.facts["preceding_jobs_not_in_the_log"] == 1
    assert not workload.rules.after


def test_parts_of_jobs_and_jobs_cancelled_before_they_ran_are_left_out_and_counted() -> None:
    text = (
        a_line(1) + a_line(1, status=2) + a_line(1, status=3)
        + a_line(2, status=5, run=-1) + a_line(3, status=5, run=7) + a_line(4, status=0)
    )  # fmt: skip
    workload = read(text)
    assert [job.id for job in workload.jobs] == ["1", "3", "4"]
    assert workload.facts["parts_of_jobs_left_out"] == 2
    assert workload.facts["jobs_cancelled_before_their_start"] == 1


NOTHING_KNOWN = "3 100 -1 -1 -1 -1 -1 -1 -1 -1 {status} 7 2 -1 1 0 -1 -1\n"


@pytest.mark.parametrize("gpus", ["batch", "processors", "one"])
@pytest.mark.parametrize("status", [2, 3, 4, 5, 0, 1, -1])
def test_line_of_which_nothing_is_known_is_left_out(gpus: str, status: int) -> None:
    text = a_line(1) + a_line(2) + NOTHING_KNOWN.format(status=status)
    workload = read(text, gpus=gpus, speeds={"V100": 1.0})
    assert [job.id for job in workload.jobs] == ["1", "2"]
    facts = workload.facts
    names = ("parts_of_jobs_left_out", "jobs_cancelled_before_their_start")
    counts = [facts[name] for name in (*names, "jobs_without_run_time_left_out")]
    expected = {5: [0, 1, 0], 2: [1, 0, 0], 3: [1, 0, 0], 4: [1, 0, 0]}
    assert counts == expected.get(status, [0, 0, 1])


def test_job_without_processors_is_left_out_and_counted() -> None:
    odd = a_line(2).replace(" 2 -1 -1 2 ", " 0 -1 -1 -1 ")
    workload = read(a_line(1) + odd)
    assert [job.id for job in workload.jobs] == ["1"]
    assert workload.facts["jobs_without_processors_left_out"] == 1


def test_job_of_zero_seconds_runs_a_second() -> None:
    workload = read(a_line(1, run=0) + a_line(2))
    assert workload.facts["run_times_raised_to_1_s"] == 1
    assert len(workload.jobs) == 2


def test_lines_out_of_order_of_submission_are_put_in_order() -> None:
    workload = read(a_line(1, submit=50) + a_line(2, submit=10) + a_line(3, submit=60))
    assert [job.id for job in workload.jobs] == ["2", "1", "3"]
    assert workload.facts["jobs_out_of_order_of_submission"] == 1


HEADERS = [
    "; MaxProcs: lots",
    ";",
    "; Computer: Universit\u00e4t",
    ";MaxNodes",
    "\t; UnixStartTime:",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_log_of_any_encoding_and_line_ends_is_read(
    tmp_path: Path, header: str, encoding: str, ends: str
) -> None:
    text = f"{header}\n\n{a_line(1)}   \n{a_line(2)}".replace("\n", ends)
    path = tmp_path / "log.swf"
    path.write_bytes(text.encode(encoding))
    assert len(load({"type": "swf", "path": str(path), "gpus": "batch"}, 1).jobs) == 2


def test_packed_log_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(gzip.compress(a_line(1).encode()))
    assert len(load({"type": "swf", "path": str(path), "gpus": "batch"}, 1).jobs) == 1


def test_the_logs_own_waits_and_slowdowns_are_among_the_facts() -> None:
    facts = read(a_line(1, wait=10, run=10) + a_line(2, wait=30, run=10)).facts
    assert facts["wait_in_the_log_s"] == {"mean": 20.0, "deviation": 10.0, "jobs": 2}
    assert facts["slowdown_in_the_log"]["mean"] == 3.0


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (a_line(1).replace(" 2 -1 -1 2 ", " 2 -1 -1 2.5 "), "whole processors"),
        (a_line(1).replace(" 2 -1 -1 2 ", " 2 -1 -1 1e12 "), "at most 1,000,000"),
    ],
)
def test_processors_that_are_no_number_of_cores_are_bad_lines(line: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        read(line)


amounts = st.fractions(min_value=0, max_value=64, max_denominator=1000).map(float)
times = st.integers(0, 10**9).map(lambda ms: ms / 1000.0)


@st.composite
def a_log(draw: st.DrawFn) -> dict[str, Any]:
    """A list of batch jobs in the form of type jobs."""
    jobs: list[dict[str, Any]] = []
    arrivals = sorted(draw(st.lists(times, min_size=1, max_size=6)))
    for i, at_s in enumerate(arrivals):
        run_s, gpus = draw(st.integers(1000, 10**9)) / 1000.0, draw(st.integers(0, 4))
        units = draw(st.integers(1, 5))
        jobs.append(
            {
                "id": f"{i + 1}", "kind": draw(st.sampled_from(["queue 2, application 7", "x y"])),
                "arrival_s": at_s - arrivals[0], "remaining_steps": float(round(run_s * 1000)),
                "total_steps": float(round(run_s * 1000)), "walltime_s": draw(times) + 1.0,
                "units": units, "gpus_min": units * gpus, "gpus_max": units * gpus,
                "cores": draw(amounts), "memory_gb": draw(amounts), "batch": True,
                "preemptible": False, "user": draw(st.sampled_from(["", "user 12", "ann", "bo"])),
                "team": draw(st.sampled_from(["", "group 1", "phys"])),
                "resources": {"mic": m} if (m := draw(st.integers(0, 2))) else {},
            }
        )  # fmt: skip
    kinds = [
        {"id": name, "throughputs": [
            {"gpu_type": "", "gpus": 0, "steps_per_s": 1000.0, "source": "declared"}]}
        for name in ("queue 2, application 7", "x y")
    ]  # fmt: skip
    return {"type": "jobs", "jobs": jobs, "kinds": kinds}


@settings(deadline=None)
@given(a_log())
def test_a_written_log_reads_back_the_same(spec: dict[str, Any]) -> None:
    workload = load(spec, 1)
    records, lost = records_of(workload)
    text = "".join(lines_of(records, workload.name))
    again = load({"type": "swf", "text": text, "gpus": "batch_fields"}, 1)
    assert lost == 0
    old, new = workload.jobs.columns, again.jobs.columns
    for name in ("arrival_s", "remaining_steps", "walltime_s", "cores"):
        assert new.numbers[name].tolist() == old.numbers[name].tolist(), name
    assert np.allclose(new.numbers["memory_gb"], old.numbers["memory_gb"], rtol=1e-12, atol=0)
    for name in ("units", "gpus_min", "gpus_max"):
        assert new.counts[name].tolist() == old.counts[name].tolist(), name
    assert new.others["resources"] == old.others["resources"]
    assert (new.ids, new.others["batch"]) == (old.ids, old.others["batch"])
    for a, b in (
        (old.others["user"], new.others["user"]),
        (old.others["team"], new.others["team"]),
    ):
        assert same_groups(a, b)
    assert same_groups(old.kinds, new.kinds)
    known = [(a, b) for a, b in zip(old.kinds, new.kinds, strict=True) if a.startswith("queue")]
    assert all(a == b for a, b in known)
    once_more, _ = records_of(again)
    assert "".join(lines_of(once_more, again.name)).splitlines()[-len(records):] == (
        text.splitlines()[-len(records):]
    )  # fmt: skip


def same_groups(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return True if the same jobs have equal names in both, and no name in both."""
    pairs = set(zip(some, others, strict=True))
    return len(pairs) == len(set(some)) == len(set(others)) and ("" in some) == ("" in others)


def test_a_written_run_has_its_waits_run_times_and_states() -> None:
    text = a_line(1, submit=0, run=100, limit=50) + a_line(2, submit=1, run=10)
    text += a_line(3, submit=2, before=2, think=7)
    workload = read(text)
    records, _ = records_of(workload, run(workload, Switches(kill_at_walltime=1)))
    told = [(r.wait_s, r.run_s, r.status, r.preceding, r.think_s) for r in records]
    assert told[0] == (0.0, 50.0, 0, -1, -1.0)
    assert told[1] == (49.0, 10.0, 1, -1, -1.0)
    assert told[2][2:] == (1, 2, 7.0)
    again = load(
        {"type": "swf", "text": "".join(lines_of(records, "run")), "gpus": "batch_fields"}, 1
    )
    assert again.jobs.columns.numbers["remaining_steps"].tolist()[:2] == [50_000.0, 10_000.0]


def test_whole_eurora_is_read_as_batch_jobs_and_written_and_read_the_same() -> None:
    path = str(whole_file("hpc/eurora-2014-4days.swf"))
    workload = load({"type": "swf", "path": path, "gpus": "batch_fields"}, 1)
    assert len(workload.jobs) == 5930
    assert workload.facts["jobs_without_gpu"] == 5044
    assert workload.facts["jobs_that_ran_longer_than_requested"] == 722
    assert workload.facts["wait_in_the_log_s"]["mean"] == pytest.approx(5888, abs=1)
    assert workload.facts["slowdown_in_the_log"]["mean"] == pytest.approx(14.6, abs=0.05)
    text = "".join(lines_of(records_of(workload)[0], "Eurora"))
    again = load({"type": "swf", "text": text, "gpus": "batch_fields"}, 1)
    for name, column in workload.jobs.columns.numbers.items():
        assert np.allclose(again.jobs.columns.numbers[name], column, rtol=1e-12), name
    for name, counts in workload.jobs.columns.counts.items():
        assert np.array_equal(again.jobs.columns.counts[name], counts), name
    assert again.jobs.columns.kinds == workload.jobs.columns.kinds


@pytest.mark.parametrize(
    ("name", "nodes", "cores", "gpus", "mics"),
    [
        ("eurora-mic-first-16gb", 64, 1024, 64, 64),
        ("eurora-gpu-first-16gb", 64, 1024, 64, 64),
        ("eurora-mic-first-32gb", 64, 1024, 64, 64),
        ("eurora-gpu-first-32gb", 64, 1024, 64, 64),
        ("kit-forhlr2", 1173, 24048, 84, 0),
        ("seth", 120, 240, 0, 0),
        ("lublin", 32, 256, 0, 0),
    ],
)
def test_the_systems_of_the_papers_are_cluster_files(
    name: str, nodes: int, cores: int, gpus: int, mics: int
) -> None:
    found = scenario_of(cluster_of(f"{name}.yaml", CLUSTERS)).nodes
    assert (len(found), sum(n.cores for n in found)) == (nodes, cores)
    assert sum(len(n.devices) for n in found) == gpus
    assert sum(dict(n.resources).get("mic", 0) for n in found) == mics
    if name.startswith("eurora"):
        first = name.split("-")[1]
        assert [bool(n.devices) for n in found] == [(first == "gpu") == (i < 32) for i in range(64)]


def test_the_kit_like_load_is_drawn_by_the_seed_and_as_short_as_the_log() -> None:
    one, same, other = (load({"type": "kit", "jobs": 5000}, seed) for seed in (1, 1, 2))
    assert one.jobs.columns.numbers["arrival_s"].tolist() == (
        same.jobs.columns.numbers["arrival_s"].tolist()
    )
    assert one.jobs.columns.kinds != other.jobs.columns.kinds
    assert one.facts["below_an_hour"] == pytest.approx(0.66, abs=0.02)
    assert one.facts["load_of_the_cores"] == pytest.approx(0.85, abs=0.05)
    numbers = one.jobs.columns.numbers
    assert (numbers["walltime_s"] >= numbers["remaining_steps"] / 1000.0).all()
    nodes = scenario_of(cluster_of("kit-forhlr2.yaml", CLUSTERS)).nodes
    whole = [job for job in one.jobs if job.gpus_min == 0]
    assert max(job.cores for job in whole) <= nodes[0].cores
    assert max(job.units for job in whole) == 64
