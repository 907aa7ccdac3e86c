"""What estimates promise, whatever numbers they are made of."""

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.amdahl import PARALLEL_PRIOR, Config, own_fraction, speed_up
from profiling.estimates import (
    DATA_SHEET_WEIGHT,
    MOST_BEYOND_SHEET,
    Pool,
    estimate,
    leave_one_out,
    median_error,
)

TYPES = ("A", "B", "C")
CONFIGS: list[Config] = [(t, g) for t in TYPES for g in (1, 2, 3, 4, 8)]
SHEET = {"A": 10.0, "B": 20.0, "C": 5.0}

speed = st.floats(1e-3, 1e4)
speeds = st.dictionaries(st.sampled_from(CONFIGS), speed, min_size=1, max_size=6)
others = st.dictionaries(st.sampled_from(["k1", "k2", "k3"]), speeds, max_size=3)
sheets = st.fixed_dictionaries({t: st.floats(0.1, 1000.0) for t in TYPES})

# Seconds per epoch of ANDREAS' applications: 1 x V100, 2 x V100, 1 x T4.
ANDREAS = {
    "lstm_big": (43.0842, 30.5512, 110.7112),
    "lstm_small": (43.0261, 30.5871, 110.6581),
    "efficientnet": (51.6221, 41.2372, 88.9881),
    "convnet": (20.5382, 17.8042, 41.2582),
}
ANDREAS_SPEEDS = {
    k: {("V100", 1): 1 / a, ("V100", 2): 1 / b, ("T4", 1): 1 / c}
    for k, (a, b, c) in ANDREAS.items()
}
ANDREAS_SHEET = {"V100": 15.7, "T4": 8.1}


@given(known=speeds, pool=others, sheet=sheets)
def test_known_numbers_come_back_unchanged_and_all_others_are_finite_and_positive(
    known: dict[Config, float], pool: dict[str, dict[Config, float]], sheet: dict[str, float]
) -> None:
    found = estimate("me", known, CONFIGS, Pool.of(sheet, pool))
    assert set(found) == set(CONFIGS)
    assert all(found[c] == s for c, s in known.items())
    assert all(isfinite(s) and s > 0 for s in found.values())


@given(known=speeds, pool=others, sheet=sheets, factor=st.floats(0.01, 100.0))
def test_a_kind_that_is_faster_everywhere_is_estimated_faster_everywhere(
    known: dict[Config, float],
    pool: dict[str, dict[Config, float]],
    sheet: dict[str, float],
    factor: float,
) -> None:
    shared = Pool.of(sheet, pool)
    once = estimate("me", known, CONFIGS, shared)
    scaled = estimate("me", {c: s * factor for c, s in known.items()}, CONFIGS, shared)
    assert scaled == pytest.approx({c: s * factor for c, s in once.items()}, rel=1e-6)


@given(known=speeds, pool=others, sheet=sheets, factor=st.floats(0.01, 100.0))
def test_how_long_another_kinds_steps_are_does_not_matter(
    known: dict[Config, float],
    pool: dict[str, dict[Config, float]],
    sheet: dict[str, float],
    factor: float,
) -> None:
    scaled = {k: {c: s * factor for c, s in v.items()} for k, v in pool.items()}
    first = estimate("me", known, CONFIGS, Pool.of(sheet, pool))
    assert estimate("me", known, CONFIGS, Pool.of(sheet, scaled)) == pytest.approx(first, rel=1e-6)


@given(known=speeds, pool=others, sheet=sheets)
def test_more_gpus_are_never_estimated_slower_than_fewer(
    known: dict[Config, float], pool: dict[str, dict[Config, float]], sheet: dict[str, float]
) -> None:
    found = estimate("me", known, CONFIGS, Pool.of(sheet, pool))
    for gpu_type, gpus in CONFIGS:
        if (gpu_type, gpus) not in known:
            fewer = [s for (t, g), s in found.items() if t == gpu_type and g < gpus]
            assert found[gpu_type, gpus] >= max(fewer, default=0.0)


@given(base=speed, pool=others, sheet=sheets)
def test_an_estimate_between_types_lies_between_data_sheet_and_what_the_other_kinds_show(
    base: float, pool: dict[str, dict[Config, float]], sheet: dict[str, float]
) -> None:
    ratios = [sheet["B"] / sheet["A"]]
    for other in pool.values():
        ratios += [
            s / other["A", g] for (t, g), s in other.items() if t == "B" and ("A", g) in other
        ]
    found = estimate("me", {("A", 1): base}, [("B", 1)], Pool.of(sheet, pool))["B", 1]
    assert base * min(ratios) * (1 - 1e-9) <= found <= base * max(ratios) * (1 + 1e-9)


