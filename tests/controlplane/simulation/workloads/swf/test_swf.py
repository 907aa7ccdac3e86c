import gzip
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controlplane.simulation.workloads import Workload, WorkloadError, load
from tests.controlplane.simulation.workloads.data import whole_file

GOOD = """\
; Version: 2.2
; a comment
1    0 10  100  4 100 -1  4  200 -1 1 3 1 -1 0 -1 -1 -1

2   60 -1  300 -1  -1 -1 16   -1 -1 1 4 1 -1 0 -1 -1 -1
"""
LINE = "{id} {submit} -1 {run} 4 -1 -1 4 -1 -1 1 -1 -1 -1 -1 -1 -1 -1"
UNIT = (
    "{id} 0 -1 100 -1 -1 -1 {processors} -1 -1 1 -1 -1 -1 -1 -1 -1 -1 {units} {cores} {gpus} {mics}"
    " 4194304 99 {kind} -1"
)


def an_swf(text: str, *, skip_bad: bool = False, seed: int = 1, **fields: Any) -> Workload:
    return load(
        {"type": "swf", "text": text, "speeds": {"V100": 1.0, "T4": 0.5}, **fields},
        seed,
        skip_bad=skip_bad,
    )


def a_line(number: int = 1, submit: object = 0, run: object = 10) -> str:
    return LINE.format(id=number, submit=submit, run=run) + "\n"


def a_unit_line(
    number: int,
    units: int = 2,
    cores: int = 8,
    gpus: int = 2,
    mics: int = 0,
    kind: int = 0,
    processors: int | None = None,
) -> str:
    asked = units * cores if processors is None else processors
    return (
        UNIT.format(
            id=number, units=units, cores=cores, gpus=gpus, mics=mics, kind=kind, processors=asked
        )
        + "\n"
    )


def test_a_job_has_its_arrival_its_run_time_and_a_gpu_for_every_processor() -> None:
    jobs = an_swf(GOOD).jobs
    assert [j.id for j in jobs] == ["1", "2"]
    assert jobs.columns.numbers["arrival_s"].tolist() == [0.0, 60.0]
    assert (
        jobs.columns.counts["gpus_min"].tolist()
        == jobs.columns.counts["gpus_max"].tolist()
        == [4, 16]
    )
    assert jobs[0].user == "user 3"


def test_a_requested_time_is_the_wall_time_and_where_there_is_none_the_run_time_is() -> None:
    assert an_swf(GOOD).jobs.columns.numbers["walltime_s"].tolist() == [200.0, 300.0]


def test_a_job_runs_as_long_as_in_the_trace_at_speed_one_and_twice_as_long_at_half_the_speed() -> (
    None
):
    workload = an_swf(GOOD)
    rates = {(t.gpu_type, t.gpus): t.steps_per_s for t in workload.kinds[0].throughputs}
    steps = workload.jobs[0].remaining_steps
    assert (steps / rates["V100", 4], steps / rates["T4", 4]) == (100.0, 200.0)


