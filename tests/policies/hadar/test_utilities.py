"""Utilities never grow with the end of a job, and a bad one of one's own is refused."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract.policy import PolicyParameterError, SolverFailedError
from policies.contract.snapshot import Floats
from policies.hadar import utilities
from policies.hadar.utilities import NAMES, JobFacts, register_utility, utility_of, worth_of
from policies.host import registry

BUILT_IN = ("critical_path", "shortest_first", "effective_throughput")


def facts(count: int, **given_: float) -> JobFacts:
    values = {
        "gpus": 1.0, "age_s": 0.0, "best_s": 100.0, "whole_s": 100.0, "shortest_s": 10.0,
        "horizon_s": 1000.0, **given_,
    }  # fmt: skip
    return JobFacts(**{name: np.full(count, value) for name, value in values.items()})


@pytest.mark.parametrize("name", BUILT_IN)
@given(
    durations=st.lists(st.floats(0.0, 1e12), min_size=2, max_size=20),
    age_s=st.floats(0.0, 1e9),
    best_s=st.floats(1.0, 1e9),
)
def test_worth_never_grows_with_the_duration(
    name: str, durations: list[float], age_s: float, best_s: float
) -> None:
    rising = np.array(sorted(durations))
    of_jobs = facts(len(rising), age_s=age_s, best_s=best_s, whole_s=best_s, horizon_s=2.0 * best_s)
    worth = worth_of(name, rising, of_jobs)
    assert np.all(np.diff(worth) <= 0.0)


@pytest.mark.parametrize("name", BUILT_IN)
def test_worth_does_not_depend_on_the_models_steps(name: str) -> None:
    # Facts are seconds and GPUs: a kind with a thousand times the steps has the same ones.
    fields = JobFacts.__dataclass_fields__
    assert not [field for field in fields if "step" in field]
    assert utility_of(name)(np.array([10.0]), facts(1)).shape == (1,)


def test_a_job_on_the_critical_path_is_worth_as_much_as_the_shortest() -> None:
    longest = facts(1, best_s=1000.0)
    shortest = facts(1, best_s=10.0)
    of_longest = worth_of("critical_path", np.array([1000.0]), longest)
    of_shortest = worth_of("critical_path", np.array([10.0]), shortest)
    assert of_longest[0] == pytest.approx(of_shortest[0], rel=0.02)


def test_a_job_with_slack_is_worth_what_its_end_is() -> None:
    worth = worth_of("critical_path", np.array([100.0]), facts(1, best_s=100.0, horizon_s=1e5))
    assert worth[0] == pytest.approx(1.0 / 100.0, rel=0.01)


def _growing(duration_s: Floats, jobs: JobFacts) -> Floats:
    return duration_s


def _negative(duration_s: Floats, jobs: JobFacts) -> Floats:
    return -duration_s


def _no_number(duration_s: Floats, jobs: JobFacts) -> Floats:
    return duration_s * np.nan


def _one_number(duration_s: Floats, jobs: JobFacts) -> Floats:
    return np.ones(1)


def _linear(duration_s: Floats, jobs: JobFacts) -> Floats:
    worth: Floats = np.maximum(1e6 - duration_s, 0.0)
    return worth


@pytest.fixture
def own_utilities(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(utilities, "UTILITIES", dict(utilities.UTILITIES))
    before = list(NAMES)
    yield
    NAMES[:] = before


@pytest.mark.parametrize(
    ("utility", "problem"),
    [
        (_growing, "must not grow"),
        (_negative, "at least 0"),
        (_no_number, "finite"),
        (_one_number, "one number for each"),
    ],
)
@pytest.mark.usefixtures("own_utilities")
def test_a_utility_that_breaks_the_rules_is_refused(
    utility: utilities.Utility, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        register_utility("mine", utility)
    assert "mine" not in NAMES


@pytest.mark.usefixtures("own_utilities")
def test_a_known_name_is_not_registered_again() -> None:
    with pytest.raises(ValueError, match="is known"):
        register_utility("shortest_first", _linear)


@pytest.mark.usefixtures("own_utilities")
def test_a_registered_utility_can_be_chosen() -> None:
    register_utility("linear", _linear)
    assert registry.make("hadar", {"utility": "linear"}) is not None
    assert "linear" in registry.schema("hadar")["properties"]["utility"]["enum"]


def test_an_unknown_utility_is_refused_by_name() -> None:
    with pytest.raises(PolicyParameterError, match="utility: must be one of critical_path"):
        registry.make("hadar", {"utility": "greed"})
    with pytest.raises(PolicyParameterError, match="critical_path"):
        utility_of("greed")


def test_an_eta_of_zero_is_refused_by_name() -> None:
    with pytest.raises(PolicyParameterError, match="eta: must be"):
        registry.make("hadar", {"eta": 0.0})


@pytest.mark.usefixtures("own_utilities")
def test_a_utility_that_fails_in_a_round_is_an_error() -> None:
    utilities.UTILITIES["bad"] = _no_number
    with pytest.raises(SolverFailedError, match="utility bad"):
        worth_of("bad", np.array([1.0]), facts(1))
