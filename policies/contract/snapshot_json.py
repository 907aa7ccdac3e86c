"""The documented JSON form of a snapshot: written in one way only, read strictly.

Unbounded numbers (no due date, all the cores one could want) are null. See
`policies/contract/schemas/snapshot.schema.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies.contract import forms
from policies.contract.forms import Form, FormError, Rules
from policies.contract.snapshot import SNAPSHOT_VERSION, JobColumns, Jobs, JobView, Snapshot

_LEAST = {
    "JobView.gpus_min": 1, "JobView.gpus_max": 1, "JobView.units": 1, "JobView.remaining_steps": 0,
    "JobView.total_steps": 0,
    "JobView.tardiness_weight": 0, "JobView.weight": 0, "JobView.cores": 0, "JobView.memory_gb": 0,
    "JobView.resources": 0,
    "JobView.restart_cost_s": 0, "JobView.received_s": 0, "JobView.walltime_s": 0,
    "NodeView.cores": 0, "NodeView.memory_gb": 0, "NodeView.resources": 0, "NodeView.power_w": 0,
    "NodeView.link_gbps": 0,
    "DeviceView.memory_gb": 0, "DeviceView.slots": 1, "GpuTypeView.tflops": 0,
    "GpuTypeView.memory_gb": 0,
    "GpuTypeView.price_per_hour": 0,
    "KindView.setup_s": 0, "Throughput.gpus": 1, "Throughput.steps_per_s": 0, "Throughput.age_s": 0,
    "PairThroughput.steps_per_s": 0, "PairThroughput.other_steps_per_s": 0,
    "PairThroughput.age_s": 0,
    "ResourceUse.cores": 0, "ResourceUse.memory_gb": 0, "ResourceUse.gpu_fraction": 0,
    "ResourceUse.gpu_w": 0,
    "ResourceUse.age_s": 0, "ProfileRequest.gpus": 1, "ProfileRequest.steps": 1,
    "ProfileRequest.copy": 0, "Running.copy": 0,
    "Running.steps_quota": 1, "SlotHold.copy": 0, "EnergyStep.emissions_g_per_kwh": 0,
    "EnergyStep.pue": 1,
    "Snapshot.round_s": 0, "Snapshot.horizon_s": 0, "Snapshot.power_cap_w": 0,
    "Snapshot.emissions_cost_per_kg": 0,
    "PowerCapStep.power_cap_w": 0,
}  # fmt: skip
_UNBOUNDED = (
    "JobView.due_s",
    "JobView.deadline_s",
    "JobView.walltime_s",
    "NodeView.cores",
    "NodeView.memory_gb",
    "EnergyStep.to_s",
    "PowerCapStep.to_s",
)
_SHARES = ("RankSeat.share", "SlotHold.share")
_ABOVE_0 = ("RankSeat.cpu_quota", "TeamView.weight")

RULES = Rules(
    least=_LEAST,
    above=dict.fromkeys((*_SHARES, *_ABOVE_0), 0),
    most=dict.fromkeys(_SHARES, 1),
    unbounded=frozenset(_UNBOUNDED),
)

FORM = Form(Snapshot, RULES, {Jobs: tuple[JobView, ...]})

_SPELLING = "canonical_bytes"

LIKE_NOW = frozenset({1, 2})
"""Older versions whose snapshots are snapshots of this one: version 2 adds caps by hour and the
weight of emissions, version 3 teams and what GPUs cost by the hour.
"""


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """The form as plain JSON data. Raises FormError where a number has none (NaN, or inf where it
    means nothing).
    """
    form: dict[str, Any] = FORM.write(snapshot, "")
    return form


def from_json(form: Any) -> Snapshot:
    """The snapshot of a form. Raises FormError naming the path, e.g. "jobs[3].gpus_min: must be >=
    1, not 0".
    """
    if isinstance(form, dict) and form.get("version") in LIKE_NOW:
        form = {**form, "version": SNAPSHOT_VERSION}
    forms.check_version(form, "snapshot", SNAPSHOT_VERSION)
    read = FORM.read(form, "")
    _check(read, form)
    return Snapshot(
        **{
            **{n: getattr(read, n) for n in read.__dataclass_fields__},
            "jobs": Jobs(JobColumns.of(read.jobs)),
        }
    )


def canonical_bytes(snapshot: Snapshot) -> bytes:
    """The one spelling of a snapshot, made once: a round stores it, and mostly hands its solver the
    same.
    """
    made = vars(snapshot)  # as its cached properties do
    if _SPELLING not in made:
        made[_SPELLING] = forms.canonical_bytes(to_json(snapshot))
    spelling: bytes = made[_SPELLING]
    return spelling


def digest(snapshot: Snapshot) -> str:
    """sha256 (hex) of the canonical bytes: equal for equal snapshots."""
    return forms.digest_of_bytes(canonical_bytes(snapshot))


def schema() -> dict[str, Any]:
    """The JSON Schema of the form, as checked in."""
    return FORM.schema(
        "Snapshot: what a scheduling policy may know of one cluster at one moment", SNAPSHOT_VERSION
    )


def _check(read: Any, form: Mapping[str, Any]) -> None:
    """What a schema cannot say: unique ids, known kinds, GPU ranges, power curves."""
    _unique("nodes", (n.id for n in read.nodes))
    _unique("kinds", (k.id for k in read.kinds))
    _unique("jobs", (j.id for j in read.jobs))
    _unique("teams", (t.name for t in read.teams), "name")
    kinds = {k.id for k in read.kinds}
    for i, job in enumerate(read.jobs):
        if job.kind not in kinds:
            raise FormError(f"jobs[{i}].kind: {job.kind!r} is not among the kinds")
        if job.gpus_max < job.gpus_min:
            raise FormError(
                f"jobs[{i}].gpus_max: must be >= gpus_min ({job.gpus_min}), not {job.gpus_max}"
            )
    for i, node in enumerate(read.nodes):
        _unique(f"nodes[{i}].devices", (d.id for d in node.devices))
        if len(node.power_w) != len(node.devices) + 1:
            wanted = f"{len(node.devices) + 1} numbers (0 to {len(node.devices)} GPUs in use)"
            raise FormError(f"nodes[{i}].power_w: must have {wanted}, not {len(node.power_w)}")


def _unique(path: str, ids: Iterable[str], field: str = "id") -> None:
    seen: set[str] = set()
    for i, name in enumerate(ids):
        if name in seen:
            raise FormError(f"{path}[{i}].{field}: {name!r} is there twice")
        seen.add(name)