@given(pool=st.dictionaries(st.text(max_size=3), speeds, max_size=5), sheet=sheets)
def test_no_other_kind_bends_an_estimate_beyond_the_stated_factor(
    pool: dict[str, dict[Config, float]], sheet: dict[str, float]
) -> None:
    liar = {f"liar {i}": {("A", 1): 1.0, ("B", 1): 10.0 ** (6 + i)} for i in range(3)}
    by_sheet = sheet["B"] / sheet["A"]
    for others in (pool, {**pool, **liar}):
        pooled = Pool.of(sheet, others)
        found = estimate("me", {("A", 1): 1.0}, [("B", 1)], pooled)["B", 1]
        assert by_sheet / MOST_BEYOND_SHEET * (1 - 1e-9) <= found
        assert found <= by_sheet * MOST_BEYOND_SHEET * (1 + 1e-9)


@given(known=speeds, gpus=st.integers(2, 64))
def test_a_speed_up_is_at_least_one_and_at_most_the_gpus(
    known: dict[Config, float], gpus: int
) -> None:
    fraction = own_fraction(known)
    if fraction is not None:
        assert 1.0 <= speed_up(fraction, gpus) <= gpus * (1 + 1e-9)


@given(fraction=st.floats(0.05, 0.99), base=speed)
def test_amdahls_law_is_found_again_from_two_counts(fraction: float, base: float) -> None:
    known = {("A", g): base * speed_up(fraction, g) for g in (1, 2)}
    found = estimate("me", known, [("A", 4), ("A", 8)], Pool.of(SHEET, {}))
    assert found["A", 8] == pytest.approx(base * speed_up(fraction, 8), rel=1e-6)


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_numbers_that_are_no_speed_are_as_good_as_unknown(nonsense: float) -> None:
    pool = Pool.of(SHEET, {"other": {("A", 1): nonsense, ("B", 1): 1.0}})
    assert estimate("me", {("A", 1): nonsense}, CONFIGS, pool) == {}
    assert estimate("me", {("A", 1): 1.0}, [("B", 1)], pool)["B", 1] == pytest.approx(2.0)


def test_without_any_other_kind_the_data_sheets_decide() -> None:
    found = estimate("me", {("A", 1): 3.0}, [("B", 1), ("C", 1), ("A", 4)], Pool.of(SHEET, {}))
    assert found["B", 1] == pytest.approx(6.0)
    assert found["C", 1] == pytest.approx(1.5)
    assert found["A", 4] == pytest.approx(3.0 * speed_up(PARALLEL_PRIOR, 4))


def test_other_kinds_ratios_outweigh_the_data_sheet_by_their_number() -> None:
    pool = Pool.of(SHEET, {k: {("A", 1): 1.0, ("B", 1): 4.0} for k in ("k1", "k2")})
    weight = DATA_SHEET_WEIGHT + 2
    assert estimate("me", {("A", 1): 1.0}, [("B", 1)], pool)["B", 1] == pytest.approx(
        2.0 ** (DATA_SHEET_WEIGHT / weight) * 4.0 ** (2 / weight)
    )


def test_a_kind_does_not_vouch_for_itself() -> None:
    own = {("A", 1): 1.0, ("B", 1): 16.0}
    assert leave_one_out({"me": own}, Pool.of(SHEET, {"me": own}))[0].estimated == pytest.approx(
        8.0
    )


def test_a_type_that_no_data_sheet_knows_is_taken_as_just_as_fast() -> None:
    assert estimate("me", {("A", 1): 3.0}, [("X", 1)], Pool.of(SHEET, {}))["X", 1] == pytest.approx(
        3.0
    )


def test_a_kind_with_a_single_number_has_no_leave_one_out_error() -> None:
    assert median_error(leave_one_out({"me": {("A", 1): 1.0}}, Pool.of(SHEET, {}))) is None


def test_left_out_measurements_of_the_papers_applications_are_estimated_within_a_fifth() -> None:
    errors = leave_one_out(ANDREAS_SPEEDS, Pool.of(ANDREAS_SHEET, ANDREAS_SPEEDS))
    assert len(errors) == 12
    error = median_error(errors)
    assert error is not None
    assert error < 0.2
