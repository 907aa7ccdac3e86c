"""Live rounds are solved in a child process."""

from collections.abc import Iterator

import pytest

from controlplane.loop.live import solver
from controlplane.loop.live.solver import solve_here, solve_in_child
from policies.contract.policy import UnknownPolicyError
from tests.builders_policies import a_job, a_snapshot


@pytest.fixture
def _child() -> Iterator[None]:
    yield
    solver.kept_solver("SOLVER_TIMEOUT_S").close()
    solver.kept_solver.cache_clear()


@pytest.mark.usefixtures("_child")
def test_the_child_decides_as_this_process_would_and_stays_for_the_next_round() -> None:
    snapshot = a_snapshot(jobs=[a_job("a"), a_job("b")])
    assert solve_in_child("fifo", {}, snapshot) == solve_here("fifo", {}, snapshot)
    pid = solver.kept_solver("SOLVER_TIMEOUT_S").pid
    with pytest.raises(UnknownPolicyError, match="nobody"):
        solve_in_child("nobody", {}, snapshot)
    assert solve_in_child("edf", {}, snapshot).policy == "edf"
    assert solver.kept_solver("SOLVER_TIMEOUT_S").pid == pid


@pytest.mark.usefixtures("_child")
def test_who_waits_for_a_solver_that_does_not_start_goes_on_for_the_round_to_say_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    solver.await_solver()
    assert solver.kept_solver("SOLVER_TIMEOUT_S").pid is not None
    assert not caplog.records
    solver.kept_solver("SOLVER_TIMEOUT_S").close()
    monkeypatch.setattr(solver.kept_solver("SOLVER_TIMEOUT_S"), "_command", ["/does/not/exist"])
    solver.await_solver()
    assert "the solver does not start" in caplog.text
