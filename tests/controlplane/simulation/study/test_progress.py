import pytest

from controlplane.simulation.study.document import Run
from controlplane.simulation.study.study import CurrentRun, RunTimes


def a_run(policy: int = 0, seed: int = 1) -> Run:
    return Run(policy, f"p{policy}", seed, f"p{policy}-{seed}")


def test_nothing_is_said_of_the_time_left_while_nothing_is_known() -> None:
    waiting = [a_run(seed=s) for s in (2, 3, 4)]
    assert RunTimes(4, 2).progress(waiting, {a_run(): CurrentRun(0.0, 5.0)}).left_s is None


def test_a_run_takes_what_runs_of_its_policy_took() -> None:
    run_times = RunTimes(5, 1)
    run_times.finish(a_run(0), 10.0)
    run_times.finish(a_run(1), 100.0)
    assert run_times.progress([a_run(0, 2), a_run(1, 2)], {}).left_s == pytest.approx(110.0)


def test_a_run_under_way_takes_what_its_own_pace_says_and_lends_it_to_its_policy() -> None:
    left_s = RunTimes(2, 1).progress([a_run(0, 2)], {a_run(): CurrentRun(0.25, 10.0)}).left_s
    assert left_s == pytest.approx(30.0 + 40.0)


def test_work_is_shared_among_processes_but_no_run_is() -> None:
    run_times = RunTimes(4, 4)
    run_times.finish(a_run(), 80.0)
    assert run_times.progress([], {a_run(0, 2): CurrentRun(0.0, 0.0)}).left_s == pytest.approx(80.0)
    waiting = [a_run(seed=s) for s in range(2, 10)]
    assert run_times.progress(waiting, {}).left_s == pytest.approx(160.0)


def test_the_fraction_counts_finished_failed_and_parts_of_runs() -> None:
    run_times = RunTimes(4, 2)
    run_times.finish(a_run(), None)
    run_times.failed += 1
    progress = run_times.progress([a_run(0, 4)], {a_run(0, 3): CurrentRun(0.5, 1.0)})
    assert progress.fraction == pytest.approx(2.5 / 4)
    assert [(r.label, r.seed, r.fraction) for r in progress.running] == [("p0", 3, 0.5)]


def test_nothing_is_left_at_the_end() -> None:
    run_times = RunTimes(1, 2)
    run_times.finish(a_run(), 3.0)
    assert run_times.progress([], {}).left_s == 0.0
