"""What snapshots that follow one another share of their nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.contract import snapshot
from policies.contract.openings import Opening, Openings
from policies.contract.snapshot import NodeState, NodeView, SlotHold, Snapshot
from tests.builders_policies import a_device, a_kind, a_node, a_snapshot


def held(node: NodeView, *jobs: str) -> NodeView:
    """The node with its first devices held by these jobs."""
    taken = tuple(
        replace(d, held=(SlotHold(job),)) for d, job in zip(node.devices, jobs, strict=False)
    )
    return replace(node, devices=(*taken, *node.devices[len(jobs) :]))


def told(openings: Openings) -> tuple[Any, ...]:
    return list(openings.of), list(openings.gpus), openings.holders


def worked_out(*nodes: NodeView) -> Snapshot:
    snapshot = a_snapshot(nodes)
    assert snapshot.openings
    assert snapshot.node_by_id
    snapshot.lasting["x"] = snapshot.standing["x"] = 1
    return snapshot


def test_an_opening_tells_free_devices_from_held_and_unhealthy_ones() -> None:
    node = a_node(
        devices=(a_device("a", held=(SlotHold("j"),)), a_device("b", healthy=False), a_device("c"))
    )
    assert Opening.of(node) == Opening(("c",), 1, ("j",))


def test_openings_after_changes_are_those_read_anew_and_the_old_ones_stay() -> None:
    before = (held(a_node("n1"), "a", "b"), held(a_node("n2"), "a"), a_node("n3"))
    after = (held(a_node("n1"), "b"), before[1], held(a_node("n3"), "c", "b"))
    first = worked_out(*before)
    second = first.following(nodes=after)
    assert told(second.openings) == told(Openings.read(after))
    assert told(first.openings) == told(Openings.read(before))
    assert second.node_by_id == {n.id: n for n in after}


def test_what_lasts_is_handed_on_while_only_holds_change() -> None:
    first = worked_out(a_node("n1"), a_node("n2"))
    second = first.following(nodes=(held(first.nodes[0], "a"), first.nodes[1]), now_s=2000.0)
    assert second.lasting is first.lasting
    assert second.standing is first.standing


@pytest.mark.parametrize(
    "fields",
    [
        {"state": NodeState.CORDONED},
        {"cores": 4.0},
        {"labels": ("x",)},
        {"power_w": (1.0, 2.0, 3.0)},
    ],
)
def test_what_lasts_ends_when_a_node_changes(fields: dict[str, Any]) -> None:
    first = worked_out(a_node("n1"), a_node("n2"))
    second = first.following(nodes=(replace(first.nodes[0], **fields), first.nodes[1]))
    assert second.lasting == second.standing == {}
    assert second.node_by_id["n1"] is second.nodes[0]


def test_what_lasts_ends_when_kinds_or_the_number_of_nodes_change() -> None:
    first = worked_out(a_node("n1"), a_node("n2"))
    assert first.following(kinds=(a_kind(),)).lasting == {}
    fewer = first.following(nodes=first.nodes[:1])
    assert fewer.lasting == {}
    assert told(fewer.openings) == told(Openings.read(first.nodes[:1]))


def test_what_follows_from_the_nodes_alone_stays_when_kinds_change() -> None:
    first = worked_out(a_node("n1"), a_node("n2"))
    assert first.following(kinds=(a_kind(),)).standing is first.standing
    assert first.following(nodes=first.nodes[:1]).standing == {}


def test_speeds_of_a_kind_that_is_known_better_are_those_known_now() -> None:
    first = a_snapshot(
        [a_node("n1", "V100", 1)],
        kinds=[a_kind("k", {("V100", 1): 1.0}), a_kind("other", {("V100", 1): 7.0})],
    )
    assert first.throughputs[:, 0, 1].tolist() == [1.0, 7.0]
    second = first.following(
        kinds=(a_kind("new", {("V100", 1): 3.0}), a_kind("k", {("V100", 1): 2.0}), first.kinds[1])
    )
    assert second.throughputs[:, 0, 1].tolist() == [3.0, 2.0, 7.0]
    assert first.throughputs[:, 0, 1].tolist() == [1.0, 7.0]


def test_a_snapshot_that_follows_has_only_fields_of_a_snapshot() -> None:
    with pytest.raises(TypeError, match="a snapshot has no colour"):
        a_snapshot().following(colour="red")


def test_rates_of_kinds_that_have_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "RATES_KEPT", 3)
    now = a_snapshot()
    for i in range(20):
        now = now.following(kinds=(a_kind(f"k{i}", {("V100", 1): 2.0 + i}),))
        assert now.throughputs[0, now.type_index["V100"], 1] == 2.0 + i
        assert len(now._rates_known) <= 3
