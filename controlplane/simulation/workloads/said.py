"""Rules of listed jobs beside their views: on_walltime, array, dependencies and conditions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.simulation.workloads.base import WorkloadError
from controlplane.simulation.workloads.rules import After, Array, Condition, Rules, circle_in
from foundation.forms import FormError

RULE_FIELDS = ("on_walltime", "array", "dependencies", "one_suffices")
"""Fields of a listed job that its view does not have, or not in this form."""

ENDS_AT_WALLTIME = {"kill": True, "warn": False}
"""By `on_walltime`: True if the job ends at its walltime."""

CONDITIONS = tuple(str(condition) for condition in Condition)

LONGEST_DELAY = 999_999
"""Longest delay of a condition such as after+10, in minutes after a start."""


@dataclass(frozen=True, slots=True)
class Said:
    """Rules as the jobs of a list say them.

    `items`: the rule fields by job. `elements`: the jobs of an array by its name. `at_once`: most
    running elements, by array with a limit.
    """

    items: Mapping[str, Mapping[str, Any]]
    elements: Mapping[str, Sequence[str]]
    at_once: Mapping[str, int]

    @classmethod
    def of(cls, jobs: Iterable[Mapping[str, Any]], arrays: Iterable[tuple[str, int]]) -> Said:
        """Collect the rules; `arrays`: (name, most at once). WorkloadError for a wrong name."""
        items: dict[str, Mapping[str, Any]] = {}
        elements: dict[str, list[str]] = defaultdict(list)
        for item in jobs:
            job = str(item.get("id", ""))
            items[job] = {name: item[name] for name in RULE_FIELDS if name in item}
            array = item.get("array")
            if isinstance(array, str):
                elements[array].append(job)
        unknown = [name for name, _ in arrays if name not in elements]
        if unknown:
            raise WorkloadError(f"arrays: no job has array {unknown[0]!r}; leave its limit out")
        ambiguous = sorted(elements.keys() & items.keys())
        if ambiguous:
            raise WorkloadError(
                f"array: {ambiguous[0]!r} is a job too; give the array another name"
            )
        return cls(items, dict(elements), dict(arrays))

    def plain(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job for the form of a view: without rules, but with the dependencies of a view.

        FormError for a bad rule.
        """
        # 1. The rules must be well-formed.
        on_walltime = item.get("on_walltime", "warn")
        if not isinstance(on_walltime, str) or on_walltime not in ENDS_AT_WALLTIME:
            raise FormError("on_walltime", f"must be kill or warn, not {on_walltime!r:.40}")
        if not isinstance(item.get("array", ""), str):
            raise FormError("array", "must be the name of its job array")
        conditions = self._conditions(item)
        if any(item.get("id") in after.jobs for after in conditions):
            raise FormError("dependencies", "it depends on itself")

        # 2. The view names the jobs of which all must end: a policy would wait for all their ends.
        job = {name: value for name, value in item.items() if name not in RULE_FIELDS}
        dependencies: list[str] = []
        for after in conditions:
            if not after.alternative and after.condition is not Condition.AFTER:
                dependencies.extend(after.jobs)
        if dependencies:
            job["dependencies"] = list(dict.fromkeys(dependencies))
        return job

    def rules(self, ids: Collection[str]) -> Rules:
        """Return the rules of these jobs. WorkloadError for jobs that wait in a circle."""
        # 1. Walltimes and conditions, by job.
        kills: dict[str, bool] = {}
        conditions: dict[str, tuple[After, ...]] = {}
        for job in ids:
            item = self.items[job]
            if "on_walltime" in item:
                kills[job] = ENDS_AT_WALLTIME[item["on_walltime"]]
            if item.get("dependencies"):
                conditions[job] = self._conditions(item)

        # 2. Jobs that wait for each other would never start.
        waits_for: dict[str, list[str]] = {}
        for job, of_job in conditions.items():
            waits_for[job] = [other for after in of_job for other in after.jobs]
        circle = circle_in(waits_for)
        if circle:
            raise WorkloadError(_circle(circle))

        # 3. Arrays, with those of their elements that are simulated.
        simulated = set(ids)
        arrays: dict[str, Array] = {}
        for name, jobs in self.elements.items():
            elements = tuple(job for job in jobs if job in simulated)
            arrays[name] = Array(elements, self.at_once.get(name, 0))
        return Rules(kills, conditions, arrays)

    def _conditions(self, item: Mapping[str, Any]) -> tuple[After, ...]:
        """Return the conditions of a job. FormError for a bad one."""
        # 1. The condition by name of a job or array.
        listed = item.get("dependencies", ())
        if not isinstance(listed, list | tuple | Mapping):
            raise FormError("dependencies", "must be a list of jobs, or conditions by job")
        if not all(isinstance(name, str) for name in listed):
            raise FormError("dependencies", "must name jobs by their ids, which are texts")
        text_by_name = listed if isinstance(listed, Mapping) else dict.fromkeys(listed, "afterok")
        one_suffices = item.get("one_suffices", False)
        if not isinstance(one_suffices, bool):
            raise FormError("one_suffices", "must be true or false")

        # 2. The jobs of each: an array stands for all its elements.
        conditions = []
        for name, text in text_by_name.items():
            condition, delay_s = _condition(text)
            if name in self.elements:
                jobs = tuple(self.elements[name])
                array = name
            else:
                jobs = (name,)
                array = ""
            conditions.append(After(jobs, condition, delay_s, array, one_suffices))
        return tuple(conditions)


def _condition(text: object) -> tuple[Condition, float]:
    """Read a condition such as afterok, or after+10 with minutes, as (condition, delay in s).

    FormError if it is none.
    """
    name, plus, minutes = str(text).partition("+")
    has_delay = name == Condition.AFTER and minutes.isdecimal() and int(minutes) <= LONGEST_DELAY
    if name not in CONDITIONS or (plus and not has_delay):
        known = ", ".join(CONDITIONS)
        raise FormError("dependencies", f"must be one of {known}, not {text!r:.40}")
    return Condition(name), 60.0 * int(minutes or 0)


def _circle(jobs: Sequence[str]) -> str:
    """Return the message about jobs that wait in a circle; it names the first five."""
    names = ", ".join(jobs[:5])
    if len(jobs) > 5:
        names += " ..."
    return f"dependencies: jobs {names} wait for each other in a circle; leave one of them out"
