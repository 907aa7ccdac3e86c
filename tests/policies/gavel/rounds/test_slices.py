"""The order in which jobs of a class get GPUs of a type."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract.snapshot import JobPhase, JobView, Snapshot
from policies.gavel.allocation.observe import observe
from policies.gavel.rounds.placements import GroupRequests, current_slices
from policies.gavel.rounds.slices import PATIENCE, ClassQueues
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

TYPES = ("T4", "V100")
DEVICES = 4
TIMES = st.sampled_from([0.0, 100.0, 3000.0, 3100.0, 6000.0])


@st.composite
def equal_jobs(draw: st.DrawFn) -> Snapshot:
    """Up to a dozen jobs of one class, of which some run; what they have received makes many of
    them equal.
    """
    free = [(t, f"gpu{d}") for t in TYPES for d in range(DEVICES)]
    jobs = [_a_job(draw, i, free) for i in range(draw(st.integers(2, 12)))]
    nodes = [a_node(t, t, DEVICES) for t in TYPES]
    return a_snapshot(nodes, jobs, [a_kind("k", {(t, 1): 1.0 for t in TYPES})])


def _a_job(draw: st.DrawFn, i: int, free: list[tuple[str, str]]) -> JobView:
    received = tuple((t, seconds) for t in TYPES if (seconds := draw(TIMES)))
    job = replace(
        a_job(f"j{i}", "k"), arrival_s=draw(st.sampled_from([0.0, 1.0])), received_s=received
    )
    if not free or draw(st.booleans()):
        return job
    return replace(
        job, running=on(*free.pop(draw(st.integers(0, len(free) - 1)))), phase=JobPhase.RUNNING
    )


@settings(deadline=None)
@given(
    snapshot=equal_jobs(),
    credit=st.dictionaries(st.sampled_from(["j0", "j1", "j2"]), TIMES),
    column=st.integers(0, 1),
)
def test_the_job_that_has_received_least_comes_first_and_others_move_only_after_patience(
    snapshot: Snapshot, credit: dict[str, float], column: int
) -> None:
    observed = observe(snapshot)
    current = current_slices(observed, GroupRequests(observed))

    def key(row: int) -> tuple[float, bool, float, int]:
        job, runs = snapshot.jobs[row], current.get(row)
        had = dict(job.received_s).get(TYPES[column], 0.0) + credit.get(job.id, 0.0)
        moves = runs is None or runs.column != column
        patience = PATIENCE * snapshot.round_s * (moves and runs is not None)
        return had + patience, moves, job.arrival_s, row

    received = {job: {TYPES[column]: s} for job, s in credit.items()}
    queue = ClassQueues(observed, received, current).waiting(0, column, {1})
    assert queue[::-1] == sorted(set(range(len(snapshot.jobs))) - {1}, key=key)
