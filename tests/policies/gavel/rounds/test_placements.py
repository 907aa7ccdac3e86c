"""Predicted run times in the placements of share policies."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policies.contract.snapshot import PairThroughput, RankPlacement, Running, Snapshot, Source
from policies.host import registry
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_snapshot

KNOWN = (PairThroughput("k", "V100", 0.8, 0.8, Source.MEASURED),)


def a_pair_that_runs(pairs: tuple[PairThroughput, ...]) -> Snapshot:
    """Two jobs of 100 steps on one device, with what is known of their pair."""
    half = (Running(0, (RankPlacement("n1", ("gpu0",), 0.5),), 0.0),)
    node = a_node("n1", "V100", devices=(a_device("gpu0", slots=2),))
    kind = replace(a_kind("k", {("V100", 1): 1.0}), pairs=pairs)
    return a_snapshot([node], [a_job(n, running=half, may_share=True) for n in "ab"], [kind])


@pytest.mark.parametrize(
    ("pairs", "run_s"), [(KNOWN, {"a": 125.0, "b": 125.0}), ((), {"a": None, "b": None})]
)
def test_a_run_time_beside_another_is_what_is_known_of_the_pair(
    pairs: tuple[PairThroughput, ...], run_s: Mapping[str, float | None]
) -> None:
    policy = registry.make("max_min_fairness", {"form": "sharing"})
    memory = policy(a_pair_that_runs(KNOWN)).memory
    plan = policy(replace(a_pair_that_runs(pairs), memory=memory, now_s=1050.0))
    assert {p.job: p.predicted_run_s for p in plan.placements} == run_s
