"""What every policy keeps to, with parameters other than its defaults: `test_contract` once more,
and shared devices.
"""

from collections.abc import Callable
from inspect import signature

import pytest

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
    ("hadar", {"exact_up_to": 0}),
    ("hadar", {"utility": "effective_throughput", "fill": False}),
    ("tiresias", {"threshold_s": 0.0}),
)
CHECKS = {
    name: check
    for name, check in vars(contract).items()
    if name.startswith("test_")
    and list(signature(check).parameters) in (["name"], ["name", "parameters"])
}
every_variant = pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=contract._name_of)


@every_variant
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_they_pass_every_check_of_the_contract(
    check: Callable[..., None], name: str, parameters: dict[str, object]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(contract.FEW, name, parameters)
        check(name, {}) if "parameters" in signature(check).parameters else check(name)
