"""Lines of sacct: jobs and their scripts, in columns or with separators."""

from typing import Any

import pytest

from loadmaster.slurm.programs.columns import FormatError
from loadmaster.slurm.programs.sacct import WIDTHS, lines_of
from tests.loadmaster.slurm.programs.test_listing import row as listed_row


def row(**values: Any) -> dict[str, Any]:
    """A job that ran for 65 s on n1 and n2 and completed, with these values over it."""
    return {
        **listed_row(), "state": "completed", "team": "research", "nodes": [],
        "ran_on": ["n1", "n2"], "exit_code": 0, "blame": "", "ended_s": 1.0e9 + 65,
        "memory_gb": 2.147483648, "dependencies": [], "peak_memory_gb": None, **values,
    }  # fmt: skip


def plain(*rows: dict[str, Any], fields: str, **options: str) -> list[str]:
    """Lines with separators, of jobs alone and without heads."""
    usual = {"format": fields, "noheader": "", "parsable2": "", "allocations": ""}
    return lines_of(rows, {**usual, **options})


def test_jobs_and_their_scripts_are_in_slurms_columns() -> None:
    assert lines_of([row()], {}) == [
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode ",
        "------------ ---------- ---------- ---------- ---------- ---------- -------- ",
        "12                train        lab   research          4  COMPLETED      0:0 ",
        "12.batch          batch              research          4  COMPLETED      0:0 ",
    ]


def test_a_text_that_is_cut_ends_with_plus() -> None:
    long = row(name="a-very-long-name", state="failed", blame="oom")
    text = lines_of([long], {"format": "jobname,state", "noheader": "", "allocations": ""})
    assert text == ["a-very-lo+ OUT_OF_ME+ "]
    wide = lines_of([long], {"format": "state%-15,jobname%20", "noheader": "", "allocations": ""})
    assert wide == ["OUT_OF_MEMORY       a-very-long-name "]


@pytest.mark.parametrize(
    ("values", "state", "code"),
    [
        ({"state": "queued", "started_s": None, "exit_code": None}, "PENDING", "0:0"),
        ({"state": "held", "started_s": None, "exit_code": None}, "PENDING", "0:0"),
        ({"state": "starting", "exit_code": None}, "RUNNING", "0:0"),
        ({"state": "cancelling", "exit_code": None}, "RUNNING", "0:0"),
        ({"state": "completed"}, "COMPLETED", "0:0"),
        ({"state": "cancelled", "exit_code": -15}, "CANCELLED", "0:15"),
        ({"state": "failed", "exit_code": 3, "blame": "user"}, "FAILED", "3:0"),
        ({"state": "failed", "exit_code": -9, "blame": "oom"}, "OUT_OF_MEMORY", "0:9"),
        ({"state": "failed", "blame": "node"}, "NODE_FAIL", "0:0"),
        ({"state": "failed", "failure": "its walltime was over"}, "TIMEOUT", "0:0"),
        ({"state": "failed", "failure": "its deadline was over"}, "DEADLINE", "0:0"),
    ],
)
def test_states_and_codes_are_slurms(values: dict[str, Any], state: str, code: str) -> None:
    assert plain(row(**values), fields="state,exitcode") == [f"{state}|{code}"]


def test_amounts_and_times_are_written_as_slurm_does() -> None:
    fields = "JobIDRaw,Elapsed,ElapsedRaw,CPUTime,CPUTimeRAW,Timelimit,TimelimitRaw,ReqMem,NodeList"
    assert plain(row(), fields=fields) == ["12|00:01:05|65|00:04:20|260|01:00:00|60|2G|n[1-2]"]
    assert plain(row(), fields="AllocTRES") == ["billing=4,cpu=4,gres/gpu=2,mem=2G,node=2"]


def test_a_waiting_job_has_nothing_yet() -> None:
    waiting = row(state="queued", started_s=None, ended_s=None, ran_on=[], run_s=0.0)
    fields = "AllocCPUS,ReqCPUS,AllocNodes,NNodes,AllocTRES,Start,End,NodeList,Elapsed"
    assert plain(waiting, fields=fields) == ["0|4|0|2||Unknown|Unknown|None assigned|00:00:00"]
    assert len(lines_of([waiting], {"noheader": ""})) == 1, "it has no script that ran"


def test_the_memory_of_a_script_is_on_its_own_line() -> None:
    measured = row(peak_memory_gb=1.048576)
    found = lines_of([measured], {"format": "jobid,maxrss", "noheader": "", "parsable2": ""})
    assert found == ["12|", "12.batch|1024000K"]


def test_a_script_may_be_asked_for_alone() -> None:
    options = {"format": "jobid", "noheader": "", "parsable2": ""}
    assert lines_of([row()], options, ["12.batch"]) == ["12.batch"]
    assert lines_of([row()], options, ["12", "12.batch"]) == ["12", "12.batch"]


def test_separators_may_end_a_line_and_be_chosen() -> None:
    options = {"format": "jobid,state", "allocations": ""}
    assert lines_of([row()], {**options, "parsable": ""}) == ["JobID|State|", "12|COMPLETED|"]
    chosen = {**options, "parsable2": "", "delimiter": ";"}
    assert lines_of([row()], chosen) == ["JobID;State", "12;COMPLETED"]


def test_elements_have_the_number_of_their_array() -> None:
    element = row(array=7, index=3, number=9)
    assert plain(element, fields="jobid,jobidraw") == ["7_3|9"]


def test_every_field_has_a_text() -> None:
    for name in WIDTHS:
        assert len(plain(row(), fields=name)) == 1


def test_the_variable_for_formats_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCT_FORMAT", "jobid,user")
    assert lines_of([row()], {"noheader": "", "parsable2": "", "allocations": ""}) == ["12|ada"]
    assert plain(row(), fields="state") == ["COMPLETED"]


def test_an_unknown_field_is_named_with_those_that_there_are() -> None:
    with pytest.raises(FormatError, match="sacct has no field nothing here; there are Account"):
        plain(row(), fields="jobid,nothing")
