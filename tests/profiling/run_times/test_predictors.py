"""Predictors of run times: the most specific group, fallbacks, and jobs that outlive theirs."""

from collections.abc import Sequence
from itertools import permutations
from math import inf
from statistics import median
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.models.clusters import Predictor as Setting
from controlplane.simulation.switches import AnyPredictor
from profiling.run_times.predictors import (
    LEVELS,
    MOST_KEPT,
    ORACLE,
    PREDICTORS,
    Features,
    Prediction,
    RunTimes,
    predict,
    still_expected,
)

FIELDS = ("user", "name", "kind", "request")
times = st.floats(0.0, 1e7)
words = st.sampled_from(["", "a", "b"])
jobs = st.builds(
    Features, user=words, name=words, kind=words, request=words,
    walltime_s=st.one_of(st.just(inf), st.floats(1.0, 1e7)),
)  # fmt: skip
histories = st.lists(st.tuples(jobs, times), max_size=12)


def a_job(name: str = "run-1", walltime_s: float = 3600.0, **fields: str) -> Features:
    given = {"user": "ann", "kind": "k", "request": "1 core", **fields}
    return Features(name=name, walltime_s=walltime_s, **given)


def after(history: Sequence[tuple[Features, float]]) -> RunTimes:
    known = RunTimes()
    for job, run_s in history:
        known.add(job, run_s)
    return known


def test_the_mean_of_the_users_last_two_run_times() -> None:
    known = after([(a_job(), 500.0), (a_job(kind="other"), 100.0), (a_job("x"), 200.0)])
    assert predict("last_two", a_job(), known.newest) == (150.0, "last_two")
    assert predict("last_two", a_job(user="bob"), known.newest) == (3600.0, "walltime")


def test_two_run_times_are_needed_and_without_a_walltime_nothing_is_known() -> None:
    known = after([(a_job(), 100.0)])
    assert predict("last_two", a_job(), known.newest) == (3600.0, "walltime")
    assert predict("last_two", a_job(walltime_s=inf), known.newest) == (inf, "")
    assert predict("data_driven", a_job(user="", kind=""), known.newest) == (3600.0, "walltime")


def test_no_prediction_exceeds_the_walltime() -> None:
    known = after([(a_job(), 5000.0), (a_job(), 7000.0)])
    for predictor in PREDICTORS:
        assert predict(predictor, a_job(), known.newest).run_s == 3600.0


def test_numbers_in_a_name_do_not_count() -> None:
    first, second = (
        Features.of(user="u", name=name, kind="k", amounts={}, steps=0.0, walltime_s=inf)
        for name in ("run-7", "run-12")
    )
    assert first == second


def test_a_request_does_not_depend_on_the_order_of_resources() -> None:
    found = {
        Features.of(user="u", name="n", kind="k", amounts=dict(of), steps=0.0, walltime_s=60.0)
        for of in permutations({"cores": 2.0, "mic": 1.0, "gpus": 0.0}.items())
    }
    assert [job.request for job in found] == ["cores=2 mic=1 walltime=60"]


@given(histories, jobs)
def test_data_driven_takes_the_most_specific_group_with_a_run_time(
    history: list[tuple[Features, float]], job: Features
) -> None:
    found = predict("data_driven", job, after(history).newest)
    for fields in LEVELS:
        alike = [
            run_s
            for other, run_s in reversed(history)
            if all(getattr(job, f) and getattr(other, f) == getattr(job, f) for f in fields)
        ]
        if alike:
            expected = min(median(alike[:MOST_KEPT]), job.walltime_s)
            assert found == ("+".join(fields), expected)[::-1]
            return
    assert found == ((job.walltime_s, "walltime") if job.walltime_s < inf else Prediction())


@given(histories, jobs, st.sampled_from(PREDICTORS), st.randoms())
def test_jobs_that_share_no_group_do_not_matter(
    history: list[tuple[Features, float]], job: Features, predictor: str, random: object
) -> None:
    own = set(job.groups())
    related = [(other, run_s) for other, run_s in history if own & set(other.groups())]
    strangers = [(other, run_s) for other, run_s in history if not own & set(other.groups())]
    mixed = after([*strangers, *related])
    name = next(p for p in PREDICTORS if p == predictor)
    assert predict(name, job, mixed.newest) == predict(name, job, after(related).newest)


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e7), st.one_of(st.just(inf), st.floats(1.0, 1e7)))
def test_a_job_that_outlives_its_prediction_is_expected_to_go_on(
    run_s: float, ran_s: float, walltime_s: float
) -> None:
    run_s = min(run_s, walltime_s)
    found = still_expected(run_s, ran_s, walltime_s)
    assert run_s <= found <= walltime_s
    if ran_s < run_s:
        assert found == run_s
    elif ran_s < walltime_s:
        assert found > ran_s
        assert found <= max(2.0 * ran_s, 1.0), "it is not expected for ever"


@pytest.mark.parametrize("choices", [Setting.values, [*get_args(get_args(AnyPredictor)[0])]])
def test_clusters_and_simulations_offer_the_same_predictors(choices: list[str]) -> None:
    assert sorted(choices) == sorted(PREDICTORS)
    assert get_args(get_args(AnyPredictor)[1]) == (ORACLE,)
