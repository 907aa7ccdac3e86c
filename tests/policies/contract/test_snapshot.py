"""The next snapshot of a cluster shares what follows from what has not changed."""

from __future__ import annotations

import pytest

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


def test_a_snapshot_that_follows_has_only_fields_of_a_snapshot() -> None:
    with pytest.raises(TypeError, match="a snapshot has no colour"):
        a_snapshot().following(colour="red")
