"""Studies from users: checks, and live clusters and their jobs written out.

To write out is to replace the name of a live cluster by its nodes, prices and jobs of now, so that
the study stays the same when the cluster changes. A study from the network may name no file of the
server and run no code: traces come as text, and policies are the registered ones.
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
"""Types of workloads that are written out from a live cluster."""

MOST_RUNS = 200
MOST_JOBS = 1_000_000
MOST_NODES = 10_000
MOST_GPUS = 100_000
MOST_BANDS = 48
"""Most prices, or power caps, by hour of a cluster file."""

MOST_CLUSTER_DAYS = 400
"""Most days for which a cluster file repeats its prices and caps."""

MOST_DAYS = 366
"""Most days of a live cluster's history."""

SHORT = 10_000
"""Longest study, in characters, that a web process reads itself.

The nice process reads longer ones, as it can be ended if one takes too long.
"""

TRIED_CHARACTERS = 256 * 1024
"""Longest trace, in characters, that is tried at submission, which takes tens of milliseconds.

Errors of a longer one are found when the study runs.
"""


class StudyDocumentError(ValueError):
    """Invalid study; `fields` holds messages by field."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        problems = []
        for name, messages in fields.items():
            problems += [f"{name}: {message}" for message in messages]
        super().__init__("; ".join(problems))
        self.fields = fields

    def __reduce__(self) -> tuple[type, tuple[dict[str, list[str]]]]:
        return type(self), (self.fields,)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Study to run: its name, the packed document as stored, and the facts that lists show."""

    name: str
    document: Mapping[str, Any]
    summary: Mapping[str, Any]


def resolved(user: User, submitted: Mapping[str, Any], team: Team | None = None) -> Resolved:
    """Check a user's study and write its live parts out. Raises StudyDocumentError or BusyError.

    `team`: team whose members may read the study, too. The nice process does it for a long or live
    study.
    """
    try:
        if _length(submitted) > SHORT or _is_live(submitted):
            with TURNS.of(user.pk):
                return nice_process.ask(_resolved, user, submitted, team)
        return _resolved(user, submitted, team)
    except StudyError as error:
        raise StudyDocumentError(_by_field(str(error))) from None
    except RecursionError:
        raise StudyDocumentError({"study": ["is nested too deeply"]}) from None
    except NoAnswerError as error:
        raise StudyDocumentError({"study": [str(error.detail)]}) from None


def _is_live(submitted: Mapping[str, Any]) -> bool:
    """Return True for a study of which a part is written out from a live cluster."""
    workload = submitted.get("workload")
    if isinstance(workload, Mapping) and workload.get("type") in LIVE:
        return True
    cluster = submitted.get("cluster")
    return isinstance(cluster, Mapping) and "live" in cluster


def _resolved(user: User, submitted: Mapping[str, Any], team: Team | None) -> Resolved:
    """Check the study and write its live parts out. Raises StudyError or StudyDocumentError."""
    study = dict(submitted)
    cluster = submitted.get("cluster")
    workload = submitted.get("workload")
    start_s = None

    # 1. The workload. A live one is of the study's live cluster, unless it names another cluster.
    if isinstance(workload, Mapping):
        is_live = workload.get("type") in LIVE
        if is_live and isinstance(cluster, Mapping) and "live" in cluster:
            workload = {"cluster": cluster["live"], **workload}
        study["workload"] = _workload(user, workload, team)
        if workload.get("type") == "history":
            # The prices of a live cluster begin with the submission of the history's first job.
            start_s = min(job["arrival_s"] for job in study["workload"]["jobs"])

    # 2. The cluster.
    if isinstance(cluster, Mapping):
        study["cluster"] = _cluster(user, cluster, start_s, team)
    return _parse(study, submitted)


def _parse(document: Mapping[str, Any], submitted: Mapping[str, Any]) -> Resolved:
    """Parse a study. `document`: with live parts written out; `submitted`: as the user gave it."""
    study = Study.of(document)
    runs = len(study.policies) * len(study.seeds)
    if runs > MOST_RUNS:
        problem = (
            f"{runs} runs (policies times seeds) are too many here; at most {MOST_RUNS}; {FIXED}"
        )
        raise StudyDocumentError({"seeds": [problem]})
    _try_trace(study)
    name = str(study.document["name"])[:100]
    return Resolved(name, pack(study.document), _summary(study, submitted))