def test_processors_may_be_put_together_to_gpus() -> None:
    assert an_swf(GOOD, processors_per_gpu=8).jobs.columns.counts["gpus_min"].tolist() == [1, 2]
    assert an_swf(GOOD, gpus="one").jobs.columns.counts["gpus_min"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (a_line(run=-7), "the run time must not be negative, it is -7 s"),
        (a_line(run="nan"), "has a field that is not a finite number"),
        (a_line(run="inf"), "has a field that is not a finite number"),
        (a_line(run="ten"), "the run time is not a number: 'ten'"),
        (a_line(submit=-5), "the submit time must not be negative"),
        ("1 2 3\n", "has 3 fields, not 18"),
        (a_line() + a_line(), "job '1' is in line 1 already"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_is_wrong(line: str, problem: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        an_swf(line)
    last = line.count("\n")
    assert [(bad.line, problem in bad.problem) for bad in refused.value.bad_lines] == [(last, True)]
    assert f"line {last}: " in str(refused.value)


def test_bad_lines_may_be_skipped_and_are_told() -> None:
    workload = an_swf(GOOD + a_line(3, 70, -7) + "rubbish\n" + a_line(4, 80), skip_bad=True)
    assert [j.id for j in workload.jobs] == ["1", "2", "4"]
    assert [bad.line for bad in workload.skipped] == [6, 7]


def test_a_trace_without_a_good_line_is_refused_even_so() -> None:
    for text in ("", "; only a comment\n", a_line(run=-1)):
        with pytest.raises(WorkloadError):
            an_swf(text or "\n", skip_bad=True)


def test_a_long_list_of_bad_lines_is_counted_and_cut() -> None:
    with pytest.raises(WorkloadError, match="and 30 more") as refused:
        an_swf("".join(a_line(i, i, -7) for i in range(50)))
    assert len(refused.value.bad_lines) == 50


def test_a_run_time_of_zero_is_less_than_a_second() -> None:
    workload = an_swf(a_line(run=0))
    assert workload.jobs[0].remaining_steps == 1000.0
    assert workload.facts["run_times_raised_to_1_s"] == 1


def test_due_dates_and_weights_are_drawn_between_their_limits_by_the_seed() -> None:
    text = "".join(a_line(i, i, 100) for i in range(50))
    one, same, other = (
        an_swf(text, seed=s, due_factor=[1.5, 3.0], tardiness_weight=[0.1, 0.2]).jobs.columns
        for s in (1, 1, 2)
    )
    slack = one.numbers["due_s"] - one.numbers["arrival_s"]
    assert 150.0 <= slack.min() <= slack.max() <= 300.0
    assert np.array_equal(one.numbers["due_s"], same.numbers["due_s"])
    assert not np.array_equal(one.numbers["due_s"], other.numbers["due_s"])
    assert (
        0.1 <= one.numbers["tardiness_weight"].min() <= one.numbers["tardiness_weight"].max() <= 0.2
    )
    assert an_swf(text).jobs[0].due_s == inf


def test_the_extra_fields_say_what_all_units_need() -> None:
    text = a_unit_line(1, units=2, cores=8, gpus=2, mics=1, kind=2) + a_unit_line(2, gpus=0)
    workload = an_swf(text, gpus="fields")
    job = workload.jobs[0]
    assert len(workload.jobs) == 1
    assert (job.gpus_min, job.units, job.cores, job.kind, job.resources) == (
        4,
        1,
        16.0,
        "application 2",
        (("mic", 2.0),),
    )
    assert job.memory_gb == pytest.approx(8.589934592)
    assert workload.facts["jobs_without_gpu"] == 1
    assert an_swf(text, gpus="fields", without_gpus="one").jobs.columns.counts[
        "gpus_min"
    ].tolist() == [4, 1]


def test_batch_jobs_of_the_extra_fields_keep_their_units_with_and_without_gpus() -> None:
    text = a_unit_line(1, units=2, cores=8, gpus=2, mics=1) + a_unit_line(2, units=3, gpus=0)
    first, second = an_swf(text, gpus="batch_fields").jobs
    assert (first.batch, first.preemptible, first.units, first.cores) == (True, False, 2, 8.0)
    assert (first.gpus_min, first.gpus_max, first.resources) == (4, 4, (("mic", 1.0),))
    assert (second.units, second.gpus_min, second.gpus_max) == (3, 0, 0)


def test_processors_become_units_of_one_core_each() -> None:
    workload = an_swf(a_unit_line(1, units=2, cores=8), gpus="batch")
    (job,) = workload.jobs
    assert (job.units, job.cores, job.gpus_max) == (16, 1.0, 0)
    (kind,) = workload.kinds
    assert [(t.gpu_type, t.gpus) for t in kind.throughputs] == [("", 0)]


def test_units_that_are_not_the_processors_requested_contradict_themselves() -> None:
    with pytest.raises(
        WorkloadError, match="2 units of 8 cores are not the 17 processors requested"
    ):
        an_swf(a_unit_line(1, processors=17), gpus="fields")


def test_a_packed_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "t.swf.gz").write_bytes(gzip.compress(GOOD.encode()))
    assert (
        len(load({"type": "swf", "path": str(tmp_path / "t.swf.gz")}, 1, gpu_types=["V100"]).jobs)
        == 2
    )


@pytest.mark.parametrize(
    ("name", "jobs", "bad"),
    [("eurora-2014-4days", 5930, 0), ("hpc2n-seth-slice", 3145, 0), ("lublin_256", 10000, 0)],
)
def test_the_whole_traces_are_read(name: str, jobs: int, bad: int) -> None:
    workload = load(
        {"type": "swf", "path": str(whole_file(f"hpc/{name}.swf"))},
        1,
        skip_bad=True,
        gpu_types=["V100"],
    )
    assert (len(workload.jobs), len(workload.skipped)) == (jobs, bad)
