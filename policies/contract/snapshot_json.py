"""JSON form of a snapshot, read strictly; infinite numbers are null.

See `policies/contract/schemas/snapshot.schema.json`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from foundation import forms
from foundation.forms import FormError
from policies.contract.snapshot import FORM, SNAPSHOT_VERSION, Bools, PriceInterval, Snapshot

OLDER_VERSIONS = frozenset({1, 2, 3, 4, 5, 6})
"""Older versions that are still read.

2 adds caps by hour and emissions, 3 teams and GPU prices, 4 least run times, the cost of waiting
and assumed speeds, 5 batch jobs, and nodes and jobs without GPUs, 6 limits of teams, 7 quotas that
change while jobs run.
"""

WITHOUT_UNITS = frozenset({1, 2, 3, 4, 5})
"""Versions in which one process used all units of a job, on one node."""


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the JSON form of a snapshot."""
    return FORM.write(snapshot)


def from_json(form: Any) -> Snapshot:
    """Read a snapshot. FormError names the path, as in "jobs[3].gpus_min"."""
    version = form.get("version") if isinstance(form, dict) else None
    if version in WITHOUT_UNITS:
        jobs = [_of_one_unit(job) for job in form.get("jobs", ())]
        form = {**form, "jobs": jobs}
    if version in OLDER_VERSIONS:
        form = {**form, "version": SNAPSHOT_VERSION}
    forms.check_version(form, "snapshot", SNAPSHOT_VERSION)
    snapshot = FORM.read(form)
    _check(snapshot)
    return snapshot


def _of_one_unit(job: Any) -> Any:
    """Return the form of a job of a version WITHOUT_UNITS with one unit, which needs what all did.

    Amounts of other types are left for the strict reading to refuse.
    """
    if not isinstance(job, dict):
        return job
    units = job.get("units", 1)
    if not isinstance(units, int) or units < 2:
        return job
    one_unit = {**job, "units": 1}
    for name in ("cores", "memory_gb"):
        if isinstance(job.get(name), float | int):
            one_unit[name] = job[name] * units
    resources = job.get("resources") or {}
    one_unit["resources"] = {name: amount * units for name, amount in resources.items()}
    return one_unit


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
    _check_unique("nodes", [node.id for node in snapshot.nodes])
    _check_unique("kinds", [kind.id for kind in snapshot.kinds])
    _check_unique("teams", [team.name for team in snapshot.teams], field="name")
    _check_jobs(snapshot)
    for i, node in enumerate(snapshot.nodes):
        _check_unique(f"nodes[{i}].devices", [device.id for device in node.devices])
        gpus = len(node.devices)
        if len(node.power_w) != gpus + 1:
            wanted = f"{gpus + 1} numbers (0 to {gpus} GPUs in use)"
            raise FormError(f"nodes[{i}].power_w", f"must have {wanted}, not {len(node.power_w)}")
    check_follow("energy", snapshot.energy)


def _check_jobs(snapshot: Snapshot) -> None:
    """Raise FormError for the first job of a wrong kind, or with wrong numbers of GPUs or units."""
    columns = snapshot.jobs.columns
    _check_unique("jobs", columns.ids)
    for row, kind in enumerate(columns.kinds):
        if kind not in snapshot.kind_index:
            raise FormError(f"jobs[{row}].kind", f"{kind!r} is not among the kinds")

    least = columns.counts["gpus_min"]
    most = columns.counts["gpus_max"]
    first = _first_true(most < least)
    if first is not None:
        wanted = f"must be >= gpus_min ({least[first]})"
        raise FormError(f"jobs[{first}].gpus_max", f"{wanted}, not {most[first]}")
    first = _first_true((least == 0) & (most > 0))
    if first is not None:
        raise FormError(f"jobs[{first}].gpus_max", f"must be 0 without gpus_min, not {most[first]}")

    units = columns.counts["units"]
    is_batch = np.array(columns.others["batch"], dtype=np.bool_)
    is_uneven = (least != most) | (least % units > 0)
    first = _first_true(is_batch & is_uneven)
    if first is not None:
        wanted = f"must be the same number for each of {units[first]} units"
        given = f"{least[first]} to {most[first]} in all"
        raise FormError(f"jobs[{first}].gpus_min", f"{wanted}, not {given}")
    first = _first_true(~is_batch & (units > 1))
    if first is not None:
        wanted = "must be 1 for a job without batch"
        raise FormError(f"jobs[{first}].units", f"{wanted}, not {units[first]}")


def _first_true(flags: Bools) -> int | None:
    """Return the index of the first flag that is true; None if none is."""
    return int(flags.argmax()) if flags.any() else None


def check_follow(path: str, steps: tuple[PriceInterval, ...]) -> None:
    """Raise FormError unless each step has a length and begins where the one before it ends."""
    for i, step in enumerate(steps):
        if step.to_s <= step.from_s:
            raise FormError(f"{path}[{i}].to_s", f"must be > from_s ({step.from_s:g})")
        if i and step.from_s != steps[i - 1].to_s:
            before = f"must be {steps[i - 1].to_s:g}, where the step before it ends"
            raise FormError(f"{path}[{i}].from_s", f"{before}, not {step.from_s:g}")


def _check_unique(path: str, ids: Iterable[str], field: str = "id") -> None:
    """Raise FormError for the first id that is there twice; `field`: its name in the form."""
    seen: set[str] = set()
    for i, name in enumerate(ids):
        if name in seen:
            raise FormError(f"{path}[{i}].{field}", f"{name!r} is there twice")
        seen.add(name)
