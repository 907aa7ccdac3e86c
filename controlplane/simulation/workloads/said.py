"""Rules that jobs of a list say beside their view: on_walltime, array, conditions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.simulation.workloads.base import WorkloadError
from controlplane.simulation.workloads.rules import After, Array, Condition, Rules, circle_in
from foundation.forms import FormError

OWN = ("on_walltime", "array", "dependencies", "one_suffices")
WALLTIME = {"kill": True, "warn": False}
CONDITIONS = tuple(str(condition) for condition in Condition)
LONGEST_DELAY = 999_999
"""Minutes after a start."""


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
        others = self._conditions(item)
        if any(item.get("id") in after.jobs for after in others):
            raise FormError("dependencies", "it depends on itself")
        # A policy would wait for the ends of all jobs that it is shown.
        shown: list[str] = []
        for after in others:
            if not after.alternative and after.condition is not Condition.AFTER:
                shown += after.jobs
        return {**job, "dependencies": list(dict.fromkeys(shown))} if shown else job

    def rules(self, ids: Collection[str]) -> Rules:
        """Return the rules of these jobs. WorkloadError for jobs that wait in a circle."""
        kept = {job: self.items[job] for job in ids}
        after = {
            job: self._conditions(said) for job, said in kept.items() if said.get("dependencies")
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

    def _conditions(self, item: Mapping[str, Any]) -> tuple[After, ...]:
        """Return what a job waits for. FormError for what is no condition."""
        # 1. The condition of each job or array by name.
        given = item.get("dependencies", ())
        if isinstance(given, str | bytes) or not isinstance(given, list | tuple | Mapping):
            raise FormError("dependencies", "must be a list of jobs, or conditions by job")
        if not all(isinstance(name, str) for name in given):
            raise FormError("dependencies", "must name jobs by their ids, which are texts")
        conditions = given if isinstance(given, Mapping) else dict.fromkeys(given, "afterok")
        one_suffices = item.get("one_suffices", False)
        if not isinstance(one_suffices, bool):
            raise FormError("one_suffices", "must be true or false")

        # 2. Its jobs, of an array all elements.
        found = []
        for name, text in conditions.items():
            condition, delay_s = _condition(text)
            elements = self.elements.get(name)
            jobs, array = ((name,), "") if elements is None else (tuple(elements), name)
            found.append(After(jobs, condition, delay_s, array, one_suffices))
        return tuple(found)


def _condition(text: object) -> tuple[Condition, float]:
    """Return condition and delay in seconds of afterok, or of after+10 (minutes). FormError."""
    name, plus, minutes = str(text).partition("+")
    has_delay = name == Condition.AFTER and minutes.isdecimal() and int(minutes) <= LONGEST_DELAY
    if name not in CONDITIONS or (plus and not has_delay):
        known = ", ".join(CONDITIONS)
        raise FormError("dependencies", f"must be one of {known}, not {text!r:.40}")
    return Condition(name), 60.0 * int(minutes or 0)


def _circle(jobs: Sequence[str]) -> str:
    shown = ", ".join(jobs[:5]) + (" ..." if len(jobs) > 5 else "")
    return f"dependencies: jobs {shown} wait for each other in a circle; leave one of them out"
