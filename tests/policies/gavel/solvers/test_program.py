"""The linear program that all share policies build on: its limits, its changes, its failures."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from policies.contract.policy import SolverFailedError
from policies.gavel.allocation.problem import Coefficients, Shares
from policies.gavel.solvers import program as program_module
from policies.gavel.solvers.program import Method, Program, excess, gpus_of, time_of
from tests.builders_shares import T0_T1, a_problem

TWO = a_problem(T0_T1, gpus=[1, 1, 1])


def a_row(*values: float) -> Coefficients:
    return Coefficients(
        np.zeros(len(values), dtype=np.int64), np.arange(len(values)), np.array(values)
    )


def test_entries_that_stand_twice_in_a_place_add_up() -> None:
    twice = Coefficients(np.array([0, 1, 0]), np.array([1, 0, 1]), np.array([2.0, 5.0, 3.0]))
    starts, index, value = twice.packed(3, by_rows=True)
    assert (starts.tolist(), index.tolist(), value.tolist()) == ([0, 1, 2], [1, 0], [5.0, 5.0])


def test_a_program_can_be_changed_and_solved_again() -> None:
    program = Program(TWO)
    program.maximise(program.variables.sums(np.array([1.0, 0.0])))
    assert program.solve() == pytest.approx(2.0)
    program.maximise(program.variables.sums(np.array([0.0, 1.0])))
    assert program.solve() == pytest.approx(3.0)
    program.bound_rows(program.type_rows[:1], np.array([-inf]), np.array([0.5]))
    assert program.solve() == pytest.approx(2.5)
    program.bound_columns(np.arange(program.variables.size), np.zeros(6), np.full(6, 0.25))
    assert program.solve() == pytest.approx(1.5)


def test_coefficients_can_be_changed() -> None:
    program = Program(TWO)
    rows = program.add_throughputs(np.array([1.0, 1.0]), 0.0)
    level = program.add_column(rows, np.array([-1.0, -1.0]))
    program.maximise(np.ones(1), np.array([level]))
    assert program.solve() == pytest.approx(2.0)
    program.change(rows, level, np.array([-1.0, -3.0]))
    assert program.solve() == pytest.approx(1.0)
    assert program.throughputs()[1] >= 3.0 * program.values[level] - 1e-9


def test_of_all_optima_a_second_objective_chooses_the_best() -> None:
    problem = a_problem([[1.0, 1.0], [1.0, 1.0]], gpus=[1, 1])
    for m, c in ((0, 0), (0, 1), (1, 0), (1, 1)):
        program = Program(problem)
        program.maximise(np.array([1.0, 1.0, 0.5, 0.5]))
        assert program.solve() == pytest.approx(1.5)
        program.keep_optimum()
        program.maximise(np.eye(4)[2 * m + c])
        assert program.solve() == pytest.approx(1.0)
        assert program.values @ [1.0, 1.0, 0.5, 0.5] == pytest.approx(1.5)


def test_duals_say_what_one_more_gpu_would_bring() -> None:
    scarce = replace(TWO, gpus=np.array([0.5, 0.0, 0.0]))
    program = Program(scarce)
    program.maximise(program.variables.sums(np.array([1.0, 1.0])))
    assert program.solve() == pytest.approx(1.5)
    assert np.abs(program.duals(program.type_rows)).tolist() == [3.0, 0.0, 0.0]


@pytest.mark.parametrize("method", Method)
def test_what_cannot_be_is_a_failure_and_not_an_answer(method: Method) -> None:
    program = Program(TWO)
    program.add_throughputs(np.array([1.0, 1.0]), 99.0)
    with pytest.raises(SolverFailedError, match="nfeasible"):
        program.solve(method)


@pytest.mark.parametrize("method", Method)
def test_what_has_no_end_is_a_failure_and_not_an_answer(method: Method) -> None:
    program = Program(TWO)
    free = program.add_column(np.zeros(0, dtype=np.int64), np.zeros(0))
    program.maximise(np.ones(1), np.array([free]))
    with pytest.raises(SolverFailedError, match="nbounded"):
        program.solve(method)


def test_what_highs_refuses_is_a_failure() -> None:
    program = Program(TWO)
    with pytest.raises(SolverFailedError, match="refused rows"):
        program.add_rows(a_row(np.inf), np.zeros(1))


def test_what_is_no_number_has_no_optimum() -> None:
    program = Program(TWO)
    program.maximise(np.full(6, np.nan))
    with pytest.raises(SolverFailedError):
        program.solve()


def test_shares_that_are_no_numbers_break_a_constraint() -> None:
    assert np.isnan(excess(Shares(np.full((2, 3), np.nan), np.zeros((0, 3)), 0.0), TWO))
    program = Program(TWO)
    program.maximise(np.ones(6))
    program.solve()
    with pytest.raises(SolverFailedError, match="nan"):
        program.shares(0.0, unit=np.nan)


def test_a_solver_that_gives_up_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        program_module, "OPTIONS", {**program_module.OPTIONS, "simplex_iteration_limit": 0}
    )
    program = Program(TWO)
    program.maximise(np.ones(6))
    with pytest.raises(SolverFailedError, match=r"[Ii]teration limit"):
        program.solve(Method.SIMPLEX)


def test_an_interior_point_that_gets_stuck_is_followed_by_the_simplex(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        program_module, "OPTIONS", {**program_module.OPTIONS, "ipm_iteration_limit": 0}
    )
    program = Program(TWO)
    program.maximise(program.variables.sums(np.array([0.5, 1.0 / 3.0])))
    assert program.solve(Method.INTERIOR) == pytest.approx(5.0 / 3.0)


def test_many_classes_begin_with_the_interior_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Method] = []
    run = Program._run

    def recorded(program: Program, method: Method, options: Mapping[str, Any]) -> object:
        asked.append(method)
        return run(program, method, options)

    monkeypatch.setattr(Program, "_run", recorded)
    monkeypatch.setattr(program_module, "MANY_CLASSES", 2)
    program = Program(TWO)
    program.maximise(np.ones(6))
    program.solve()
    program.solve()
    assert asked == [Method.INTERIOR, Method.SIMPLEX]


def test_solutions_that_break_a_constraint_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(TWO)
    program.maximise(np.ones(6))
    program.solve()
    with pytest.raises(SolverFailedError, match="breaks a constraint by 1"):
        program.shares(0.0, unit=0.5)


def test_errors_of_rounding_are_no_shares() -> None:
    program = Program(TWO)
    program.bound_columns(np.arange(6), np.full(6, 5e-10), np.ones(6))
    program.maximise(program.variables.sums(np.array([1.0, 0.0])))
    program.solve()
    shares = program.shares(0.0)
    assert shares.alone[1].tolist() == [0.0, 0.0, 0.0]
    assert shares.alone[0, 0] == pytest.approx(1.0)


def test_use_and_excess_count_pairs_gangs_and_types() -> None:
    rates = {(0, 0): [(1.0, 1.0)], (0, 1): [(1.0, 1.0)]}
    problem = a_problem([[1.0], [1.0]], gpus=[2], count=[2, 1], scale=[2, 2], pairs=rates)
    shares = Shares(np.array([[0.5], [0.0]]), np.array([[0.25], [0.5]]), 0.0)
    assert time_of(shares, problem).tolist() == [1.5, 0.5]
    assert gpus_of(shares, problem).tolist() == [2.5]
    assert excess(shares, problem) == pytest.approx(0.25)
    assert excess(Shares(shares.alone, np.array([[1.0], [0.0]]), 0.0), problem) == pytest.approx(
        0.5
    )
    assert excess(
        Shares(np.array([[-0.1], [0.0]]), np.zeros((2, 1)), 0.0), problem
    ) == pytest.approx(0.1)
