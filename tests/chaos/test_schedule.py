"""The schedule of blows depends on the seed alone, and gives every part its share."""

from collections import Counter

import pytest

from experiments.chaos.schedule import CUTS, PARTS, Pace, kills, partitions

PACE = Pace(gap_s=2.0, lost_s=8.0)


def test_the_same_seed_gives_the_same_blows_and_another_seed_others() -> None:
    assert kills(50, 7, 3, PACE) == kills(50, 7, 3, PACE)
    assert kills(50, 7, 3, PACE) != kills(50, 8, 3, PACE)


def test_of_two_hundred_kills_every_part_gets_thirty_at_least() -> None:
    found = Counter(blow.part for blow in kills(200, 1, 3, PACE))
    assert found.total() == 200
    assert min(found[part] for part in PARTS) >= 30


@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_a_short_run_has_as_many_blows_as_asked_for(count: int) -> None:
    assert [blow.number for blow in kills(count, 1, 3, PACE)] == list(range(count))


def test_agents_are_sometimes_away_for_longer_than_their_leases() -> None:
    away = [blow.hold_s for blow in kills(200, 1, 3, PACE) if blow.part == "agent"]
    assert min(away) < 2.0 < PACE.lost_s < max(away)


def test_links_are_cut_in_every_way_for_less_and_for_more_than_a_lease() -> None:
    cuts = partitions(50, 1, 3, PACE)
    assert {blow.how for blow in cuts} == set(CUTS)
    assert min(blow.hold_s for blow in cuts) < PACE.lost_s < max(blow.hold_s for blow in cuts)
    assert {blow.target for blow in cuts} == {"agent-0", "agent-1", "agent-2"}
