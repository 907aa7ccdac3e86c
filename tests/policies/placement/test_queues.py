"""Within a class: who comes to GPUs of a type first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract.snapshot import JobPhase, JobView, Snapshot
from policies.gavel.allocation.observe import observe
from policies.gavel.allocation.problem import Shares
from policies.gavel.service_account import opened
from policies.placement import rounds
from policies.placement.homes import homes_of
from policies.placement.rounds import PATIENCE, Queues
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

TYPES = ("T4", "V100")
DEVICES = 4
TIMES = st.sampled_from([0.0, 100.0, 3000.0, 3100.0, 6000.0])


@st.composite
def like_jobs(draw: st.DrawFn) -> Snapshot:
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
    snapshot=like_jobs(),
    level=st.dictionaries(st.sampled_from(["j0", "j1", "j2"]), TIMES),
    column=st.integers(0, 1),
)
@pytest.mark.parametrize("many", [2, rounds.MANY])
def test_who_has_received_least_comes_first_and_others_only_once_who_is_there_has_had_patience(
    many: int, snapshot: Snapshot, level: dict[str, float], column: int
) -> None:
    observed = observe(snapshot)
    nothing = Shares(np.zeros((1, 2)), np.zeros((0, 2)), 0.0)
    account = replace(
        opened("given", "", observed.classes, nothing, 0.0, 300.0, None),
        level={job: {TYPES[column]: s} for job, s in level.items()},
    )
    homes = homes_of(observed)

    def key(e: int) -> tuple[float, bool, float, int]:
        job, home = snapshot.jobs[e], homes.get(e)
        had = dict(job.received_s).get(TYPES[column], 0.0) + level.get(job.id, 0.0)
        moves = home is None or home.column != column
        return (
            had + PATIENCE * snapshot.round_s * (moves and home is not None),
            moves,
            job.arrival_s,
            e,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "MANY", many)
        queue = Queues(observed, account, homes).of(0, column, {1})
    assert queue[::-1] == sorted(set(range(len(snapshot.jobs))) - {1}, key=key)
