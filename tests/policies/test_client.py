"""The solver process: warm, killed when it is late, started again, and gone with its parent."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policies.contract.policy import PolicyParameterError, SolverFailedError, UnknownPolicyError
from policies.contract.snapshot import Snapshot
from policies.host.client import SolverProcess
from policies.host.registry import make
from tests.builders_policies import a_job, a_snapshot

SNAPSHOT = a_snapshot(jobs=[a_job("a"), a_job("b", due_s=1100.0, tardiness_weight=1.0)])


@pytest.fixture(scope="module")
def solver() -> Iterator[SolverProcess]:
    with SolverProcess(timeout_s=30.0) as process:
        yield process


def a_script(folder: Path, text: str) -> list[str]:
    """A child that says it is ready and then does as the text says with each `line`."""
    path = folder / "child.py"
    start = "import os, sys, time\nprint('{\"ready\": true}', flush=True)\nfor line in sys.stdin:\n"
    path.write_text(start + textwrap.indent(text, "    ") + "\n", encoding="utf-8")
    return [sys.executable, str(path)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        not Path(f"/proc/{pid}/stat").exists()
        or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    )


def eventually(holds: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("policy", ["randomized_greedy", "edf"])
def test_the_process_decides_as_the_policy_does(solver: SolverProcess, policy: str) -> None:
    assert solver.solve(SNAPSHOT, policy, {}) == make(policy)(SNAPSHOT)


def test_one_process_answers_many_requests(solver: SolverProcess) -> None:
    solver.solve(SNAPSHOT, "fifo")
    first = solver.pid
    solver.solve(SNAPSHOT, "fifo")
    assert first is not None
    assert solver.pid == first


@pytest.mark.parametrize("lang", ["C", "en_US.ISO-8859-1"])
def test_names_of_any_alphabet_and_with_ends_of_lines_go_through(
    lang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", lang)
    snapshot = a_snapshot(jobs=[a_job("größe\u2028模型\r\n\x85", name="\u2029🚂")])
    with SolverProcess(timeout_s=30.0) as process:
        assert process.solve(snapshot, "fifo") == make("fifo")(snapshot)


def test_errors_of_a_policy_are_its_own_and_the_process_goes_on(solver: SolverProcess) -> None:
    with pytest.raises(UnknownPolicyError, match="'lifo': no such policy"):
        solver.solve(SNAPSHOT, "lifo")
    with pytest.raises(PolicyParameterError, match="iterations: must be >= 0"):
        solver.solve(SNAPSHOT, "randomized_greedy", {"iterations": -1})
    assert solver.solve(SNAPSHOT, "fifo").policy == "fifo"


def test_threads_take_turns(solver: SolverProcess) -> None:
    plans: list[str] = []
    names = ["fifo", "edf", "priority", "randomized_greedy"] * 3
    threads = [
        threading.Thread(target=lambda n=name: plans.append(solver.solve(SNAPSHOT, n).policy))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(plans) == sorted(names)


def test_a_thread_that_ends_does_not_take_the_process_with_it() -> None:
    with SolverProcess(timeout_s=30.0) as process:
        thread = threading.Thread(target=lambda: process.solve(SNAPSHOT, "fifo"))
        thread.start()
        thread.join()
        first = process.pid
        assert process.solve(SNAPSHOT, "fifo").policy == "fifo"
        assert process.pid == first


def test_a_crashed_process_is_an_error_once_and_then_replaced(solver: SolverProcess) -> None:
    solver.solve(SNAPSHOT, "fifo")
    assert solver.pid is not None
    os.kill(solver.pid, signal.SIGKILL)
    eventually(lambda: solver.pid is None, "the process still runs")
    assert solver.solve(SNAPSHOT, "fifo").policy == "fifo"


def test_a_process_that_dies_over_a_request_is_a_failed_solver(tmp_path: Path) -> None:
    command = a_script(tmp_path, "os._exit(3)")
    with (
        SolverProcess(5.0, command) as process,
        pytest.raises(SolverFailedError, match="without an answer"),
    ):
        process.solve(SNAPSHOT, "fifo")


def test_an_answer_that_is_no_plan_is_a_failed_solver(tmp_path: Path) -> None:
    command = a_script(tmp_path, "print('{\"plan\": {}}', flush=True)")
    with (
        SolverProcess(5.0, command) as process,
        pytest.raises(SolverFailedError, match="does not have the documented form"),
    ):
        process.solve(SNAPSHOT, "fifo")


def test_a_command_that_does_not_exist_is_a_failed_solver() -> None:
    with (
        SolverProcess(5.0, ["/no/such/program"]) as process,
        pytest.raises(SolverFailedError, match="No such file"),
    ):
        process.solve(SNAPSHOT, "fifo")


def test_a_process_that_takes_too_long_is_killed_with_all_its_children(tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))"
    text = f"import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n{note}\ntime.sleep(600)"
    process = SolverProcess(2.0, a_script(tmp_path, text))
    with pytest.raises(SolverFailedError, match="took more than 2 s"):
        process.solve(SNAPSHOT, "fifo")
    assert process.pid is None
    grandchild = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_alive(grandchild), "its child lives on")


def test_secrets_of_the_environment_are_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    text = f"open({str(tmp_path / 'env')!r}, 'w').write(' '.join(os.environ))\nos._exit(0)"
    with SolverProcess(5.0, a_script(tmp_path, text)) as process, pytest.raises(SolverFailedError):
        process.solve(SNAPSHOT, "fifo")
    seen = (tmp_path / "env").read_text().split()
    assert "PATH" in seen
    assert "DATABASE_URL" not in seen


PARENT = """
import sys, os
sys.path.insert(0, sys.argv[1])
from policies.host.client import SolverProcess
from tests.builders_policies import a_job, a_snapshot
solver = SolverProcess(30.0)
solver.solve(a_snapshot(jobs=[a_job("a")]), "fifo")
print(solver.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_process_does_not_outlive_a_parent_that_is_killed() -> None:
    root = str(Path(__file__).resolve().parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", PARENT, root], capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    pid = int(ran.stdout)
    eventually(lambda: not is_alive(pid), "the solver outlived its parent")


def test_a_fork_leaves_the_parents_process_alone(
    solver: SolverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver.solve(SNAPSHOT, "fifo")
    before = solver.pid
    child = SolverProcess(30.0)
    vars(child).update({**vars(solver), "_owner": -1})
    with child:
        assert child.solve(SNAPSHOT, "fifo").policy == "fifo"
        assert child.pid != before
    assert solver.pid == before


def a_large_snapshot() -> Snapshot:
    return a_snapshot(jobs=[a_job(f"j{i}", name="x" * 100) for i in range(3000)])


def test_a_request_larger_than_a_pipe_goes_through(solver: SolverProcess) -> None:
    assert len(solver.solve(a_large_snapshot(), "fifo").waiting) == 2997


def test_a_process_started_beforehand_warms_up_meanwhile_and_answers_the_first_request() -> None:
    with SolverProcess(timeout_s=30.0) as solver:
        solver.start()
        pid = solver.pid
        assert pid is not None
        solver.start()
        assert solver.solve(SNAPSHOT, "edf") == make("edf")(SNAPSHOT)
        assert solver.pid == pid
        solver.await_ready()
        assert solver.pid == pid, "it is ready already"
    with SolverProcess(
        timeout_s=5.0, command=[sys.executable, "-c", "raise SystemExit(3)"]
    ) as broken:
        broken.start()
        with pytest.raises(SolverFailedError, match="ended without an answer"):
            broken.solve(SNAPSHOT, "edf")


def test_who_waits_for_a_process_to_warm_up_can_be_answered_at_once_then() -> None:
    slow = "import sys, time; time.sleep(0.2); print('{}', flush=True); sys.stdin.readline()"
    with SolverProcess(timeout_s=30.0, command=[sys.executable, "-c", slow]) as solver:
        solver.await_ready()
        assert solver._is_ready
        assert solver.pid is not None
    with SolverProcess(
        timeout_s=5.0, command=[sys.executable, "-c", "raise SystemExit(3)"]
    ) as broken:
        with pytest.raises(SolverFailedError, match="ended without an answer"):
            broken.await_ready()
        assert broken.pid is None
