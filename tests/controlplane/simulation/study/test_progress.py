import pytest

from controlplane.simulation.study.document import Run
from controlplane.simulation.study.study import Board


def a_run(policy: int = 0, seed: int = 1) -> Run:
    return Run(policy, f"p{policy}", seed, f"p{policy}-{seed}")


def test_nothing_is_said_of_the_time_left_while_nothing_is_known() -> None:
    assert (
        Board(4, 2).progress([a_run(seed=s) for s in (2, 3, 4)], {a_run(): (0.0, 5.0)}).left_s
        is None
    )


def test_a_run_takes_what_runs_of_its_policy_took() -> None:
    board = Board(5, 1)
    board.finish(a_run(0), 10.0)
    board.finish(a_run(1), 100.0)
    assert board.progress([a_run(0, 2), a_run(1, 2)], {}).left_s == pytest.approx(110.0)


def test_a_run_under_way_takes_what_its_own_pace_says_and_lends_it_to_its_policy() -> None:
    left_s = Board(2, 1).progress([a_run(0, 2)], {a_run(): (0.25, 10.0)}).left_s
    assert left_s == pytest.approx(30.0 + 40.0)


def test_work_is_shared_among_processes_but_no_run_is() -> None:
    board = Board(4, 4)
    board.finish(a_run(), 80.0)
    assert board.progress([], {a_run(0, 2): (0.0, 0.0)}).left_s == pytest.approx(80.0)
    assert board.progress([a_run(seed=s) for s in range(2, 10)], {}).left_s == pytest.approx(160.0)


def test_the_fraction_counts_finished_failed_and_parts_of_runs() -> None:
    board = Board(4, 2)
    board.finish(a_run(), None)
    board.failed += 1
    progress = board.progress([a_run(0, 4)], {a_run(0, 3): (0.5, 1.0)})
    assert progress.fraction == pytest.approx(2.5 / 4)
    assert [(r.label, r.seed, r.fraction) for r in progress.running] == [("p0", 3, 0.5)]


def test_nothing_is_left_at_the_end() -> None:
    board = Board(1, 2)
    board.finish(a_run(), 3.0)
    assert board.progress([], {}).left_s == 0.0
