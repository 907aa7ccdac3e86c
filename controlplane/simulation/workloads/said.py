"""Rules that jobs of a list say beside their view: on_walltime, array, conditions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.simulation.workloads.base import WorkloadError
from controlplane.simulation.workloads.rules import After, Array, Condition, Rules, circle_in
from foundation.forms import FormError

OWN = ("on_walltime", "array", "dependencies")
WALLTIME = {"kill": True, "warn": False}
CONDITIONS = tuple(str(condition) for condition in Condition)


@dataclass(frozen=True, slots=True)
class Said:
    """Rules as jobs say them: by id, and elements and limits of arrays by name."""

    items: Mapping[str, Mapping[str, Any]]
    elements: Mapping[str, Sequence[str]]
    at_once: Mapping[str, int]

    @classmethod
    def of(cls, jobs: Iterable[Mapping[str, Any]], arrays: Iterable[tuple[str, int]]) -> Said:
        items, elements = dict[str, Mapping[str, Any]](), defaultdict[str, list[str]](list)
        for item in jobs:
            job, array = str(item.get("id", "")), item.get("array")
            items[job] = {name: item[name] for name in OWN if name in item}
            if isinstance(array, str):
                elements[array].append(job)
        if unknown := [name for name, _ in arrays if name not in elements]:
            raise WorkloadError(f"arrays: no job has array {unknown[0]!r}; leave its limit out")
        if doubled := sorted(elements.keys() & items.keys()):
            raise WorkloadError(f"array: {doubled[0]!r} is a job too; give the array another name")
        return cls(items, dict(elements), dict(arrays))

    def plain(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job without its own rules, for its form. FormError for a bad rule."""
        job = {name: value for name, value in item.items() if name not in OWN}
        said = item.get("on_walltime", "warn")
        if not isinstance(said, str) or said not in WALLTIME:
            raise FormError("on_walltime", f"must be kill or warn, not {said!r:.40}")
        if not isinstance(item.get("array", ""), str):
            raise FormError("array", "must be the name of its job array")
        others = self._conditions(item.get("dependencies", ()))
        named = [one for after in others for one in after.jobs]
        if item.get("id") in named:
            raise FormError("dependencies", "it depends on itself")
        return {**job, "dependencies": list(dict.fromkeys(named))} if named else job

    def rules(self, ids: Collection[str]) -> Rules:
        """Return the rules of these jobs. WorkloadError for jobs that wait in a circle."""
        kept = {job: self.items[job] for job in ids}
        after = {
            job: self._conditions(said["dependencies"])
            for job, said in kept.items()
            if said.get("dependencies")
        }
        circle = circle_in({job: [o for a in of for o in a.jobs] for job, of in after.items()})
        if circle:
            raise WorkloadError(_circle(circle))
        kills = {j: WALLTIME[s["on_walltime"]] for j, s in kept.items() if "on_walltime" in s}
        arrays = {
            name: Array(tuple(j for j in jobs if j in kept), self.at_once.get(name, 0))
            for name, jobs in self.elements.items()
        }
        return Rules(kills, after, arrays)

    def _conditions(self, given: Any) -> tuple[After, ...]:
        if isinstance(given, str | bytes) or not isinstance(given, list | tuple | Mapping):
            raise FormError("dependencies", "must be a list of jobs, or conditions by job")
        if not all(isinstance(name, str) for name in given):
            raise FormError("dependencies", "must name jobs by their ids, which are texts")
        conditions = given if isinstance(given, Mapping) else dict.fromkeys(given, "afterok")
        if bad := [c for c in conditions.values() if c not in CONDITIONS]:
            known = ", ".join(CONDITIONS)
            raise FormError("dependencies", f"must be one of {known}, not {bad[0]!r:.40}")
        found = []
        for name, condition in conditions.items():
            elements = self.elements.get(name)
            jobs, array = ((name,), "") if elements is None else (tuple(elements), name)
            found.append(After(jobs, Condition(condition), name=array))
        return tuple(found)


def _circle(jobs: Sequence[str]) -> str:
    shown = ", ".join(jobs[:5]) + (" ..." if len(jobs) > 5 else "")
    return f"dependencies: jobs {shown} wait for each other in a circle; leave one of them out"
