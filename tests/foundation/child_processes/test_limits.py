"""Limits that a child process sets itself: niceness of its session, and memory."""

import json
import os
import resource
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

from foundation.child_processes.child import ChildProcess, environment_without_secrets
from foundation.child_processes.limits import LEAST_BYTES, half_of_memory, memory_bytes

GIB = 1 << 30

REPORT = """
import json, os, pathlib, resource, sys
from foundation.child_processes.limits import set_up_child
{before}
set_up_child({arguments})
group = pathlib.Path("/proc/self/autogroup")
print(json.dumps({{
    "nice": os.nice(0),
    "session_nice": int(group.read_text().split()[-1]) if group.exists() else os.nice(0),
    "memory": resource.getrlimit(resource.RLIMIT_DATA),
    "first_to_go": pathlib.Path("/proc/self/oom_score_adj").read_text().strip(),
}}), flush=True)
"""


def set_up(arguments: str = "", before: str = "") -> dict[str, Any]:
    """Report of a child that called `set_up_child` with these arguments."""
    code = REPORT.format(arguments=arguments, before=before)
    with ChildProcess([sys.executable, "-c", code], environment_without_secrets()) as child:
        report: dict[str, Any] = json.loads(child.receive(inf))
    return report


def test_whole_session_of_a_nice_child_is_nice() -> None:
    report = set_up("nice=7")
    assert report["nice"] == report["session_nice"] == min(19, os.nice(0) + 7)


def test_session_of_a_child_is_as_nice_as_itself() -> None:
    report = set_up(before="os.nice(5)")
    assert report["nice"] == report["session_nice"] == min(19, os.nice(0) + 5)


def test_memory_limit_holds_for_child_and_grandchildren() -> None:
    report = set_up(f"memory_bytes={GIB}")
    assert report["memory"] == [GIB, GIB]
    assert report["first_to_go"] == "1000"


def test_lower_memory_limit_of_somebody_else_stays() -> None:
    before = f"resource.setrlimit(resource.RLIMIT_DATA, ({GIB}, {GIB}))"
    assert set_up(f"memory_bytes={2 * GIB}", before)["memory"] == [GIB, GIB]


def test_child_without_a_memory_limit_keeps_its_parents() -> None:
    assert set_up()["memory"] == list(resource.getrlimit(resource.RLIMIT_DATA))


def test_program_that_was_started_by_hand_stays_as_it_is() -> None:
    report = set_up(f"nice=7, memory_bytes={GIB}", "del os.environ['LOADMASTER_PARENT']")
    assert report["nice"] == os.nice(0)
    assert report["memory"] == list(resource.getrlimit(resource.RLIMIT_DATA))


def test_memory_is_the_containers_where_it_has_a_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine = memory_bytes(limit)
    limit.write_text(f"{GIB}\n")
    assert memory_bytes(limit) == GIB < machine
    limit.write_text("max\n")
    assert memory_bytes(limit) == machine


def test_half_of_a_small_memory_is_enough_for_solver_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("foundation.child_processes.limits.memory_bytes", lambda: GIB)
    assert half_of_memory() == LEAST_BYTES
