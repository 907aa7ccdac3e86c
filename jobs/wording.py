from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

SHOWN = 3

SENTENCES: Mapping[str, str] = {
    "no_capacity": "All GPUs it could use are taken",
    "postponed": (
        "Waiting is cheaper: the optimiser starts it later, or sooner if prices or due dates change"
    ),
    "awaiting_profile": "Its kind is being measured first",
    "no_throughput": "Nothing is known of its speed on any GPU type here",
    "no_node_fits": "No node is large enough for it",
    "types_unavailable": "No node that takes work has a GPU type it allows",
    "runtime_unavailable": "No node with the runtime it needs is ready",
    "dependency": "It waits for other jobs to complete",
    "power_cap": "The cluster's power cap leaves no room for it",
    "reserved": "The GPUs that are free are reserved for another job",
    "nodes_unavailable": "The nodes it could use are cordoned, draining or lost",
    "solver_failed": "The last decision failed; what runs goes on and it is tried again",
}

RESTING = "resting"
"""Code of a job that backs off after a failure, hidden from policies."""

NOT_LAUNCHED: Mapping[str, str] = {
    "deferred": "It was given GPUs that another job is just leaving; it starts when they are free",
    "stale": "Its GPUs were taken or lost while it was decided; the next decision finds others",
}
"""Refusals of planned placements (`controlplane.loop.rounds.RejectCode`)."""

STATES: Mapping[str, str] = {
    "held": "Held until it is released",
    "profiling": "Its kind is being measured",
    "starting": "A node is getting ready for it",
    "stopping": "It saves a checkpoint and goes back to the queue",
    "cancelling": "It is being stopped",
}


def reason_for_waiting(
    state: str, code: str, detail: object, names: Mapping[str, str], now: datetime | None = None
) -> str:
    """Return a sentence on why a job waits; "" if it runs or is over.

    `detail` is the plan's {nodes, jobs, watts}, or {why, retry_s}; ids without a name are invisible
    to the reader. `now` hides a retry in the past. Expected starts are told beside it.
    """
    if state != "queued":
        return f"{STATES[state]}." if state in STATES else ""
    if not code:
        return "It waits for the next decision."
    told: Mapping[str, Any] = detail if isinstance(detail, Mapping) else {}
    if code == RESTING:
        return _resting(told, now)
    said = SENTENCES.get(code) or NOT_LAUNCHED.get(code) or code.replace("_", " ").capitalize()
    if code == "dependency":
        jobs = _listed(told.get("jobs"), names, "a job of another team", "jobs of other teams")
        return f"{said}: {jobs}." if jobs else f"{said}."
    if code == "runtime_unavailable":
        return f"{_no_runtime(told, names)}."
    parts = (_in_the_way(told, names), _watts(told.get("watts")))
    return ", ".join((said, *(p for p in parts if p))) + "."


def _no_runtime(detail: Mapping[str, Any], names: Mapping[str, str]) -> str:
    runtime, nodes = detail.get("runtime"), _listed(detail.get("nodes"), names, "a node", "nodes")
    known = f"No node with the runtime {runtime} is ready"
    said = known if runtime else SENTENCES["runtime_unavailable"]
    return f"{said}: {nodes} would do when ready again" if nodes else said


def _resting(detail: Mapping[str, Any], now: datetime | None) -> str:
    why, start = str(detail.get("why") or ""), _retry(detail.get("retry_s"), now)
    said = f"It rests before it is tried again{f', {start}' if start else ''}."
    return f"{said} Last time: {why}" if why else said


def _in_the_way(detail: Mapping[str, Any], names: Mapping[str, str]) -> str:
    jobs = _listed(detail.get("jobs"), names, "a job of another team", "jobs of other teams")
    nodes = _listed(detail.get("nodes"), names, "a node", "nodes")
    held = f"held by {jobs}" if jobs else ""
    return " ".join(p for p in (f"on {nodes}" if nodes else "", held) if p)


def _listed(ids: object, names: Mapping[str, str], one: str, many: str) -> str:
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        return ""
    known = [names[str(i)] for i in ids if str(i) in names]
    unknown = len(ids) - len(known)
    shown = known[:SHOWN]
    if len(known) > SHOWN:
        shown.append(f"{len(known) - SHOWN} more")
    if unknown:
        shown.append(one if unknown == 1 else f"{unknown} {many}")
    return " and ".join(shown) if len(shown) < 3 else ", ".join(shown[:-1]) + " and " + shown[-1]


def _watts(watts: object) -> str:
    return f"{watts:.0f} W short" if isinstance(watts, (int, float)) else ""


def _retry(seconds: object, now: datetime | None) -> str:
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 4e9:
        return ""
    start = datetime.fromtimestamp(seconds, UTC)
    if now is None:
        return f"earliest start {start:%Y-%m-%d %H:%M} UTC"
    if start <= now:
        return ""
    today = start.date() == now.astimezone(UTC).date()
    return f"earliest start {start:%H:%M}" + ("" if today else f" on {start:%Y-%m-%d}") + " UTC"