def _cluster(
    user: User, spec: Mapping[str, Any], start_s: float | None, team: Team | None
) -> Mapping[str, Any]:
    """Check a cluster file, or write a live cluster out. Raises StudyError."""
    # 1. A cluster file, of Loadmaster or of AccaSim.
    if is_accasim(spec):
        try:
            spec = cluster_of_accasim(spec)
        except ValueError as error:
            raise StudyError(f"cluster.{error}") from None
    if "live" not in spec:
        _check_cluster(spec)
        return spec

    # 2. A live cluster, which has no other options.
    extra = sorted(set(spec) - {"live"})
    if extra:
        raise StudyError(
            f"cluster.{extra[0]}: cannot be given with `live`, which takes everything from the live"
            " cluster"
        )
    cluster = _named_cluster(spec["live"], "cluster.live")
    return cluster_spec(user, cluster, start_s, team)


def _check_cluster(spec: Mapping[str, Any]) -> None:
    """Check sizes before anything is built of them. Raises StudyError."""
    # 1. Nodes and their GPUs.
    node_count = 0
    gpu_count = 0
    for node in _list_or_empty(spec.get("nodes")):
        if isinstance(node, Mapping):
            count = _positive_or_one(node.get("count", 1))
            node_count += count
            gpu_count += count * _positive_or_one(node.get("gpus", 1))
    if node_count > MOST_NODES or gpu_count > MOST_GPUS:
        most = f"{MOST_NODES:,} nodes with {MOST_GPUS:,} GPUs"
        raise StudyError(f"cluster.nodes: at most {most} are simulated here; {FIXED}")

    # 2. Prices and power caps, which are repeated each day.
    energy = spec.get("energy")
    prices: Sequence[Any] = ()
    if isinstance(energy, Mapping):
        prices = _list_or_empty(energy.get("by_hour"))
    caps = _list_or_empty(spec.get("power_caps"))
    bands = max(len(prices), len(caps))
    days = _positive_or_one(spec.get("days", 1))
    if bands > MOST_BANDS or days > MOST_CLUSTER_DAYS:
        most = f"{MOST_BANDS} prices or caps by hour for {MOST_CLUSTER_DAYS} days"
        raise StudyError(f"cluster.energy: at most {most}; {FIXED}")


def _list_or_empty(value: object) -> Sequence[Any]:
    """Return a list as it is, and anything else, which is refused later, as an empty one."""
    return value if isinstance(value, list | tuple) else ()


def _positive_or_one(value: object) -> int:
    """Return a positive integer as it is, and anything else, which is refused later, as 1."""
    return value if isinstance(value, int) and value > 0 else 1


def _workload(user: User, spec: Mapping[str, Any], team: Team | None) -> Mapping[str, Any]:
    """Check a workload's type and sizes; write a live one out. Raises StudyError."""
    # 1. A live one.
    workload_type = spec.get("type")
    if workload_type in LIVE:
        cluster = _named_cluster(spec.get("cluster"), "workload.cluster")
        return live_workload(user, spec, cluster, team=team)

    # 2. Any other.
    for field, most in (("jobs", MOST_JOBS), ("nodes", MOST_NODES)):
        number = spec.get(field)
        if isinstance(number, int) and number > most:
            problem = f"must be at most {most:,} here, not {number:,}; {FIXED}"
            raise StudyError(f"workload.{field}: {problem}")
    if not isinstance(workload_type, str) or workload_type not in TYPES:
        known = ", ".join((*TYPES, *LIVE))
        raise StudyError(f"workload.type: must be one of {known}, not {workload_type!r:.60}")
    return spec


