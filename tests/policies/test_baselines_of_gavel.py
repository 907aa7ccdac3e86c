"""AlloX and Gandiva keep to what every policy keeps to: the checks of `test_contract`, whether they are registered yet or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from policies import registry
from policies.snapshot import Snapshot
from tests.builders_snapshots import snapshots
from tests.builders_tandems import wide_snapshots
from tests.policies import test_contract as contract

PLACES = {"allox": "policies.allox:AlloX", "gandiva": "policies.gandiva:Gandiva"}
VARIANTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("allox", {}),
    ("allox", {"started": "move"}),
    ("allox", {"started": "move", "alpha": 0.0, "most": 3}),
    ("gandiva", {}),
    ("gandiva", {"packing": False, "rotate": False}),
)
CHECKS = {
    name: check
    for name, check in vars(contract).items()
    if name.startswith("test_")
    and not hasattr(check, "hypothesis")
    and list(signature(check).parameters) in (["name"], ["name", "parameters"])
}
every_variant = pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=contract._name_of)
many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, **PLACES})
        yield


@every_variant
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_they_pass_every_check_of_the_contract(check: Callable[..., None], name: str, parameters: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(contract.FEW, name, parameters)
        check(name, {}) if "parameters" in signature(check).parameters else check(name)


@every_variant
@many
@given(snapshot=snapshots())
def test_a_plan_beside_profile_runs_breaks_no_rule(name: str, parameters: dict[str, object], snapshot: Snapshot) -> None:
    _inner(contract.test_a_plan_beside_profile_runs_breaks_no_rule)(name, parameters, snapshot)


@every_variant
@many
@given(snapshot=snapshots())
def test_the_same_snapshot_gives_the_same_plan_and_stays_as_it_was(
    name: str, parameters: dict[str, object], snapshot: Snapshot
) -> None:
    _inner(contract.test_the_same_snapshot_gives_the_same_plan_and_stays_as_it_was)(name, parameters, snapshot)


@every_variant
@many
@given(snapshot=wide_snapshots())
def test_a_plan_for_devices_that_jobs_share_breaks_no_rule(name: str, parameters: dict[str, object], snapshot: Snapshot) -> None:
    _inner(contract.test_a_plan_beside_profile_runs_breaks_no_rule)(name, parameters, snapshot)


@many
@given(snapshot=snapshots())
def test_allox_never_touches_a_started_job_that_may_stay_unless_it_is_told_to(snapshot: Snapshot) -> None:
    _inner(contract.test_a_baseline_never_touches_a_started_job_that_may_stay)("allox", snapshot)


def _inner(test: Any) -> Callable[..., None]:
    """What a test of hypothesis does with one example."""
    inner: Callable[..., None] = test.hypothesis.inner_test
    return inner
