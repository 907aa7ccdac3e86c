"""JSON form of a snapshot, read strictly; infinite numbers are null.

See `policies/contract/schemas/snapshot.schema.json`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from foundation import forms
from foundation.forms import FormError
from policies.contract.snapshot import FORM, SNAPSHOT_VERSION, PriceInterval, Snapshot

LIKE_NOW = frozenset({1, 2, 3, 4, 5})
"""Older versions read unchanged.

2 adds caps by hour and emissions, 3 teams and GPU prices, 4 least run times, the cost of waiting
and assumed speeds, 5 batch jobs, and nodes and jobs without GPUs, 6 limits of teams.
"""


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    return FORM.write(snapshot)


def from_json(form: Any) -> Snapshot:
    """Read a snapshot. FormError names the path, as in "jobs[3].gpus_min"."""
    if isinstance(form, dict) and form.get("version") in LIKE_NOW:
        jobs = [_of_one_unit(job) for job in form.get("jobs", ())]
        form = {**form, "version": SNAPSHOT_VERSION, "jobs": jobs}
    forms.check_version(form, "snapshot", SNAPSHOT_VERSION)
    snapshot = FORM.read(form)
    _check(snapshot)
    return snapshot


def _of_one_unit(job: Any) -> Any:
    """Job of an older snapshot, whose only process on a node used all of its units there."""
    if not isinstance(job, dict) or not isinstance(units := job.get("units", 1), int) or units < 2:
        return job
    whole = {n: job[n] * units for n in ("cores", "memory_gb") if isinstance(job.get(n), float)}
    named = {name: amount * units for name, amount in (job.get("resources") or {}).items()}
    return {**job, **whole, "resources": named, "units": 1}


def digest(snapshot: Snapshot) -> str:
    """sha256 (hex) of the canonical bytes: equal for equal snapshots."""
    return forms.digest_of_bytes(snapshot.canonical_bytes)


def schema() -> dict[str, Any]:
    """JSON Schema of the form, as checked in."""
    return FORM.schema(
        "Snapshot: what a scheduling policy may know of one cluster at one moment", SNAPSHOT_VERSION
    )


def _check(snapshot: Snapshot) -> None:
    """Raise FormError for repeated ids, unknown kinds, bad ranges, curves or price gaps."""
    _unique("nodes", (n.id for n in snapshot.nodes))
    _unique("kinds", (k.id for k in snapshot.kinds))
    _unique("teams", (t.name for t in snapshot.teams), "name")
    _check_jobs(snapshot)
    for i, node in enumerate(snapshot.nodes):
        _unique(f"nodes[{i}].devices", (d.id for d in node.devices))
        if len(node.power_w) != len(node.devices) + 1:
            wanted = f"{len(node.devices) + 1} numbers (0 to {len(node.devices)} GPUs in use)"
            raise FormError(f"nodes[{i}].power_w", f"must have {wanted}, not {len(node.power_w)}")
    check_follow("energy", snapshot.energy)


def _check_jobs(snapshot: Snapshot) -> None:
    columns = snapshot.jobs.columns
    _unique("jobs", columns.ids)
    for i, kind in enumerate(columns.kinds):
        if kind not in snapshot.kind_index:
            raise FormError(f"jobs[{i}].kind", f"{kind!r} is not among the kinds")
    least, most = columns.counts["gpus_min"], columns.counts["gpus_max"]
    for i in (most < least).nonzero()[0][:1]:
        raise FormError(f"jobs[{i}].gpus_max", f"must be >= gpus_min ({least[i]}), not {most[i]}")
    for i in ((least == 0) & (most > 0)).nonzero()[0][:1]:
        raise FormError(f"jobs[{i}].gpus_max", f"must be 0 without gpus_min, not {most[i]}")
    units, is_batch = columns.counts["units"], np.array(columns.others["batch"], dtype=np.bool_)
    for i in (is_batch & ((least != most) | (least % units > 0))).nonzero()[0][:1]:
        wanted = f"must be the same number for each of {units[i]} units"
        raise FormError(f"jobs[{i}].gpus_min", f"{wanted}, not {least[i]} to {most[i]} in all")
    for i in (~is_batch & (units > 1)).nonzero()[0][:1]:
        raise FormError(f"jobs[{i}].units", f"must be 1 for a job without batch, not {units[i]}")


def check_follow(path: str, steps: tuple[PriceInterval, ...]) -> None:
    """Raise FormError unless each step has a length and begins where the one before it ends."""
    for i, step in enumerate(steps):
        if step.to_s <= step.from_s:
            raise FormError(f"{path}[{i}].to_s", f"must be > from_s ({step.from_s:g})")
        if i and step.from_s != steps[i - 1].to_s:
            before = f"must be {steps[i - 1].to_s:g}, where the step before it ends"
            raise FormError(f"{path}[{i}].from_s", f"{before}, not {step.from_s:g}")


def _unique(path: str, ids: Iterable[str], field: str = "id") -> None:
    seen: set[str] = set()
    for i, name in enumerate(ids):
        if name in seen:
            raise FormError(f"{path}[{i}].{field}", f"{name!r} is there twice")
        seen.add(name)
