"""The next snapshot of a cluster shares what follows from what has not changed."""

import pytest

from policies.contract.snapshot import GpuTypeView
from tests.builders_policies import a_kind, a_node, a_snapshot


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


def test_types_and_sizes_of_other_nodes_are_those_of_now() -> None:
    first = a_snapshot([a_node("n1", "V100", 1)], kinds=[a_kind()])
    assert (first.types, first.max_gpus, first.throughputs.shape) == (("V100",), 1, (1, 1, 2))
    second = first.following(nodes=(a_node("n1", "T4", 4),))
    assert (second.types, second.type_index, second.max_gpus) == (("T4",), {"T4": 0}, 4)
    assert second.throughputs[0].tolist() == [[0.0, 0.4, 0.0, 0.0, 0.0]]
    third = first.following(gpu_types=(GpuTypeView("A100", 1.0, 1.0),))
    assert third.types == ("A100", "V100")
    assert third.throughputs.shape == (1, 2, 2)


def test_speeds_are_shared_while_kinds_types_and_sizes_are_equal() -> None:
    first = a_snapshot([a_node("n1", "V100", 1)], kinds=[a_kind()])
    speeds = first.throughputs
    assert first.following(nodes=(a_node("n2", "V100", 1),)).throughputs is speeds


def test_a_snapshot_that_follows_has_only_fields_of_a_snapshot() -> None:
    with pytest.raises(TypeError, match="a snapshot has no colour"):
        a_snapshot().following(colour="red")
