"""The schedule of blows depends on the seed alone, and gives every part its share."""

from collections import Counter

import pytest

from experiments.chaos.schedule import (
    CLOCK,
    CUTS,
    DATABASE,
    DISK,
    DISKS,
    DRIFTS,
    EMPTY_BROKER,
    PARTS,
    SERVER,
    Pace,
    kills,
    partitions,
    with_jumps,
)

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


def test_one_agent_at_least_is_away_until_its_jobs_are_lost() -> None:
    for seed in range(20):
        away = [blow.hold_s for blow in kills(10, seed, 3, PACE) if blow.part == "agent"]
        assert max(away) > PACE.lost_s


def test_disks_databases_and_empty_brokers_get_their_share() -> None:
    parts = (*PARTS, EMPTY_BROKER, DISK, DATABASE)
    blows = kills(80, 1, 3, PACE, parts)
    found = Counter(blow.part for blow in blows)
    assert min(found[part] for part in parts) >= 8
    assert {blow.target for blow in blows if blow.part == DISK} == set(DISKS)
    assert {blow.target for blow in blows if blow.part == EMPTY_BROKER} == {"broker"}


def test_a_part_alone_is_struck_every_time() -> None:
    assert {blow.part for blow in kills(20, 1, 3, PACE, ("beat",))} == {"beat"}


def test_links_are_cut_in_every_way_for_less_and_for_more_than_a_lease() -> None:
    cuts = partitions(50, 1, 3, PACE)
    assert {blow.how for blow in cuts} == set(CUTS)
    assert min(blow.hold_s for blow in cuts) < PACE.lost_s < max(blow.hold_s for blow in cuts)
    assert {blow.target for blow in cuts} == {"agent-0", "agent-1", "agent-2"}


def test_jumps_of_every_size_and_drifts_come_between_all_the_kills() -> None:
    before = kills(100, 1, 3, PACE)
    mixed = with_jumps(before, 60, 1, 3, 2.0)
    assert mixed == with_jumps(before, 60, 1, 3, 2.0) != with_jumps(before, 60, 2, 3, 2.0)
    assert [blow.number for blow in mixed] == list(range(160))
    jumps = [blow for blow in mixed if blow.part == CLOCK]
    assert {blow.how for blow in jumps} == {"-3600", "-60", "+60", "+3600", DRIFTS}
    assert {blow.target for blow in jumps} >= {SERVER, "worker", "web", "agent-0"}
    parts = [blow.part for blow in mixed]
    assert parts.count(CLOCK) == 60
    assert [blow.target for blow in mixed if blow.part != CLOCK] == [b.target for b in before]
    assert parts[:10].count(CLOCK) < 10
