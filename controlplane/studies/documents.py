"""Studies that users ask for, checked, with live clusters and histories written out.

A study from the network may name no file of the server and run no code: traces come as text,
policies are the registered ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from clusters.models import Cluster
from controlplane.simulation.cluster.accasim import cluster_of_accasim, is_accasim
from controlplane.simulation.study.document import FIELDS, Study, StudyError
from controlplane.simulation.workloads import TYPES, WorkloadError
from controlplane.studies.live_cluster import cluster_spec, history, queue
from controlplane.studies.what_if.turns import TURNS
from controlplane.web import nice_process
from controlplane.web.bounded_data import FIXED
from controlplane.web.rest.errors import NoAnswerError
from controlplane.web.storage.packed_json import pack
from jobs.models import Team

LIVE = ("history", "queue")
"""Workloads that are written out from a live cluster."""

MOST_RUNS = 200
MOST_JOBS = 1_000_000
MOST_NODES = 10_000
MOST_GPUS = 100_000
MOST_BANDS, MOST_CLUSTER_DAYS = 48, 400
MOST_DAYS = 366
SHORT = 10_000
"""Characters that a web process reads itself; more the nice process, which can be ended."""

TRIED_CHARACTERS = 256 * 1024
"""Longest trace that is checked at submission (tens of milliseconds); longer ones fail later."""


class StudyDocumentError(ValueError):
    """Invalid study; `fields` holds messages by field."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        said = (f"{name}: {message}" for name, found in fields.items() for message in found)
        super().__init__("; ".join(said))
        self.fields = fields

    def __reduce__(self) -> tuple[type, tuple[dict[str, list[str]]]]:
        return type(self), (self.fields,)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Study to run, packed as it is stored, and its summary: cluster, workload, policies, runs."""

    name: str
    document: Mapping[str, Any]
    summary: Mapping[str, Any]


def resolved(user: User, asked: Mapping[str, Any], team: Team | None = None) -> Resolved:
    """Resolve a user's study, for the members of `team` to read. StudyDocumentError, BusyError.

    What is long, or live and so perhaps long, the nice process resolves.
    """
    try:
        if _length(asked) > SHORT or _is_live(asked):
            with TURNS.of(user.pk):
                return nice_process.ask(_resolved, user, asked, team)
        return _resolved(user, asked, team)
    except StudyError as error:
        raise StudyDocumentError(_by_field(str(error))) from None
    except RecursionError:
        raise StudyDocumentError({"study": ["is nested too deeply"]}) from None
    except NoAnswerError as error:
        raise StudyDocumentError({"study": [str(error.detail)]}) from None


def _is_live(asked: Mapping[str, Any]) -> bool:
    cluster, workload = asked.get("cluster"), asked.get("workload")
    written_out = isinstance(workload, Mapping) and workload.get("type") in LIVE
    return written_out or (isinstance(cluster, Mapping) and "live" in cluster)


def _resolved(user: User, asked: Mapping[str, Any], team: Team | None) -> Resolved:
    given, start_s = dict(asked), None
    if isinstance(workload := given.get("workload"), Mapping):
        cluster = given.get("cluster")
        if workload.get("type") in LIVE and isinstance(cluster, Mapping) and "live" in cluster:
            workload = {"cluster": cluster["live"], **workload}
        given["workload"] = _workload(user, workload, team)
        if workload.get("type") == "history":  # at the prices of its first job's submission
            start_s = min(job["arrival_s"] for job in given["workload"]["jobs"])
    if isinstance(cluster := given.get("cluster"), Mapping):
        given["cluster"] = _cluster(user, cluster, start_s, team)
    return _read(given, asked)


def _read(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Resolved:
    study = Study.of(given)
    runs = len(study.policies) * len(study.seeds)
    if runs > MOST_RUNS:
        problem = f"{runs} runs (policies times seeds) are too many here; at most {MOST_RUNS};"
        problem += f" {FIXED}"
        raise StudyDocumentError({"seeds": [problem]})
    _try_trace(study)
    name, document = str(study.document["name"])[:100], pack(study.document)
    return Resolved(name, document, _summary(study, asked))


def _cluster(
    user: User, spec: Mapping[str, Any], start_s: float | None, team: Team | None
) -> Mapping[str, Any]:
    if is_accasim(spec):
        try:
            spec = cluster_of_accasim(spec)
        except ValueError as error:
            raise StudyError(f"cluster.{error}") from None
    if "live" not in spec:
        _check_cluster(spec)
        return spec
    if extra := sorted(set(spec) - {"live"}):
        raise StudyError(
            f"cluster.{extra[0]}: cannot be given with `live`, which takes everything from the live"
            " cluster"
        )
    return cluster_spec(user, _named(spec["live"], "cluster.live"), start_s, team)


def _check_cluster(spec: Mapping[str, Any]) -> None:
    """Check sizes before anything is built of them."""
    nodes = [node for node in _items(spec.get("nodes")) if isinstance(node, Mapping)]
    counts = [(_count(node.get("count", 1)), _count(node.get("gpus", 1))) for node in nodes]
    gpus = sum(count * gpus for count, gpus in counts)
    if sum(count for count, _ in counts) > MOST_NODES or gpus > MOST_GPUS:
        most = f"{MOST_NODES:,} nodes with {MOST_GPUS:,} GPUs"
        raise StudyError(f"cluster.nodes: at most {most} are simulated here; {FIXED}")
    energy = spec.get("energy")
    by_hour = _items(energy.get("by_hour")) if isinstance(energy, Mapping) else ()
    bands = max(len(by_hour), len(_items(spec.get("power_caps"))))
    if bands > MOST_BANDS or _count(spec.get("days", 1)) > MOST_CLUSTER_DAYS:
        most = f"{MOST_BANDS} prices or caps by hour for {MOST_CLUSTER_DAYS} days"
        raise StudyError(f"cluster.energy: at most {most} are taken; {FIXED}")


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _workload(user: User, spec: Mapping[str, Any], team: Team | None) -> Mapping[str, Any]:
    if (of := spec.get("type")) in LIVE:
        cluster = _named(spec.get("cluster"), "workload.cluster")
        return live_workload(user, spec, cluster, team=team)
    for field, most in (("jobs", MOST_JOBS), ("nodes", MOST_NODES)):
        wanted = spec.get(field)
        if isinstance(wanted, int) and wanted > most:
            said = f"must be at most {most:,} here, not {wanted:,}; {FIXED}"
            raise StudyError(f"workload.{field}: {said}")
    if not isinstance(of, str) or of not in TYPES:
        known = ", ".join((*TYPES, *LIVE))
        raise StudyError(f"workload.type: must be one of {known}, not {of!r:.60}")
    return spec


def live_workload(
    user: User,
    spec: Mapping[str, Any],
    cluster: Cluster,
    most_days: int = MOST_DAYS,
    team: Team | None = None,
) -> dict[str, Any]:
    """A cluster's queue or history as a workload. StudyError if the user may see no job of it.

    With `team`, whose members are to read it, its jobs alone.
    """
    of, days = spec["type"], spec.get("days", 7)
    known = ("cluster", "days") if of == "history" else ("cluster",)
    if extra := sorted(set(spec) - {"type", *known}):
        raise StudyError(
            f"workload.{extra[0]}: no such option of a {of}; known are: {', '.join(known)}"
        )
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= most_days:
        raise StudyError(
            f"workload.days: must be more than 0 and at most {most_days}, not {days!r:.60}"
        )
    if of == "history":
        found = history(user, cluster, float(days), team)
        which = f"was submitted in the last {days:g} days"
    else:
        found, which = queue(user, cluster, team), "waits or runs now at a speed that is known"
    if not found["jobs"]:
        none = f"there is no job of the team {team} on" if team else "you may see no job of"
        raise StudyError(f"workload: {none} {cluster.name} that {which}")
    return found


def _named(name: object, field: str) -> Cluster:
    is_name = isinstance(name, str) and "\0" not in name
    found = Cluster.objects.filter(name=name).first() if is_name else None
    if found is None:
        known = ", ".join(Cluster.objects.order_by("name").values_list("name", flat=True))
        raise StudyError(
            f"{field}: must be the name of a cluster, not {name!r:.60}; known are:"
            f" {known or 'none yet'}"
        )
    return found


def _length(asked: Mapping[str, Any]) -> int:
    """Characters of the study. StudyError for text that no database takes."""
    try:
        text = json.dumps(asked, ensure_ascii=False, default=str)
        text.encode()
    except UnicodeEncodeError:
        raise StudyError("study: holds characters that are no text") from None
    except ValueError as error:
        raise StudyError(f"study: {error}") from None
    if "\\u0000" in text:
        with_nul = [name for name, value in asked.items() if "\\u0000" in json.dumps(value)]
        raise StudyError(f"{with_nul[0] if with_nul else 'study'}: holds the character NUL")
    return len(text)


def _try_trace(study: Study) -> None:
    text = study.workload.get("text")
    if isinstance(text, str) and len(text) <= TRIED_CHARACTERS:
        try:
            study.load(study.seeds[0])
        except WorkloadError as error:
            lines = [line.strip() for line in str(error).splitlines()]
            raise StudyDocumentError({"workload": lines}) from None


def _by_field(message: str) -> dict[str, list[str]]:
    place, _, rest = message.partition(": ")
    field = place.partition(".")[0].partition("[")[0]
    if field not in FIELDS:
        return {"study": [message]}
    return {field: [rest if place == field else message]}


def _summary(study: Study, asked: Mapping[str, Any]) -> dict[str, Any]:
    cluster, nodes, jobs = asked["cluster"], study.scenario.nodes, study.workload.get("jobs")
    count = len(jobs) if isinstance(jobs, list) else jobs
    return {
        "cluster": str(cluster.get("live") or study.scenario.cluster)[:100],
        "live": "live" in cluster,
        "nodes": len(nodes),
        "gpus": sum(len(node.devices) for node in nodes),
        "workload": str(asked["workload"].get("type"))[:40],
        "jobs": count,
        "policies": [choice.label[:100] for choice in study.policies],
        "seeds": len(study.seeds),
        "runs": len(study.policies) * len(study.seeds),
        "switches": list(study.switches.turned_on),
    }
