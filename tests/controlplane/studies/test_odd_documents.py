"""Studies with an odd value at any place are read or refused by name, never an error of ours."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.studies.documents import StudyDocumentError, resolved
from policies.contract.snapshot_json import to_json
from tests.builders import a_cluster, a_node, a_user
from tests.builders_policies import a_job, a_kind, a_snapshot
from tests.builders_studies import a_study

pytestmark = pytest.mark.django_db
Place = tuple[str | int, ...]
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 1e308, 10**400, "", "x", "\0", "nan", [], ["x"], [[]], {}, {"x": 1},
]  # fmt: skip


def _jobs() -> dict[str, Any]:
    form = to_json(a_snapshot(jobs=[a_job("a", kind="k"), a_job("b", kind="k")], kinds=[a_kind()]))
    first, second = form["jobs"]
    rules = {"on_walltime": "kill", "array": "sweep", "dependencies": {"a": "afterany"}}
    jobs = [first, {**second, **rules}]
    return {"type": "jobs", "jobs": jobs, "kinds": form["kinds"], "arrays": {"sweep": 2}}


SWF = "1 0 10 100 4 -1 -1 4 3600 -1 1 5 2 -1 1 0 -1 -1\n"
CLUSTER = {
    "nodes": [{
        "name": "v", "gpu_type": "V100", "gpus": 2, "count": 2, "cores": 8, "labels": ["fast"],
        "power": {"base_w": 300, "peak_w": 200}, "resources": {"mic": 1},
    }],
    "energy": {"price_per_kwh": 0.2, "by_hour": [{"from_hour": 8, "to_hour": 20}]},
    "power_caps": [{"from_hour": 8, "to_hour": 20, "power_cap_w": 900}],
    "teams": [{"name": "vision", "weight": 2}],
}  # fmt: skip
STUDIES: dict[str, dict[str, Any]] = {
    "poisson": {"cluster": CLUSTER, "switches": {"launch_s": 3, "decision_times": [[1, 2.0]]}},
    "andreas": {"workload": {"type": "andreas"}},
    "kit": {"workload": {"type": "kit", "jobs": 5}},
    "gavel": {"workload": {"type": "gavel", "text": "x\n"}},
    "csv": {"workload": {"type": "csv", "text": "arrival_s,run_s\n0,1\n", "columns": {}}},
    "swf": {"workload": {"type": "swf", "text": SWF, "speeds": {"V100": 1.0}}},
    "jobs": {"workload": _jobs()},
    "live": {"cluster": {"live": "lab"}, "workload": {"type": "history", "days": 1}},
    "queue": {"cluster": {"live": "lab"}, "workload": {"type": "queue"}},
    "policies": {"policies": [{"name": "randomized_greedy", "parameters": {"rho": 1.5}}]},
}


def places(value: object, before: Place = ()) -> Iterator[Place]:
    """Paths of all values within a value."""
    if before:
        yield before
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*before, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*before, index))


def put(document: dict[str, Any], place: Place, value: object) -> dict[str, Any]:
    """A copy with a value at this place."""
    changed: Any = copy.deepcopy(document)
    at = changed
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    return dict(changed)


@pytest.fixture(name="ada")
def _ada() -> User:
    a_node(a_cluster(name="lab"))
    return a_user("ada")


def refusal(user: User, document: dict[str, Any]) -> dict[str, list[str]]:
    """Messages by field against a study, none if it is taken."""
    try:
        resolved(user, document)
    except StudyDocumentError as error:
        return error.fields
    return {}


@pytest.mark.slow  # two minutes
@pytest.mark.parametrize("name", STUDIES)
def test_odd_value_anywhere_in_a_study_is_refused_by_name(ada: User, name: str) -> None:
    document = a_study(**STUDIES[name])
    always = refusal(ada, document)
    for place in places(document):
        for value in ODD:
            found = refusal(ada, put(document, place, value))
            if found != always:
                assert str(place[0]) in json.dumps(found), (place, value, found)


TYPES = [["x"], {"x": 1}, None, True, 7, "\0"]


@pytest.mark.parametrize("value", TYPES, ids=str)
@pytest.mark.parametrize("field", ["cluster", "workload"])
def test_type_or_name_that_is_no_text_is_refused(ada: User, field: str, value: object) -> None:
    names = {"cluster": "live", "workload": "type"}
    assert field in refusal(ada, a_study(**{field: {names[field]: value}}))


@pytest.mark.parametrize("name", [n for n in STUDIES if n not in ("live", "queue")])
def test_unknown_name_in_any_object_of_a_study_is_refused(ada: User, name: str) -> None:
    document = a_study(**STUDIES[name])
    # Jobs and kinds have a snapshot's form, whose readers leave out what newer versions add.
    open_objects = {
        "jobs",
        "kinds",
        "speeds",
        "columns",
        "resources",
        "parameters",
        "arrays",
        "dependencies",
    }
    for place in places(document):
        at: Any = document
        for part in place:
            at = at[part]
        if isinstance(at, dict) and not open_objects & set(place):
            found = refusal(ada, put(document, (*place, "no_such_field"), 1))
            assert "no_such_field" in json.dumps(found), place
