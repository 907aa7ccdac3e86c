import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.workloads import Workload, WorkloadError, load
from tests.controlplane.simulation.workloads.data import whole_file

A, B = "ResNet-18 (batch size 64)", "LM (batch size 5)"
TABLES = {
    "v100": {
        f"('{A}', 1)": {"null": 20.0, f"('{A}', 1)": [12.0, 12.0], f"('{B}', 1)": [15.0, 40.0]},
        f"('{A}', 2)": {"null": 36.0},
        f"('{B}', 1)": {"null": 50.0},
    },
    "v100_unconsolidated": {f"('{A}', 2)": {"null": 30.0}},
    "k80": {f"('{A}', 1)": {"null": 4.0}, f"('{B}', 1)": {"null": 0.0}},
}
STREAM = "job_id,unit_arrival,job_type,scale_factor,total_steps,v100_duration_s\n"


def a_trace_line(
    kind: str = A,
    steps: object = 1000,
    gpus: object = 1,
    slo: object = -1,
    arrival: object = 0,
    weight: object = 1,
) -> str:
    fields = (kind, "python3 main.py", "folder", "--steps", 1, steps, gpus, weight, slo, arrival)
    return "\t".join(str(f) for f in fields) + "\n"


@pytest.fixture
def tables(tmp_path: Path) -> str:
    (tmp_path / "throughputs.json").write_text(json.dumps(TABLES))
    return str(tmp_path / "throughputs.json")


def a_gavel(text: str, tables: str, *, skip_bad: bool = False, **fields: Any) -> Workload:
    return load(
        {"type": "gavel", "text": text, "throughputs": tables, **fields}, 1, skip_bad=skip_bad
    )


def test_the_tables_may_be_given_as_text(tables: str) -> None:
    spec = {"type": "gavel", "text": a_trace_line(), "tables": Path(tables).read_text()}
    assert load(spec, 1).kinds == a_gavel(a_trace_line(), tables).kinds
    with pytest.raises(WorkloadError, match="give either the path"):
        load({**spec, "throughputs": tables}, 1)


def test_kinds_know_each_type_and_count_together_and_spread(tables: str) -> None:
    kind = a_gavel(a_trace_line(), tables).kinds[0]
    assert {(t.gpu_type, t.gpus, t.spread, t.steps_per_s) for t in kind.throughputs} == {
        ("V100", 1, False, 20.0), ("V100", 2, False, 36.0), ("V100", 2, True, 30.0),
        ("K80", 1, False, 4.0),
    }  # fmt: skip


def test_kinds_know_how_fast_pairs_are_that_share_a_gpu(tables: str) -> None:
    pairs = a_gavel(a_trace_line(), tables).kinds[0].pairs
    assert [(p.other, p.gpu_type, p.steps_per_s, p.other_steps_per_s) for p in pairs] == [
        (A, "V100", 12.0, 12.0),
        (B, "V100", 15.0, 40.0),
    ]
    assert a_gavel(a_trace_line(), tables, pairs=False).kinds[0].pairs == ()


def test_a_trace_line_is_a_job_with_steps_weight_and_due_date(tables: str) -> None:
    job = a_gavel(a_trace_line(steps=1000, gpus=2, slo=2, weight=3), tables).jobs[0]
    assert (job.kind, job.remaining_steps, job.gpus_min, job.gpus_max, job.weight) == (
        A,
        1000.0,
        2,
        2,
        3.0,
    )
    assert job.due_s == pytest.approx(2 * 1000 / 36.0)


