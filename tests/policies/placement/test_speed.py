"""How fast jobs are that have a GPU together: the rule of both worlds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract.plan import Placement
from policies.contract.snapshot import (
    KindView,
    PairThroughput,
    Purpose,
    RankPlacement,
    Source,
    Throughput,
)
from policies.placement.speed import PlanSpeeds, Speeds, pair_rates_of
from tests.builders_colocation import a_wide_node
from tests.builders_policies import a_job, a_node, a_snapshot
from tests.builders_shared_worlds import half_of, kinds_of_two


def a_placement(job: str, *devices: str, node: str = "n1", share: float = 0.5) -> Placement:
    return Placement(job, half_of(*devices, node=node, share=share))


def test_what_one_kind_tells_of_a_pair_is_known_of_the_other_too() -> None:
    rates = pair_rates_of(kinds_of_two(0.5, 0.8))
    assert rates["a", "b", "V100"] == (0.5, 0.8)
    assert rates["b", "a", "V100"] == (0.8, 0.5)


def test_the_best_known_source_of_a_pair_counts() -> None:
    guess = PairThroughput("b", "V100", 0.1, 0.2, Source.DECLARED)
    told = PairThroughput("a", "V100", 0.3, 0.4, Source.MEASURED)
    rates = pair_rates_of((KindView("a", pairs=(guess,)), KindView("b", pairs=(told,))))
    assert rates["a", "b", "V100"] == (0.4, 0.3)


def test_two_of_one_kind_are_equally_fast() -> None:
    (kind, _) = kinds_of_two()
    same = KindView(
        "a",
        throughputs=kind.throughputs,
        pairs=(PairThroughput("a", "V100", 0.5, 0.7, Source.MEASURED),),
    )
    assert Speeds((same,)).pair("a", "a", "V100") == pytest.approx((0.6, 0.6))


def test_a_job_of_one_gpu_is_as_fast_as_its_pair_is_known_to_be() -> None:
    speeds = Speeds(kinds_of_two(0.5, 0.8))
    assert speeds.colocated("a", 1.0, 1, []) == 1.0
    assert speeds.colocated("a", 1.0, 1, [("V100", ["b"])]) == 0.5
    assert speeds.colocated("a", 1.0, 1, [("T4", ["b"])]) == 0.0, (
        "nothing is known of the pair there"
    )
    assert speeds.colocated("a", 0.0, 1, [("V100", ["b"])]) == 0.0, "nor of the job alone"


def test_two_of_which_one_does_not_fit_are_not_together() -> None:
    assert Speeds(kinds_of_two(0.5, 0.0)).pair("a", "b", "V100") == (0.0, 0.0)


def test_a_gang_keeps_the_least_that_any_of_its_gpus_leaves_it() -> None:
    speeds = Speeds(kinds_of_two(0.5, 0.8))
    assert speeds.colocated("b", 1.8, 2, [("V100", ["a"])]) == pytest.approx(1.8 * 0.8)
    assert speeds.colocated("b", 1.8, 2, [("V100", ["a"]), ("V100", ["a", "a"])]) == pytest.approx(
        1.8 * 0.8 * 0.8
    )


def test_a_gang_of_a_kind_whose_speed_on_one_gpu_is_unknown_has_no_known_speed_beside_others() -> (
    None
):
    wide = KindView(
        "a",
        throughputs=(Throughput("V100", 2, 1.8, Source.MEASURED),),
        pairs=kinds_of_two()[0].pairs,
    )
    assert Speeds((wide, kinds_of_two()[1])).colocated("a", 1.8, 2, [("V100", ["b"])]) == 0.0


def test_expected_is_what_the_plan_puts_side_by_side() -> None:
    snapshot = a_snapshot(
        [a_wide_node(gpus=2)],
        [a_job("j1", "a"), a_job("j2", "b"), a_job("j3", "b")],
        kinds_of_two(0.5, 0.8),
    )
    one, other, far = (
        a_placement("j1", "gpu0"),
        a_placement("j2", "gpu0"),
        a_placement("j3", "gpu1"),
    )
    speeds = PlanSpeeds(snapshot, (one, other, far))
    assert [speeds.of(p) for p in (one, other, far)] == [0.5, 0.8, 1.0]
    assert PlanSpeeds(snapshot, (one, far)).of(one) == 1.0


def test_another_copy_of_the_same_job_is_a_neighbour_too() -> None:
    same = KindView(
        "a",
        throughputs=kinds_of_two()[0].throughputs,
        pairs=(PairThroughput("a", "V100", 0.6, 0.6, Source.MEASURED),),
    )
    snapshot = a_snapshot([a_wide_node()], [a_job("j1", "a")], [same])
    seats = (RankPlacement("n1", ("gpu0",), 0.5),)
    copies = (Placement("j1", seats), Placement("j1", seats, purpose=Purpose.PROFILING))
    assert PlanSpeeds(snapshot, copies).of(copies[0]) == 0.6


@given(
    st.lists(st.floats(0.05, 1.0), min_size=2, max_size=2),
    st.lists(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_nobody_is_faster_beside_others_than_alone(
    parts: list[float], others: list[list[str]], gpus: int
) -> None:
    first, second = kinds_of_two(*parts)
    same = [
        PairThroughput(k.id, "V100", parts[0], parts[0], Source.MEASURED) for k in (first, second)
    ]
    kinds = (KindView("a", throughputs=first.throughputs, pairs=(*first.pairs, same[0])), second)
    found = Speeds(kinds).colocated(
        "a", 1.0, max(gpus, len(others)), [("V100", of) for of in others]
    )
    assert 0.0 < found <= 1.0


MIXED_KIND = KindView(
    "m",
    throughputs=(
        Throughput("V100", 2, 18.0, Source.MEASURED, spread=True),
        Throughput("T4", 2, 1.8, Source.MEASURED, spread=True),
        Throughput("V100", 2, 20.0, Source.MEASURED),
    ),
)
FAST, SLOW = RankPlacement("fast", ("gpu0",)), RankPlacement("slow", ("gpu0",))


@pytest.mark.parametrize("ranks", [(FAST, SLOW), (SLOW, FAST)])
def test_a_gang_of_two_types_is_as_fast_as_its_slowest_worker(
    ranks: tuple[RankPlacement, ...],
) -> None:
    nodes = {"fast": a_node("fast", "V100"), "slow": a_node("slow", "T4")}
    assert Speeds([MIXED_KIND]).on_ranks("m", ranks, nodes) == pytest.approx(1.8)


def test_a_gang_on_one_node_is_not_as_slow_as_a_spread_one() -> None:
    nodes = {"fast": a_node("fast", "V100"), "other": a_node("other", "V100")}
    together = (RankPlacement("fast", ("gpu0",)), RankPlacement("fast", ("gpu1",)))
    apart = (RankPlacement("fast", ("gpu0",)), RankPlacement("other", ("gpu1",)))
    speeds = Speeds([MIXED_KIND])
    assert speeds.on_ranks("m", together, nodes) == 20.0
    assert speeds.on_ranks("m", apart, nodes) == 18.0


def test_a_type_on_which_nothing_is_known_makes_the_speed_unknown() -> None:
    assert Speeds([MIXED_KIND]).alone("m", {"V100", "K80"}, 2, spread=True) == 0.0
    assert Speeds([MIXED_KIND]).alone("stranger", {"V100"}, 1) == 0.0
