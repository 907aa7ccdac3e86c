"""Columns of squeue, and lines of `scontrol show job`."""

from typing import Any

import pytest

from loadmaster.slurm.programs.columns import FormatError
from loadmaster.slurm.programs.listing import (
    FORMAT,
    duration,
    folded,
    id_of,
    long_table,
    reason_of,
    state_of,
    table,
)
from loadmaster.slurm.programs.scontrol import job_lines


def row(**values: Any) -> dict[str, Any]:
    """A job that runs for 65 s on n1 and n2, with these values over it."""
    return {
        "number": 12, "array": None, "index": None, "at_once": None, "name": "train", "user": "ada",
        "cluster": "lab", "state": "running", "waiting": "", "failure": "", "nodes": ["n1", "n2"],
        "node_count": 2, "units": 2, "cores": 4.0, "memory_gb": 2.0, "gpus": 2, "priority": 0,
        "restarts": 0, "exit_code": None, "submitted_s": 1.0e9, "begin_s": None, "started_s": 1.0e9,
        "ended_s": None, "run_s": 65.0, "walltime_s": 3600.0, "folder": "/home/ada",
        "output": "out", "error_output": "err", "preemptible": False, **values,
    }  # fmt: skip


def test_squeue_prints_slurms_columns() -> None:
    lines = table([row()], FORMAT, heads=True)
    assert lines == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "                12       lab    train      ada  R       1:05      2 n[1-2]",
    ]


@pytest.mark.parametrize(
    ("values", "short", "reason"),
    [
        ({"state": "queued", "waiting": "no_capacity"}, "PD", "Resources"),
        ({"state": "queued", "waiting": "dependency"}, "PD", "Dependency"),
        ({"state": "queued", "waiting": "begins_later"}, "PD", "BeginTime"),
        ({"state": "queued", "waiting": "array_limit"}, "PD", "JobArrayTaskLimit"),
        ({"state": "held"}, "PD", "JobHeldUser"),
        ({"state": "starting"}, "CF", "None"),
        ({"state": "stopping"}, "CG", "None"),
        ({"state": "completed"}, "CD", "None"),
        ({"state": "cancelled"}, "CA", "None"),
        ({"state": "failed", "failure": "exit code 3"}, "F", "None"),
        ({"state": "failed", "failure": "its walltime was over"}, "TO", "None"),
    ],
)
def test_states_and_reasons_are_slurms(values: dict[str, Any], short: str, reason: str) -> None:
    found = row(**values)
    assert (state_of(found)[0], reason_of(found)) == (short, reason)


def test_formats_have_widths_and_sides() -> None:
    assert table([row()], "%i|%.6j|%6u|%T|%%", heads=False) == ["12| train|ada   |RUNNING|%"]
    assert table([row()], "%.3j", heads=False) == ["tra"]
    assert table([row()], "%l %L %C %Z", heads=False) == ["1:00:00 58:55 4 /home/ada"]
    with pytest.raises(FormatError, match="no %z here"):
        table([row()], "%z", heads=False)


def test_long_formats_name_columns() -> None:
    assert long_table([row()], "JobID:5,state,name:.8", heads=True) == [
        "JOBIDSTATE                   NAME",
        "12   RUNNING                train",
    ]
    with pytest.raises(FormatError, match="no column nothing here"):
        long_table([row()], "nothing", heads=False)


def test_waiting_elements_of_an_array_are_one_row() -> None:
    each = {"array": 7, "at_once": 2, "nodes": []}
    rows = [row(number=8 + i, index=i, state="queued", waiting="", **each) for i in (1, 2, 3, 5)]
    rows.append(row(number=20, index=6, state="running", **each))
    assert [id_of(found) for found in folded(rows)] == ["7_[1-3,5%2]", "7_6"]
    assert table(folded(rows), "%K", heads=False) == ["1-3,5", "6"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (65, "1:05"), (3723, "1:02:03"), (172_800, "2-00:00:00")],
)
def test_times_are_written_as_slurm_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_scontrol_shows_pairs_that_scripts_cut_out() -> None:
    pairs = dict(pair.split("=", 1) for line in job_lines(row()) for pair in line.split())
    wanted = {
        "JobId": "12", "JobName": "train", "JobState": "RUNNING", "NodeList": "n[1-2]",
        "RunTime": "00:01:05", "TimeLimit": "01:00:00", "NumNodes": "2", "BatchHost": "n1",
        "StdOut": "out", "ExitCode": "0:0", "Restarts": "0",
    }  # fmt: skip
    assert pairs.items() >= wanted.items()
    assert "ArrayTaskId" not in pairs
    element = " ".join(job_lines(row(array=7, index=3, exit_code=-9)))
    assert "ArrayJobId=7 ArrayTaskId=3" in element
    assert "ExitCode=0:9" in element


def test_what_a_job_waits_for_is_written_as_slurm_does() -> None:
    waits = row(state="queued", dependencies=["afterok:7", "after:8_2+5"])
    assert table([waits], "%E", heads=False) == ["afterok:7(unfulfilled),after:8_2+5(unfulfilled)"]
    either = row(state="queued", dependencies=["afterok:7?afterany:8"])
    assert table([either], "%E", heads=False) == ["afterok:7(unfulfilled)?afterany:8(unfulfilled)"]
    assert "Dependency=afterok:7(unfulfilled)?" in "\n".join(job_lines(either))
    assert table([row()], "%E", heads=False) == ["(null)"], "older servers do not tell"
