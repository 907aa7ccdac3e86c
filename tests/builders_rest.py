"""Calls of the REST API, as its OpenAPI document lists them, and rows that they can name."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from jobs.models import JobArray, TeamRole
from jobs.secrets import set_secret
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import api, job_fields
from tests.builders_studies import a_done_simulation, a_study

SERIES = "start,price_per_kwh\n2030-01-01T00:00Z,0.2\n2030-01-01T01:00Z,-0.05\n"
PASSWORD = "violet harbour trombone"
Path = tuple[str | int, ...]
"""Names and indices that lead to a value within a body."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of the document: its query parameters, and the schema of its body."""

    method: str
    path: str
    parameters: tuple[str, ...]
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def objects(self) -> list[Path]:
        """Fields that hold objects with fields of their own, by their path."""
        return list(_objects(self.fields, ()))

    def places(self) -> list[Path]:
        """Fields of the body, and fields of objects within it, by their path."""
        return list(_places(self.fields, ()))


@cache
def _document() -> dict[str, Any]:
    generator: Any = SchemaGenerator  # the library's signatures lack types
    return dict(generator().get_schema(request=None, public=True))


def calls() -> list[Call]:
    """Every call for people under /api/v1/."""
    found = list[Call]()
    for path, methods in _document()["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/api/v1/"):
                parameters = operation.get("parameters", ())
                names = tuple(p["name"] for p in parameters if p["in"] == "query")
                found.append(Call(method, path, names, _fields(operation)))
    return found


def _fields(operation: dict[str, Any]) -> dict[str, Any]:
    """Schemas of a body's fields by name."""
    if "requestBody" not in operation:
        return {}
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return dict(_resolved(schema)["properties"])


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference means."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            return dict(_document()["components"]["schemas"][name])
    return schema


def _objects(fields: dict[str, Any], before: Path) -> Iterator[Path]:
    for name, schema in fields.items():
        place: Path = (*before, name)
        inner = _resolved(schema)
        if inner.get("type") == "array":
            place = (*place, 0)
            inner = _resolved(inner["items"])
        if "properties" in inner:
            yield place
            yield from _objects(inner["properties"], place)


def _places(fields: dict[str, Any], before: Path) -> Iterator[Path]:
    for name, schema in fields.items():
        place: Path = (*before, name)
        yield place
        inner = _resolved(schema)
        if inner.get("type") == "array":
            place = (*place, 0)
            yield place
            inner = _resolved(inner["items"])
        yield from _places(inner.get("properties", {}), place)


class RestWorld:
    """A cluster with rows of every sort; `send` makes a call as an operator who is in the team."""

    def __init__(self) -> None:
        self.cluster = a_cluster(name="lab")
        self.node = a_node(self.cluster, gpus=2, cores=16)
        self.team = a_team("research")
        self.member = a_user("ada", team=self.team)
        self.person = a_user("grace", team=self.team, operator=True, role=TeamRole.MAINTAINER)
        self.person.set_password(PASSWORD)
        self.person.save()
        set_secret(self.team, "wandb", "a secret value")
        self.job = a_job(self.cluster, team=self.team, user=self.person, state="held")
        self.array = JobArray.objects.create(indices="0", size=1, lowest=0, highest=0)
        a_job(self.cluster, team=self.team, user=self.person, array=self.array, array_index=0)
        self.simulation = a_done_simulation(self.person)
        self.operator: APIClient = api(self.person)

    def send(self, call: Call, *, body: object = None, query: dict[str, str] | None = None) -> Any:
        """The answer to a call: with a query, or with a body."""
        if query is not None:
            pairs = "&".join(f"{name}={value}" for name, value in query.items())
            url = f"{self._url(call.path)}?{pairs}"
            text = json.dumps(self.body(call)) if call.fields else ""
            return self.operator.generic(call.method.upper(), url, text, "application/json")
        return self.send_text(call, json.dumps(self.body(call) if body is None else body))

    def send_text(self, call: Call, text: str) -> Any:
        """The answer to a call with this text as its body."""
        url = self._url(call.path)
        return self.operator.generic(call.method.upper(), url, text, "application/json")

    def body(self, call: Call) -> dict[str, Any]:
        """The least that the call takes."""
        bodies: dict[str, dict[str, Any]] = {
            "post /api/v1/tokens/": {"username": "grace", "password": PASSWORD},
            "post /api/v1/enrolment-tokens/": {"cluster": "lab"},
            "post /api/v1/nodes/{id}/role/": {"role": "both"},
            "post /api/v1/nodes/{id}/slots/": {"slots": 1},
            "post /api/v1/jobs/": job_fields(),
            "post /api/v1/job-forecasts/": job_fields(),
            "post /api/v1/jobs/bulk/": {"jobs": [{"job": job_fields()}]},
            "post /api/v1/simulations/": a_study(),
            "post /api/v1/clusters/{name}/what-if/": {"policy": "fifo"},
            "post /api/v1/clusters/{name}/what-if/end/": {"choices": [{"policy": "fifo"}]},
            "post /api/v1/clusters/{name}/tariffs/": {"csv": SERIES},
            "put /api/v1/teams/{team}/secrets/{name}/": {"value": "secret"},
        }
        return bodies.get(str(call), {})

    def body_with(self, call: Call, path: Path, value: object) -> dict[str, Any]:
        """The least body with a value at a place in it; lists and objects on the way are made."""
        body: dict[str, Any] = json.loads(json.dumps(self.body(call)))
        at: Any = body
        for name, following in pairwise(path):
            empty: Any = [None] if isinstance(following, int) else {}
            if isinstance(at, dict):
                at = at.setdefault(str(name), empty)
            else:
                at[name] = at[name] if at[name] is not None else empty
                at = at[name]
        if isinstance(value, dict) and isinstance(at, dict) and isinstance(at.get(path[-1]), dict):
            value = {**at[path[-1]], **value}
        at[path[-1]] = value
        return body

    def _url(self, path: str) -> str:
        ids = {
            "/jobs/": self.job.pk, "/nodes/": self.node.pk, "/simulations/": self.simulation.pk,
        }  # fmt: skip
        number = next((str(pk) for part, pk in ids.items() if part in path), "1")
        name = "lab"
        if "/secrets/" in path:
            name = "wandb"
        elif "/gpu-types/" in path:
            name = self.node.type_name
        values = {
            "id": number, "pk": number, "name": name, "team": "research", "username": "ada",
            "array_id": str(self.array.pk), "verb": "hold", "key": "abc",
        }  # fmt: skip
        for parameter, value in values.items():
            path = path.replace(f"{{{parameter}}}", value)
        return path
