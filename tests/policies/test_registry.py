"""Policies by name: known ones, parameters with ranges, and third parties that may be broken."""

from importlib.metadata import EntryPoint
from pathlib import Path

import jsonschema
import pytest

from policies.contract.policy import PolicyError, PolicyParameterError, UnknownPolicyError
from policies.host import registry
from tests.builders_policies import a_snapshot

IDLE = """
from __future__ import annotations
from dataclasses import dataclass
from loadmaster.policy_api import Plan, PlanStatus, Snapshot, parameter

@dataclass(frozen=True)
class Idle:
    '''Places nothing.

    More about it.
    '''

    patience: float = parameter(1.5, meaning="how long", minimum=0.0, maximum=9.0)
    eager: bool = parameter(False, meaning="or not")

    def __call__(self, snapshot: Snapshot) -> Plan:
        return Plan("idle", PlanStatus.KEPT, message=f"{self.patience} {self.eager}")

number = 3
"""


@pytest.fixture
def third_parties(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A good policy, one that cannot be imported, one that is no policy, and one that takes a known
    name.
    """
    (tmp_path / "somebodys_policies.py").write_text(IDLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    values = {
        "idle": "somebodys_policies:Idle",
        "gone": "no_such_module:X",
        "odd": "somebodys_policies:number",
        "fifo": "somebodys_policies:Idle",
    }
    found = [EntryPoint(name, value, registry.GROUP) for name, value in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)


def test_the_four_policies_of_the_house_are_known_by_name() -> None:
    assert registry.names()[:4] == ("cost_search", "randomized_greedy", "fifo", "edf")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownPolicyError,
        match=r"'lifo': no such policy; known are: cost_search, randomized_greedy",
    ):
        registry.make("lifo")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"speed": 1}, "speed: no such parameter; known are: mode, iterations"),
        ({"mode": "best"}, "mode: must be one of paper, coded, not 'best'"),
        ({"iterations": -1}, "iterations: must be >= 0, not -1"),
        ({"iterations": 2.5}, "iterations: must be of type integer, not 2.5"),
        ({"iterations": True}, "iterations: must be of type integer, not True"),
        ({"alpha": 1.5}, "alpha: must be <= 1.0, not 1.5"),
        ({"rho": float("nan")}, "rho: must be a finite number, not nan"),
        ({"rho": "100"}, "rho: must be a finite number, not '100'"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_would_be_right(
    parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(PolicyParameterError) as raised:
        registry.make("randomized_greedy", parameters)
    assert str(raised.value).startswith(message)


def test_retired_parameters_of_stored_clusters_are_left_out() -> None:
    stored = {"pass_s": 70_000.0, "limit_backlog": 2.0, "search": "packing", "patience": 0.5}
    registry.check("area_backfilling", stored)
    made = registry.make("area_backfilling", stored)
    assert made == registry.make("area_backfilling", {"patience": 0.5})


def test_a_whole_number_will_do_for_a_fraction() -> None:
    assert registry.make("randomized_greedy", {"rho": 10}) == registry.make(
        "randomized_greedy", {"rho": 10.0}
    )


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_parameter_has_type_default_and_meaning_in_a_valid_schema(name: str) -> None:
    schema = registry.schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    defaults = {key: of["default"] for key, of in schema["properties"].items()}
    jsonschema.validate(defaults, schema)
    assert all(of["description"] and of["type"] for of in schema["properties"].values())
    assert registry.make(name, defaults) == registry.make(name)


@pytest.mark.usefixtures("third_parties")
def test_a_third_partys_policy_is_made_by_its_name() -> None:
    plan = registry.make("idle", {"patience": 2, "eager": True})(a_snapshot())
    assert plan.message == "2.0 True"


@pytest.mark.usefixtures("third_parties")
def test_a_broken_third_party_is_listed_with_its_error_and_stops_nobody() -> None:
    listed = {e.name: (e.summary, e.error is not None, e.third_party) for e in registry.entries()}
    assert listed["idle"] == ("Places nothing.", False, True)
    assert listed["gone"] == ("", True, True)
    assert listed["odd"] == ("", True, True)
    assert listed["edf"][1:] == (False, False)


@pytest.mark.usefixtures("third_parties")
def test_asking_for_a_broken_third_party_says_what_is_wrong_with_it() -> None:
    with pytest.raises(
        PolicyError, match=r"'gone'.*ModuleNotFoundError: No module named 'no_such_module'"
    ):
        registry.make("gone")


@pytest.mark.usefixtures("third_parties")
def test_a_third_party_cannot_take_the_name_of_a_policy_of_the_house() -> None:
    assert registry.names().count("fifo") == 1
    assert type(registry.make("fifo")).__module__ == "policies.baselines.fifo"