def test_a_streams_arrivals_are_stretched_by_the_gap(tables: str) -> None:
    text = STREAM + f"0,0.0,{A},1,1000,50\n1,1.5,{B},1,100,2\n"
    jobs = a_gavel(text, tables, gap_s=900).jobs
    assert jobs.columns.numbers["arrival_s"].tolist() == [0.0, 1350.0]
    assert [j.kind for j in jobs] == [A, B]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (a_trace_line(kind="unheard of"), "have no 'unheard of' on 1 GPUs"),
        (a_trace_line(gpus=4), "have no 'ResNet-18 (batch size 64)' on 4 GPUs"),
        (a_trace_line(gpus=1.5), "whole ones, not 1.5"),
        (a_trace_line(steps=-5), "more than 0 steps, not -5"),
        (a_trace_line(steps="nan"), "the total steps is not a finite number"),
        (a_trace_line(arrival=-1), "the arrival must not be negative"),
        (a_trace_line(weight=-1), "the weight must not be negative"),
        (
            "a\tb\n",
            "has 2 fields between tabs; Gavel's traces have 6, 7, 9 or 10, Shockwave's 11 or 12",
        ),
        (a_trace_line(slo=0), "the SLO must be above 0 and at most 1e+06, or -1 for none, not 0"),
        (
            a_trace_line(slo=1e300),
            "the SLO must be above 0 and at most 1e+06, or -1 for none, not 1e+300",
        ),
        (a_trace_line(arrival=9) + a_trace_line(arrival=8), "arrives at 8 s, after"),
        (STREAM + f"0,0,{A},1,1000,77\n", "takes 50 s on V100s by the throughput tables, not 77 s"),
    ],
)
def test_a_bad_line_is_refused_and_may_be_skipped(line: str, problem: str, tables: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        a_gavel(line, tables)
    assert problem in str(refused.value)
    assert [bad.line for bad in refused.value.bad_lines] == [line.count("\n")]
    good = f"9,50,{A},1,1000,50\n" if line.startswith("job_id") else a_trace_line(arrival=50)
    assert len(a_gavel(line + good, tables, skip_bad=True).skipped) == 1


OLDER = {
    6: (A, "python3 main.py", "--steps", 1000, 7, 2),
    7: (A, "cd %s && python3 main.py", "--steps", 1, 1000, 7, 2),
    9: (A, "cd %s && python3 main.py", "--steps", 1, 1000, 2, 3, 1.5, 7),
    10: (A, "python3 main.py", "folder", "--steps", 1, 1000, 2, 3, 1.5, 7),
    11: (A, "python3 main.py", "folder", "--steps", 1, 1000, 2, "static", 3, 1.5, 7),
    12: (A, "python3 main.py", "folder", "--steps", 1, 1000, 2, "static", 3, 1.5, 28, 7),
}
"""A line of each number of columns: 1000 steps on 2 GPUs (27.8 s on V100s), arriving after 7 s,
weight 3, SLO 1.5.
"""


def as_line(*fields: object) -> str:
    return "\t".join(map(str, fields)) + "\n"


@pytest.mark.parametrize("columns", OLDER)
def test_the_number_of_columns_says_which_they_are(columns: int, tables: str) -> None:
    earlier = as_line(*("0" if field == 7 else field for field in OLDER[columns]))
    job = a_gavel(earlier + as_line(*OLDER[columns]), tables).jobs[1]
    assert (job.kind, job.total_steps, job.gpus_min, job.arrival_s) == (A, 1000.0, 2, 7.0)
    assert job.weight == (1.0 if columns < 9 else 3.0)
    assert job.due_s == (float("inf") if columns < 9 else pytest.approx(7 + 1.5 * 1000 / 36))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            as_line(*OLDER[12]) + as_line(*OLDER[10]),
            "line 2: has 10 fields between tabs, not 12 like the lines above it",
        ),
        (
            as_line(A, "python3 main.py", "folder", "--steps", 1, 1000, 2, 3, 7),
            (
                "line 1: needs data must be 0 or 1, not '--steps'; 9 columns are: job type,"
                " command, steps argument, needs data, total steps, scale factor, weight, SLO,"
                " arrival"
            ),
        ),
        (
            as_line(*(("gns" if f == "static" else f) for f in OLDER[12])),
            (
                "line 1: its batch size changes as it trains (gns), which is not simulated; with"
                " `as_static: true` it keeps the first"
            ),
        ),
        (
            as_line(*(("fast" if f == "static" else f) for f in OLDER[11])),
            "line 1: the mode must be one of static, accordion, gns, not 'fast'",
        ),
        (
            as_line(*((99 if f == 28 else f) for f in OLDER[12])),
            (
                "line 1: takes 27.7778 s on V100s by the throughput tables, not 99 s; give the"
                " trace's own tables"
            ),
        ),
        (
            as_line(*OLDER[10]).replace("\t2\t3", "\t4\t3"),
            "line 1: it has an SLO, but the throughput tables do not know it on V100s",
        ),
    ],
)
def test_a_line_whose_columns_are_others_is_told_what_they_should_be(
    text: str, problem: str, tables: str
) -> None:
    with pytest.raises(WorkloadError) as refused:
        a_gavel(text, tables)
    assert problem in str(refused.value)


def test_jobs_whose_batch_size_changes_keep_their_first_one_where_that_is_wanted(
    tables: str,
) -> None:
    text = as_line(*OLDER[12]) + as_line(
        *(("accordion" if f == "static" else f) for f in OLDER[12])
    )
    workload = a_gavel(text, tables, as_static=True)
    assert len(workload.jobs) == 2
    assert workload.facts["batch_sizes_kept_though_they_change"] == 1


def test_jobs_may_share_where_policies_are_told_how_pairs_do(tables: str) -> None:
    assert [
        a_gavel(a_trace_line(), tables, pairs=pairs).jobs[0].may_share for pairs in (True, False)
    ] == [True, False]


def test_tables_that_are_none_of_gavels_are_refused(tmp_path: Path) -> None:
    for text in (
        "[]",
        '{"v100": {"x": {"null": 1}}}',
        '{"v100": {"(\'a\', 1)": {"null": -1}}}',
        "no json",
    ):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(WorkloadError, match="is no table of Gavel's"):
            a_gavel(a_trace_line(), str(tmp_path / "t.json"))


WHOLE = {
    "artifact_evaluation.trace": 15, "max_min_fairness.trace": 96, "minimize_makespan.trace": 100,
    "small_test.trace": 20,
    "gavel_stream_multi_seed0.csv": 8000, "gavel_stream_single_seed0.csv": 8000,
}  # fmt: skip


READ = [(name, "simulation") for name in WHOLE] + [
    (name, "physical_cluster") for name in WHOLE if not name.endswith("csv")
]
"""The streams were made with the tables for simulations."""


@pytest.mark.parametrize(("name", "tables"), READ)
def test_whole_traces_and_streams_are_read(name: str, tables: str) -> None:
    of = str(whole_file(f"gavel/{tables}_throughputs.json"))
    options = {"path": str(whole_file(f"gavel/{name}")), "throughputs": of, "gap_s": 900}
    workload = load({"type": "gavel", **options}, 1)
    assert len(workload.jobs) == WHOLE[name]
    assert {k.id for k in workload.kinds} == set(workload.jobs.columns.kinds)