def live_workload(
    user: User,
    spec: Mapping[str, Any],
    cluster: Cluster,
    most_days: int = MOST_DAYS,
    team: Team | None = None,
) -> dict[str, Any]:
    """Return a cluster's queue or history as a workload.

    With a `team`, whose members read the workload, it has only this team's jobs. Raises StudyError
    for wrong options, and if there is no job that the user may see.
    """
    # 1. Options: only a history has days.
    workload_type = spec["type"]
    is_history = workload_type == "history"
    known = ["cluster"]
    if is_history:
        known.append("days")
    extra = sorted(set(spec) - {"type", *known})
    if extra:
        options = ", ".join(known)
        raise StudyError(
            f"workload.{extra[0]}: no such option of a {workload_type}; known are: {options}"
        )
    days = spec.get("days", 7)
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= most_days:
        raise StudyError(
            f"workload.days: must be more than 0 and at most {most_days}, not {days!r:.60}"
        )

    # 2. The jobs.
    if is_history:
        workload = history(user, cluster, float(days), team)
        condition = f"was submitted in the last {days:g} days"
    else:
        workload = queue(user, cluster, team)
        condition = "waits or runs now at a speed that is known"
    if not workload["jobs"]:
        no_job_on = f"there is no job of the team {team} on" if team else "you may see no job of"
        raise StudyError(f"workload: {no_job_on} {cluster.name} that {condition}")
    return workload


def _named_cluster(name: object, field: str) -> Cluster:
    """Return the cluster of this name. StudyError names the field and the known clusters."""
    cluster = None
    if isinstance(name, str) and "\0" not in name:  # PostgreSQL refuses a query with NUL
        cluster = Cluster.objects.filter(name=name).first()
    if cluster is None:
        known = ", ".join(Cluster.objects.order_by("name").values_list("name", flat=True))
        raise StudyError(
            f"{field}: must be the name of a cluster, not {name!r:.60}; known are:"
            f" {known or 'none yet'}"
        )
    return cluster


def _length(submitted: Mapping[str, Any]) -> int:
    """Return the number of characters of a study. StudyError for text that no database stores."""
    try:
        text = json.dumps(submitted, ensure_ascii=False, default=str)
        text.encode()
    except UnicodeEncodeError:
        raise StudyError("study: holds characters that are no text") from None
    except ValueError as error:
        raise StudyError(f"study: {error}") from None
    if "\\u0000" in text:
        place = "study"
        for name, value in submitted.items():
            if "\\u0000" in json.dumps(value):
                place = name
                break
        raise StudyError(f"{place}: holds the character NUL")
    return len(text)


def _try_trace(study: Study) -> None:
    """Load a short trace, so that bad lines are found at submission. Raises StudyDocumentError."""
    text = study.workload.get("text")
    if not isinstance(text, str) or len(text) > TRIED_CHARACTERS:
        return
    try:
        study.load(study.seeds[0])
    except WorkloadError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise StudyDocumentError({"workload": lines}) from None


def _by_field(message: str) -> dict[str, list[str]]:
    """Return an error's message by the field of the study whose name it begins with.

    "seeds: too many" becomes "too many" of `seeds`. "cluster.nodes: too many" is of `cluster`, and
    stays whole. A message that names no field of a study is of `study`.
    """
    place, _, problem = message.partition(": ")
    field = place.partition(".")[0].partition("[")[0]
    if field not in FIELDS:
        return {"study": [message]}
    if place == field:
        return {field: [problem]}
    return {field: [message]}


def _summary(study: Study, submitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a study for lists of simulations; `submitted`: as the user gave it."""
    cluster = submitted["cluster"]
    nodes = study.scenario.nodes
    jobs = study.workload.get("jobs")
    return {
        "cluster": str(cluster.get("live") or study.scenario.cluster)[:100],
        "live": "live" in cluster,
        "nodes": len(nodes),
        "gpus": sum(len(node.devices) for node in nodes),
        "workload": str(submitted["workload"].get("type"))[:40],
        "jobs": len(jobs) if isinstance(jobs, list) else jobs,
        "policies": [choice.label[:100] for choice in study.policies],
        "seeds": len(study.seeds),
        "runs": len(study.policies) * len(study.seeds),
        "switches": list(study.switches.turned_on),
    }
