"""Area backfilling has no time scale: all times of a log times a factor give the same schedule."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.run import Simulation
from policies.batch.area_backfilling import AreaBackfilling
from policies.contract.snapshot import JobView, KindView, Source, Throughput
from tests.builders_policies import a_batch_job, a_cpu_node

NODES = tuple([a_cpu_node(f"c{i}", cores=4.0) for i in range(4)])
SECONDS = KindView("batch", throughputs=(Throughput("", 0, 1.0, Source.DECLARED),))
ROUND_S = 300.0


class Line(NamedTuple):
    """Line of a log: seconds since the line before, run time, walltime, units of a core."""

    gap_s: int
    run_s: int
    walltime_s: int
    units: int


LINES = st.builds(
    Line, st.integers(0, 30), st.integers(1, 200), st.integers(1, 400), st.integers(1, 16)
)


def jobs_of(log: Sequence[Line], factor: float) -> list[JobView]:
    jobs = []
    arrival_s = 0
    for number, line in enumerate(log):
        arrival_s += line.gap_s
        steps = factor * line.run_s
        job = a_batch_job(
            f"j{number}",
            line.units,
            cores=1.0,
            kind="batch",
            arrival_s=factor * arrival_s,
            walltime_s=factor * line.walltime_s,
            remaining_steps=steps,
            total_steps=steps,
        )
        jobs.append(job)
    return jobs


def starts_s(log: Sequence[Line], factor: float) -> dict[str, float]:
    """Return the start of each job when all times, that of rounds too, are times a factor."""
    scenario = Scenario(NODES, (SECONDS,), round_s=factor * ROUND_S)
    simulation = Simulation(scenario, jobs_of(log, factor), AreaBackfilling(), shortcuts=True)
    jobs = simulation.run().state.jobs
    return {job.view.id: job.launches[0].start_s for job in jobs.values()}


@settings(deadline=None, max_examples=25)
@given(st.lists(LINES, min_size=5, max_size=25), st.integers(2, 1_000_000))
def test_times_multiplied_by_a_factor_multiply_all_starts(log: list[Line], factor: int) -> None:
    """Whole seconds times whole factors are exact as floats, so that ties stay ties."""
    expected = {job: factor * start_s for job, start_s in starts_s(log, 1.0).items()}
    assert starts_s(log, factor) == expected
