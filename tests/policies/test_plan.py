"""Placements made the quick way are placements like any other."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from policies.contract.plan import Placement, placement_of
from policies.contract.snapshot import RankSeat

RANKS = (RankSeat("n", ("gpu0", "gpu1")),)


def test_a_placement_made_quickly_is_the_one_that_its_constructor_makes() -> None:
    made, wanted = placement_of("a", RANKS, 2, 7.5), Placement("a", RANKS, 2, predicted_run_s=7.5)
    assert type(made) is Placement
    assert (made, hash(made), repr(made)) == (wanted, hash(wanted), repr(wanted))
    assert (made.gpus, made.key) == (wanted.gpus, wanted.key)
    assert pickle.loads(pickle.dumps(made)) == wanted
    assert replace(made, until_s=3.0) == replace(wanted, until_s=3.0)


def test_a_placement_made_quickly_cannot_be_written_to() -> None:
    made: Any = placement_of("a", RANKS, 0, 1.0)
    with pytest.raises(FrozenInstanceError):
        made.copy = 1
