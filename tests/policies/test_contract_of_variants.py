"""What every policy keeps to, with parameters other than its defaults: `test_contract` once more,
and shared devices.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from policies.contract.snapshot import Snapshot
from tests.builders_snapshots import snapshots
from tests.builders_tandems import wide_snapshots
from tests.policies import test_contract as contract

Variant = tuple[str, dict[str, object]]

BY_SHARES = (
    "max_min_fairness", "finish_time_fairness", "makespan", "fifo_shares", "shortest_first",
    "max_throughput", "min_cost",
    "hierarchical",
)  # fmt: skip


def _each(**parameters: object) -> list[Variant]:
    return [(name, parameters) for name in BY_SHARES]


VARIANTS: tuple[Variant, ...] = (
    ("allox", {"started": "move"}),
    ("allox", {"started": "move", "alpha": 0.0, "most": 3}),
    ("gandiva", {"packing": False, "rotate": False}),
    *_each(form="agnostic"),
    *_each(form="sharing", spread=True),
    ("max_min_fairness", {"weighted": False, "fill": False}),
    ("finish_time_fairness", {"fill": False}),
    ("makespan", {"fill": False}),
    ("min_cost", {"objective": "published", "floor": 0.0, "fill": True}),
    ("min_cost", {"slos": True, "floor": 0.0}),
    ("hierarchical", {"inside": "fifo"}),
)
SHARING: tuple[Variant, ...] = (
    ("gandiva", {}),
    *(v for v in VARIANTS if v[1].get("form") == "sharing"),
    *VARIANTS[:2],
)
CHECKS = {
    name: check
    for name, check in vars(contract).items()
    if name.startswith("test_")
    and not hasattr(check, "hypothesis")
    and list(signature(check).parameters) in (["name"], ["name", "parameters"])
}
every_variant = pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=contract._name_of)
many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@every_variant
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_they_pass_every_check_of_the_contract(
    check: Callable[..., None], name: str, parameters: dict[str, object]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(contract.FEW, name, parameters)
        check(name, {}) if "parameters" in signature(check).parameters else check(name)


@every_variant
@many
@given(snapshot=snapshots())
def test_a_plan_beside_profile_runs_breaks_no_rule(
    name: str, parameters: dict[str, object], snapshot: Snapshot
) -> None:
    _inner(contract.test_a_plan_beside_profile_runs_breaks_no_rule)(name, parameters, snapshot)


@every_variant
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_the_same_snapshot_gives_the_same_plan_and_stays_as_it_was(
    name: str, parameters: dict[str, object], snapshot: Snapshot
) -> None:
    _inner(contract.test_the_same_snapshot_gives_the_same_plan_and_stays_as_it_was)(
        name, parameters, snapshot
    )


@pytest.mark.parametrize(("name", "parameters"), SHARING, ids=contract._name_of)
@many
@given(snapshot=wide_snapshots())
def test_a_plan_for_devices_that_jobs_share_breaks_no_rule(
    name: str, parameters: dict[str, object], snapshot: Snapshot
) -> None:
    _inner(contract.test_a_plan_beside_profile_runs_breaks_no_rule)(name, parameters, snapshot)


@many
@given(snapshot=snapshots())
def test_allox_never_touches_a_started_job_that_may_stay_unless_it_is_told_to(
    snapshot: Snapshot,
) -> None:
    _inner(contract.test_a_baseline_never_touches_a_started_job_that_may_stay)("allox", snapshot)


def _inner(test: Any) -> Callable[..., None]:
    """What a test of hypothesis does with one example."""
    inner: Callable[..., None] = test.hypothesis.inner_test
    return inner
