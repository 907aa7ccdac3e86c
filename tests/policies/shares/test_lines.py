"""Lines of groups: kept while their kinds and the ground are the same, and no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.snapshot import JobColumns, Jobs, Snapshot, Source, Throughput
from policies.gavel.division import classing, lines, telling
from policies.gavel.division.observe import Asked, division_of
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_snapshot
from tests.builders_snapshots import snapshots
from tests.policies.shares.test_following import ASKED, of_classes

NODES = [a_node("n1", gpus=2), a_node("n2", gpus=2)]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(snapshot=snapshots(), asked=st.sampled_from(ASKED))
def test_many_jobs_are_classed_as_few_are(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, asked: Asked
) -> None:
    monkeypatch.setattr(telling, "MANY_JOBS", 1)
    monkeypatch.setattr(classing, "MANY_JOBS", 1)
    many = of_classes(division_of(replace(snapshot), asked).classes)
    monkeypatch.undo()
    assert many == of_classes(division_of(snapshot, asked).classes)


def following(first: Snapshot, *kinds: str, **fields: object) -> Snapshot:
    """The next snapshot, with a job of each of these kinds."""
    jobs = a_snapshot(NODES, [a_job(f"j{i}", kind) for i, kind in enumerate(kinds)]).jobs
    return first.following(jobs=jobs, **fields)


def test_a_group_that_comes_back_has_the_line_it_had() -> None:
    first = a_snapshot(NODES, [a_job("a", "k1"), a_job("b", "k2")])
    assert first.standing == {}  # asked for, so that what follows has it too
    there = division_of(first).classes
    gone = following(first, "k1", kinds=first.kinds[:1])
    assert division_of(gone).division.count.tolist() == [1]
    back = division_of(following(gone, "k2", "k1", "k2", kinds=first.kinds)).classes
    assert {line.group.kind: line for line in back.lines} == {
        line.group.kind: line for line in there.lines
    }
    assert all(any(line is old for old in there.lines) for line in back.lines)
    assert (back.keys, back.division.count[back.of].tolist()) == (there.keys, [2, 1, 2])


def test_a_kind_that_is_known_better_has_a_line_anew_and_keeps_its_name() -> None:
    first = a_snapshot(NODES, [a_job("a", "k1")], [a_kind("k1", {("V100", 1): 2.0})])
    assert first.standing == {}
    slow = division_of(first).classes
    faster = replace(first.kinds[0], throughputs=(Throughput("V100", 1, 3.0, Source.MEASURED),))
    fast = division_of(first.following(kinds=(faster,))).classes
    assert (fast.rate_lists, fast.keys) == ([(3.0,)], slow.keys)


def test_a_line_is_lost_with_the_devices_it_needs() -> None:
    first = a_snapshot(NODES, [a_job("a", gpus_min=2, gpus_max=2)])
    assert first.standing == {}
    assert division_of(first).classes.class_list == [0]
    broken = tuple(
        replace(n, devices=(a_device("gpu0"), a_device("gpu1", healthy=False))) for n in first.nodes
    )
    assert division_of(first.following(nodes=broken)).classes.class_list == [-1]


def test_lines_of_jobs_that_have_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINES_KEPT", 4)
    queued = Asked(teams=True, queues=frozenset({"t"}))
    snapshot = a_snapshot(NODES, [a_job("j0", team="t")])
    kept = snapshot.standing
    for i in range(10):
        snapshot = snapshot.following(jobs=Jobs(JobColumns.of([a_job(f"j{i}", team="t")])))
        assert division_of(snapshot, queued).classes.keys == (f"j{i}",)
        assert snapshot.standing is kept
        assert len(kept["lines"].lines) <= 4
        assert len(kept["lines"].classes) <= 4
