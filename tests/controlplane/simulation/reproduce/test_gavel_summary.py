"""Means, claims and verdicts on made-up rows, computed by hand."""

from typing import Any

import pytest

from experiments.reproduce.gavel.model import Chart, Claim, Experiment, Series
from experiments.reproduce.gavel.report.summary import claims_of, points_of, remarks_of

SERIES = (
    Series.of("aware", "max_min_fairness"),
    Series.of("agnostic", "max_min_fairness"),
    Series.of("shared", "x", form="sharing"),
)


def a_row(series: str, x: float, seed: int = 0, **figures: Any) -> dict[str, Any]:
    return {"experiment": "8", "series": series, "x": x, "seed": seed, **figures}


def an_experiment(*claims: Claim) -> Experiment:
    return Experiment(
        "8", "LAS", "jobs/h", {4.0: {}, 5.0: {}}, SERIES, (Chart("jct_h", "JCT"),), claims, "note"
    )


ROWS = [
    a_row("aware", 4.0, 0, jct_h=10.0, jct_quantiles_h=[1.0, 3.0]),
    a_row("aware", 4.0, 1, jct_h=14.0, jct_quantiles_h=[3.0, 5.0]),
    a_row("aware", 5.0, jct_h=20.0),
    a_row("agnostic", 4.0, jct_h=18.0),
    a_row("agnostic", 5.0, jct_h=50.0),
    a_row("shared", 4.0, error="policy not available"),
]


def verdict(claim: Claim, *, whole: bool = True) -> dict[str, Any]:
    return claims_of(an_experiment(claim), points_of(ROWS), whole=whole)[0]


def test_means_deviations_and_quantiles_are_over_the_seeds_that_did_not_fail() -> None:
    points = {(p["series"], p["x"]): p for p in points_of(ROWS)}
    both = points["aware", 4.0]
    assert (both["means"]["jct_h"], both["seeds"]) == (12.0, 2)
    assert both["deviations"]["jct_h"] == pytest.approx(8.0**0.5)
    assert both["lists"]["jct_quantiles_h"] == [2.0, 4.0]
    assert points["aware", 5.0]["deviations"] == {}
    assert (points["shared", 4.0]["means"], points["shared", 4.0]["errors"]) == (
        {},
        ["policy not available"],
    )


def test_a_ratio_up_to_is_the_greatest_of_all_points() -> None:
    found = verdict(Claim("up to", "jct_h", "aware", "agnostic", paper=3.5))
    assert (found["here"], found["at"]) == (2.5, 5.0)
    assert found["verdict"] == "worse by 29% than the paper"


@pytest.mark.parametrize(
    ("claim", "here", "words"),
    [
        (
            Claim("", "jct_h", "aware", at=4.0, published=17.0, better="less"),
            12.0,
            "better by 29% than the published program",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=11.5, better="less"),
            12.0,
            "agrees with the paper",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=10.0, better="less"),
            12.0,
            "worse by 20% than the paper",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=10.0, better="more"),
            12.0,
            "better by 20% than the paper",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=10.0, better="near"),
            12.0,
            "20% above the paper",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=0.0, better="less"),
            12.0,
            "worse by any measure than the paper",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=120.0, better="less"),
            12.0,
            "10 times better than the paper",
        ),
        (
            Claim("", "jct_h", "aware", at=4.0, paper=30.0, better="more"),
            12.0,
            "2.5 times worse than the paper",
        ),
        (Claim("", "jct_h", "aware", better="less"), 20.0, "nothing printed to compare with"),
        (Claim("", "jct_h", "shared", at=4.0, paper=1.0), None, "not run: policy not available"),
        (Claim("", "jct_h", "aware", at=9.0, paper=1.0), None, "not run at 9"),
        (
            Claim("", "jct_h", "aware", "shared", at=4.0, paper=1.0),
            None,
            "not run: policy not available",
        ),
    ],
)
def test_a_verdict_says_how_far_what_was_found_is_from_what_was_told(
    claim: Claim, here: float | None, words: str
) -> None:
    found = verdict(claim)
    assert (found["here"], found["verdict"]) == (here, words)


def test_figures_of_the_full_size_are_not_compared_with_a_quick_run_unless_they_may_be() -> None:
    full = Claim("", "jct_h", "aware", at=4.0, published=12.0, better="less")
    assert (
        verdict(full, whole=False)["verdict"]
        == "not comparable: the published figure is of the full size"
    )
    paper = Claim("", "jct_h", "aware", at=4.0, paper=12.0, better="less")
    assert verdict(paper, whole=False)["verdict"] == "agrees with the paper (a quick run)"
    timed = Claim("", "jct_h", "aware", at=4.0, published=12.0, better="less", whole=False)
    assert verdict(timed, whole=False)["verdict"] == "agrees with the published program"


def test_sharing_that_never_was_and_jobs_that_never_end_are_remarked_upon() -> None:
    rows = [
        a_row("shared", 4.0, shared_gpu_h=0.0),
        a_row("aware", 4.0, shared_gpu_h=0.0, unfinished=3),
    ]
    first, second = remarks_of(an_experiment(), points_of(rows))
    assert first.startswith("shared: no two jobs ever shared a GPU")
    assert second == "aware at 4: 3 of the jobs that count never end."
    assert (
        remarks_of(
            an_experiment(), points_of([a_row("shared", 4.0, shared_gpu_h=2.0, unfinished=0)])
        )
        == []
    )
