"""What a snapshot has to divide, and among whom."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.snapshot import (
    JobPhase,
    KindView,
    NodeRole,
    NodeState,
    PairThroughput,
    SlotHold,
    Snapshot,
    Source,
    Throughput,
)
from policies.gavel.allocation.observe import GroupingOptions, Observed, observe
from policies.placement.layout import Allocation, Part, Request
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_profile_run, a_snapshot, on
from tests.builders_snapshots import snapshots

SPEEDS = {("V100", 1): 4.0, ("V100", 2): 7.0, ("V100", 4): 12.0, ("T4", 1): 1.0, ("T4", 2): 1.8}


def spread(gpu_type: str, gpus: int, steps_per_s: float) -> Throughput:
    return Throughput(gpu_type, gpus, steps_per_s, Source.MEASURED, spread=True)


def pair(other: str, gpu_type: str, own: float, others: float) -> PairThroughput:
    return PairThroughput(other, gpu_type, own, others, Source.MEASURED)


def two_slots(node: str = "n1", gpu_type: str = "V100", gpus: int = 1, **fields: Any) -> Any:
    return a_node(
        node, gpu_type, devices=tuple(a_device(f"gpu{i}", slots=2) for i in range(gpus)), **fields
    )


def class_of(observed: Observed, job: str) -> int:
    """The class of a job that takes part."""
    return observed.classes.class_of[observed.snapshot.jobs.position[job]]


def jobs_of(observed: Observed, of_class: int) -> list[str]:
    ids = observed.snapshot.jobs.columns.ids
    return [ids[row] for row in observed.classes.members[of_class]]


def test_a_division_has_a_column_of_time_for_each_gpu_type_with_gpus_to_give() -> None:
    nodes = [
        a_node("n1", "V100", 4),
        a_node("n2", "T4", 2),
        a_node("n3", "T4", 2),
        a_node("n4", "A100", state=NodeState.LOST),
    ]
    problem = observe(a_snapshot(nodes, [a_job("a")], [a_kind("k", SPEEDS)])).problem
    assert problem.types == ("T4", "V100")
    assert [(c.gpu_type, c.spread) for c in problem.columns] == [("T4", False), ("V100", False)]
    assert problem.gpus.tolist() == [4.0, 4.0]
    assert problem.rates.tolist() == [[1.0, 4.0]]


def test_like_jobs_are_one_class_and_weight_gpus_and_kind_tell_jobs_apart() -> None:
    jobs = [
        a_job("a"),
        a_job("heavy", weight=2.0),
        a_job("b"),
        a_job("two", gpus_min=2, gpus_max=2),
        a_job("other", kind="k2"),
        a_job("c", arrival_s=7.0, remaining_steps=1.0, user="u", team="t", priority=3),
    ]
    observed = observe(
        a_snapshot([a_node(gpus=4)], jobs, [a_kind("k", SPEEDS), a_kind("k2", SPEEDS)])
    )
    problem = observed.problem
    assert sorted(tuple(jobs_of(observed, m)) for m in range(4)) == [
        ("a", "b", "c"),
        ("heavy",),
        ("other",),
        ("two",),
    ]
    assert problem.count[class_of(observed, "a")] == 3
    assert problem.weight[class_of(observed, "heavy")] == 2.0
    assert (
        problem.scale[class_of(observed, "two")],
        problem.rates[class_of(observed, "two")].tolist(),
    ) == (2, [7.0])


def test_every_job_is_a_class_of_its_own_where_a_policy_looks_at_jobs() -> None:
    observed = observe(
        a_snapshot([a_node(gpus=4)], [a_job("a", remaining_steps=7.0), a_job("b")]),
        GroupingOptions(jobs=True),
    )
    assert (observed.classes.keys, observed.problem.count.tolist()) == (("a", "b"), [1, 1])
    assert observed.number("remaining_steps").tolist() == [7.0, 100.0]


def test_classes_are_of_one_team_where_a_policy_shares_by_team() -> None:
    jobs = [a_job("a", team="red"), a_job("b", team="blue"), a_job("c", team="red")]
    observed = observe(a_snapshot([a_node(gpus=4)], jobs), GroupingOptions(teams=True))
    assert observed.classes.entities == ("blue", "red")
    assert observed.problem.entity[[class_of(observed, j) for j in "abc"]].tolist() == [1, 0, 1]


def test_classes_do_not_depend_on_the_order_of_jobs() -> None:
    jobs = [a_job("a", kind="k1"), a_job("b", kind="k2"), a_job("c", kind="k1", weight=2.0)]
    there, back = (
        observe(a_snapshot([a_node(gpus=2)], order)).classes for order in (jobs, jobs[::-1])
    )
    assert (there.keys, there.fingerprint) == (back.keys, back.fingerprint)


def test_jobs_of_unlike_labels_are_alike_where_the_labels_make_no_difference() -> None:
    nodes = [a_node("n1", labels=("x", "y")), a_node("n2", labels=("x", "y"))]
    observed = observe(
        a_snapshot(nodes, [a_job("a", labels=("x",)), a_job("b", labels=("y",)), a_job("c")])
    )
    assert observed.problem.count.tolist() == [3]


def test_a_job_has_no_time_where_its_types_labels_or_resources_rule_all_nodes_out() -> None:
    nodes = [
        a_node("n1", "V100", labels=("x",), cores=8.0),
        a_node("n2", "T4", cores=2.0),
        a_node("n3", "T4", labels=("x",), cores=2.0),
    ]
    jobs = [
        a_job("free"),
        a_job("only", allowed_types=("T4",)),
        a_job("x", labels=("x",)),
        a_job("hungry", cores=4.0),
        a_job("named", resources=(("fpga", 1.0),)),
    ]
    observed = observe(a_snapshot(nodes, jobs, [a_kind("k", SPEEDS)]))
    rates = {
        job: observed.problem.rates[class_of(observed, job)].tolist()
        for job in ("free", "only", "x", "hungry")
    }
    assert rates == {"free": [1.0, 4.0], "only": [1.0, 0.0], "x": [1.0, 4.0], "hungry": [0.0, 4.0]}
    assert class_of(observed, "named") == -1


def test_consolidated_time_needs_one_node_with_all_the_gpus() -> None:
    nodes = [a_node("n1", "V100", 2), a_node("n2", "V100", 2)]
    kind = a_kind("k", {**SPEEDS, ("V100", 4): 12.0})
    observed = observe(
        a_snapshot(
            nodes, [a_job("a", gpus_min=4, gpus_max=4), a_job("b", gpus_min=2, gpus_max=2)], [kind]
        )
    )
    problem = observed.problem
    assert [(c.gpu_type, c.spread) for c in problem.columns] == [("V100", False), ("V100", True)]
    on_one_node, over_nodes = problem.rates[class_of(observed, "a")]
    assert on_one_node == 0.0
    assert 0.0 < over_nodes < 12.0
    assert problem.rates[class_of(observed, "b")].tolist() == [7.0, 0.0]


def test_time_on_several_nodes_has_a_column_of_its_own_that_shares_the_types_gpus() -> None:
    nodes = [a_node("n1", "V100", 2), a_node("n2", "V100", 2), a_node("n3", "T4", 4)]
    known = replace(
        a_kind("k", SPEEDS),
        throughputs=(
            *a_kind("k", SPEEDS).throughputs,
            spread("V100", 4, 9.0),
            spread("V100", 2, 5.0),
        ),
    )
    jobs = [a_job("a", gpus_min=4, gpus_max=4), a_job("b", gpus_min=2, gpus_max=2), a_job("c")]
    observed = observe(a_snapshot(nodes, jobs, [known]), GroupingOptions(spread=True))
    problem = observed.problem
    assert [(c.gpu_type, c.spread) for c in problem.columns] == [
        ("T4", False),
        ("V100", False),
        ("V100", True),
    ]
    assert (problem.column_type.tolist(), problem.gpus.tolist()) == ([0, 1, 1], [4.0, 4.0])
    rates = {job: problem.rates[class_of(observed, job)].tolist() for job in "abc"}
    assert rates == {"a": [0.0, 0.0, 9.0], "b": [1.8, 7.0, 5.0], "c": [1.0, 4.0, 0.0]}


def test_there_are_no_columns_for_several_nodes_where_no_kind_is_known_there() -> None:
    problem = observe(
        a_snapshot([a_node("n1"), a_node("n2")], [a_job("a")]), GroupingOptions(spread=True)
    ).problem
    assert not any(c.spread for c in problem.columns)


def test_gpus_of_profile_runs_unknown_jobs_and_broken_ones_are_not_divided() -> None:
    devices = (
        a_device("gpu0"),
        a_device("gpu1", held=(SlotHold("ghost"),)),
        a_device("gpu2", healthy=False),
        a_device("gpu3"),
    )
    nodes = [a_node("n1", devices=devices, role=NodeRole.BOTH)]
    jobs = [
        a_job("p", phase=JobPhase.PROFILING, running=(a_profile_run("n1", "gpu3"),)),
        a_job("a"),
    ]
    observed = observe(a_snapshot(nodes, jobs))
    assert observed.problem.gpus.tolist() == [1.0]
    assert [row for row, g in enumerate(observed.classes.group_of) if g >= 0] == [1]
    assert [w.job for w in observed.waiting.values()] == ["p"]


def test_a_job_on_a_cordoned_node_stays_outside_with_its_gpus() -> None:
    nodes = [a_node("n1", gpus=2, state=NodeState.CORDONED), a_node("n2", gpus=1)]
    observed = observe(a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0")), a_job("b")]))
    assert [s.row for s in observed.pinned] == [0]
    assert (observed.problem.gpus.tolist(), observed.problem.count.tolist()) == ([1.0], [1])


def test_a_job_launched_at_this_moment_has_its_part_like_the_others() -> None:
    observed = observe(
        a_snapshot(
            [a_node(gpus=2)], [a_job("a", running=on("n1", "gpu0", since_s=1000.0)), a_job("b")]
        )
    )
    assert (
        observed.pinned,
        observed.problem.gpus.tolist(),
        observed.problem.count.tolist(),
    ) == ((), [2.0], [2])


def test_a_job_of_weight_0_has_no_claim() -> None:
    observed = observe(a_snapshot([a_node(gpus=2)], [a_job("a", weight=0.0), a_job("b")]))
    assert (class_of(observed, "a"), observed.problem.count.tolist()) == (-1, [1])


def kinds_of_pairs() -> list[KindView]:
    """Kind a beside itself and beside b gains, a beside c loses."""
    pairs = (pair("a", "V100", 3.0, 3.0), pair("b", "V100", 3.0, 1.5), pair("c", "V100", 1.0, 0.5))
    return [
        a_kind("a", {("V100", 1): 4.0, ("T4", 1): 1.0}, pairs=pairs),
        a_kind("b", {("V100", 1): 2.0, ("T4", 1): 1.0}),
        a_kind("c", {("V100", 1): 2.0}),
    ]


def sharing_jobs(*kinds: str, **fields: Any) -> list[Any]:
    return [a_job(f"j{i}", kind, may_share=True, **fields) for i, kind in enumerate(kinds)]


def test_a_pair_of_classes_has_a_row_where_two_do_more_side_by_side_than_in_turns() -> None:
    snapshot = a_snapshot(
        [two_slots(gpus=2), a_node("n2", "T4")], sharing_jobs("a", "b", "c", "a"), kinds_of_pairs()
    )
    observed = observe(snapshot, GroupingOptions(pairs=True))
    of_a, of_b = class_of(observed, "j0"), class_of(observed, "j1")
    rows = {
        tuple(p): r.tolist()
        for p, r in zip(observed.problem.pairs.tolist(), observed.problem.pair_rates, strict=True)
    }
    on_t4 = [0.0, 0.0]
    beside = [3.0, 1.5] if of_a < of_b else [1.5, 3.0]
    assert rows == {
        (of_a, of_a): [on_t4, [3.0, 3.0]],
        (min(of_a, of_b), max(of_a, of_b)): [on_t4, beside],
    }


def test_a_class_of_one_job_makes_no_pair_with_itself() -> None:
    snapshot = a_snapshot([two_slots()], sharing_jobs("a", "b"), kinds_of_pairs())
    observed = observe(snapshot, GroupingOptions(pairs=True))
    assert observed.problem.pairs.tolist() == [
        sorted([class_of(observed, "j0"), class_of(observed, "j1")])
    ]


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (
            a_snapshot([a_node(gpus=1)], sharing_jobs("a", "b"), kinds_of_pairs()),
            "the devices have one slot",
        ),
        (
            a_snapshot([two_slots()], [a_job("j", "a"), *sharing_jobs("b")], kinds_of_pairs()),
            "one may not share",
        ),
        (
            a_snapshot(
                [two_slots(gpus=2)],
                sharing_jobs("a", "b", gpus_min=2, gpus_max=2),
                kinds_of_pairs(),
            ),
            "pairs are measured on one device",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_there_is_no_pair_if(snapshot: Snapshot, why: str) -> None:
    problem = observe(snapshot, GroupingOptions(pairs=True)).problem
    assert (problem.pairs.shape, problem.pair_rates.shape) == (
        (0, 2),
        (0, len(problem.columns), 2),
    ), why


def test_what_one_of_two_kinds_says_of_both_holds_for_both() -> None:
    kinds = kinds_of_pairs()
    kinds = [replace(kinds[0], pairs=()), replace(kinds[1], pairs=(pair("a", "V100", 1.5, 3.0),))]
    observed = observe(
        a_snapshot([two_slots()], sharing_jobs("a", "b"), kinds), GroupingOptions(pairs=True)
    )
    of_a = class_of(observed, "j0")
    assert observed.problem.pair_rates[0, 0, of_a] == 3.0


def test_a_division_is_the_same_from_round_to_round_until_something_in_it_changes() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=2), a_node("n2", gpus=2)], [a_job("a"), a_job("b")])
    later = replace(snapshot, now_s=1300.0, seed=9)
    fewer = replace(snapshot, nodes=snapshot.nodes[:1])
    faster = replace(snapshot, kinds=(a_kind("k", {("V100", 1): 9.0}),))
    made = observe(snapshot).classes.fingerprint
    assert observe(later).classes.fingerprint == made
    assert {observe(other).classes.fingerprint for other in (fewer, faster)}.isdisjoint({made})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots(), teams=st.booleans(), jobs=st.booleans())
def test_every_job_that_takes_part_has_the_row_of_its_own_kind_and_nodes(
    snapshot: Snapshot, teams: bool, jobs: bool
) -> None:
    observed = observe(snapshot, GroupingOptions(teams=teams, jobs=jobs))
    problem = observed.problem
    class_of, state = observed.classes.class_of, observed.state
    assert [class_of.count(m) for m in range(len(problem.count))] == problem.count.tolist()
    for row, job in enumerate(snapshot.jobs):
        if observed.classes.group_of[row] < 0:
            continue
        expected = []
        for column in (column for column in problem.columns if not column.spread):
            fits = any(
                state.idle[n].bit_count() >= job.gpus_min
                and _would_do(node, job)
                and state.has_power_for(Allocation(Request(job.gpus_min), (Part(n, 1, 0),)))
                for n, node in enumerate(snapshot.nodes)
                if node.gpu_type == column.gpu_type and node.takes_training
            )
            expected.append(_speed(snapshot, job, column.gpu_type) if fits else 0.0)
        m = class_of[row]
        rates = list(observed.classes.rates[observed.classes.group_of[row]])
        assert rates[: len(expected)] == expected
        over_nodes = rates[len(expected) :]
        assert not any(over_nodes) or observed.requests.is_wide(row)
        expected += over_nodes
        assert (m < 0) == (not any(expected) or job.weight == 0.0)
        if m >= 0:
            assert (
                problem.rates[m].tolist(),
                int(problem.scale[m]),
                float(problem.weight[m]),
            ) == (
                expected,
                job.gpus_min,
                job.weight,
            )


def _would_do(node: Any, job: Any) -> bool:
    limits = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    demand = {"cores": job.cores, "memory_gb": job.memory_gb, **dict(job.resources)}
    return (
        (not job.allowed_types or node.gpu_type in job.allowed_types)
        and set(job.labels) <= set(node.labels)
        and all(amount <= limits.get(name, 0.0) for name, amount in demand.items())
    )


def _speed(snapshot: Snapshot, job: Any, gpu_type: str) -> float:
    kind = snapshot.kinds[snapshot.kind_index[job.kind]]
    return next(
        (
            t.steps_per_s
            for t in kind.throughputs
            if (t.gpu_type, t.gpus) == (gpu_type, job.gpus_min)
        ),
        0.0,
    )
