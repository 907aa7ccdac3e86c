"""Philly's CSV, our own, and JSON lists of jobs."""

from math import inf
from typing import Any

import pytest

from controlplane.simulation.workloads import Workload, WorkloadError, load
from policies.contract.snapshot import RankPlacement
from policies.contract.snapshot_json import to_json
from tests.builders_policies import a_job, a_kind, a_snapshot, on
from tests.controlplane.simulation.workloads.data import whole_file

# Three lines in the format of msr-fiddle/philly-traces (CC-BY-4.0); the numbers are made up.
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:00:10,60.0,2,120.0,a
2017-10-09 07:00:00,30.0,1,30.0,b
2017-10-09 07:01:00,45.0,1,45.0,a
"""


def read(of: str, text: str, *, skip_bad: bool = False, **fields: Any) -> Workload:
    return load({"type": of, "text": text, **fields}, 1, skip_bad=skip_bad, gpu_types=["V100"])


def test_a_philly_trace_is_put_in_order_of_arrival() -> None:
    workload = read("philly", PHILLY)
    assert workload.jobs.columns.numbers["arrival_s"].tolist() == [0.0, 10.0, 60.0]
    assert [(j.team, j.gpus_min) for j in workload.jobs] == [("b", 1), ("a", 2), ("a", 1)]
    assert workload.facts["first_arrival_s"] == 1_507_532_400.0


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2017-13-09 07:00:00,1,1,1,a", "is not a time such as"),
        (",1,1,1,a", "is not a time such as"),
        ("2017-10-09 07:00:00,-1,1,-1,a", "the run time must not be negative"),
        ("2017-10-09 07:00:00,10,2,10,a", "a GPU time of 10 s is not duration times GPUs, 20 s"),
        ("2017-10-09 07:00:00,10,0,0,a", "a job needs 1 to"),
        ("2017-10-09 07:00:00,nan,1,1,a", "duration must be a number, not 'nan'"),
        ("2017-10-09 07:00:00,10", "has 2 fields, not 5"),
    ],
)
def test_a_bad_line_of_a_philly_trace_is_refused_and_may_be_skipped(
    line: str, problem: str
) -> None:
    with pytest.raises(WorkloadError) as refused:
        read("philly", PHILLY + line + "\n")
    assert problem in str(refused.value)
    assert [bad.line for bad in refused.value.bad_lines] == [5]
    assert len(read("philly", PHILLY + line + "\n", skip_bad=True).jobs) == 3


def test_the_whole_philly_trace_is_read() -> None:
    workload = load(
        {"type": "philly", "path": str(whole_file("philly/philly.csv"))}, 1, gpu_types=["V100"]
    )
    assert len(workload.jobs) == 82_247
    assert not workload.skipped


def test_our_own_csv_needs_two_columns_and_may_have_more() -> None:
    assert [j.gpus_min for j in read("csv", "arrival_s,run_s\n0,5\n1,5\n").jobs] == [1, 1]
    header = "id,arrival_s,run_s,gpus,due_s,tardiness_weight,priority,team,allowed_types,kind"
    text = f"{header}\na,5,10,2,25,0.5,3,x,V100|T4,k\nb,6,10,,,,,,,\n"
    first, second = read("csv", text).jobs
    assert (first.id, first.due_s, first.tardiness_weight, first.priority, first.team) == (
        "a",
        20.0,
        0.5,
        3,
        "x",
    )
    assert (first.allowed_types, first.kind, first.gpus_min) == (("T4", "V100"), "k", 2)
    assert (second.due_s, second.tardiness_weight, second.allowed_types, second.kind) == (
        inf,
        0.0,
        (),
        "job",
    )


def test_due_dates_keep_their_distance_when_arrivals_are_squeezed() -> None:
    jobs = read("csv", "arrival_s,run_s,due_s\n0,5,50\n100,5,150\n", time_factor=0.5).jobs
    assert [(j.arrival_s, j.due_s) for j in jobs] == [(0.0, 50.0), (50.0, 100.0)]


@pytest.mark.parametrize("delimiter", [";;", '"', "\r", "\n"])
def test_a_delimiter_that_cannot_part_fields_is_refused(delimiter: str) -> None:
    with pytest.raises(WorkloadError, match="delimiter: must be one character, no quote"):
        read("csv", "arrival_s,run_s\n1,1\n", delimiter=delimiter)


def test_columns_of_a_foreign_file_are_renamed_or_ignored() -> None:
    text = "job_id,num_gpu,submit_time,iterations,duration\n0,8,30,133,147\n"
    columns = {"id": "job_id", "gpus": "num_gpu", "arrival_s": "submit_time", "run_s": "duration"}
    job = read("csv", text, columns=columns, ignore=["iterations"]).jobs[0]
    assert (job.id, job.gpus_min, job.remaining_steps) == ("0", 8, 147_000.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("arrival_s\n1\n", "columns missing: run_s; the file has: arrival_s"),
        ("arrival_s,run_s,colour\n1,1,red\n", "no such column: colour; known are: id, arrival_s"),
        ("arrival_s,run_s,run_s\n1,1,1\n", "columns twice: run_s"),
        ("arrival_s,run_s\n5,1\n4,1\n", "line 3: arrives at 4 s, after a line at 5 s"),
        ("arrival_s,run_s\n5,\n", "line 2: run_s is empty"),
        ("arrival_s,run_s,due_s\n5,1,4\n", "is due at 4 s, before it arrives at 5 s"),
        ("arrival_s,run_s,priority\n5,1,0.5\n", "priority must be a whole number"),
        ("arrival_s,run_s,weight\n5,1,-1\n", "weight must not be negative"),
        ("arrival_s,run_s,gpus\n5,1,1e300\n", "a job needs 1 to"),
        ("", "columns missing"),
    ],
)
def test_what_is_wrong_with_a_csv_is_said_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        read("csv", text or "\n")
    assert problem in str(refused.value)


def test_lines_that_are_not_in_order_may_be_sorted() -> None:
    assert [j.id for j in read("csv", "id,arrival_s,run_s\na,5,1\nb,4,1\n", sort=True).jobs] == [
        "b",
        "a",
    ]


def listed(*jobs: Any, **fields: Any) -> dict[str, Any]:
    form = to_json(a_snapshot(jobs=list(jobs), kinds=[a_kind("k")]))
    return {"type": "jobs", "jobs": form["jobs"], "kinds": form["kinds"], **fields}


def test_a_queue_is_taken_as_jobs_that_have_not_begun() -> None:
    spec = listed(
        a_job("late", kind="k", arrival_s=200.0, remaining_steps=5.0, total_steps=9.0, due_s=300.0),
        a_job("early", kind="k", arrival_s=100.0, remaining_steps=4.0),
    )
    jobs = load(spec, 1).jobs
    assert [(j.id, j.arrival_s, j.remaining_steps, j.running) for j in jobs] == [
        ("early", 0.0, 4.0, ()),
        ("late", 100.0, 5.0, ()),
    ]
    assert jobs[1].due_s == 200.0
    assert load({**spec, "whole": True}, 1).jobs[1].remaining_steps == 9.0


def test_a_queue_may_be_seated_where_it_runs() -> None:
    running, later = (
        a_job("a", kind="k", running=on("n1", "gpu1")),
        a_job("b", kind="k", arrival_s=5.0, running=on("n1", "gpu0")),
    )
    spec = listed(running, later, a_job("c", kind="k"))
    seated = load({**spec, "seated": True, "note": "as it was"}, 1)
    assert [(p.job, p.ranks) for p in seated.seats] == [("a", (RankPlacement("n1", ("gpu1",)),))]
    assert [job.running for job in seated.jobs] == [(), (), ()]
    assert seated.facts["note"] == "as it was"
    assert load(spec, 1).seats == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "unknown"}, "kind: 'unknown' is not among the kinds"),
        ({"gpus_max": 0}, "gpus_max: must be >= gpus_min"),
        ({"gpus_min": 2, "gpus_max": 1}, r"gpus_max: must be >= gpus_min \(2\)"),
        ({"remaining_steps": -1}, "remaining_steps: must be >= 0"),
        ({"remaining_steps": 0, "total_steps": 0}, "there is nothing left to do"),
        ({"remaining_steps": 9, "total_steps": 5}, "remaining_steps: must be <= total_steps"),
        ({"arrival_s": float("nan")}, "arrival_s: must be a finite number, not nan"),
        ({"colour": "red"}, "colour: no such field"),
    ],
)
def test_a_job_of_a_list_that_cannot_be_is_refused(change: dict[str, Any], problem: str) -> None:
    spec = listed(a_job("a", kind="k"), a_job("b", kind="k"))
    spec["jobs"][1].update(change)
    with pytest.raises(WorkloadError, match=problem):
        load(spec, 1)


def test_bad_items_of_a_list_may_be_skipped() -> None:
    spec = listed(a_job("a", kind="k"), a_job("b", kind="k"))
    spec["jobs"][1]["kind"] = "unknown"
    workload = load(spec, 1, skip_bad=True)
    assert ([j.id for j in workload.jobs], [bad.line for bad in workload.skipped]) == (["a"], [2])
