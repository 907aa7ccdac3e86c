"""Classes of equal jobs and their options: GPUs on equal nodes, with speed and power there.

Jobs of a class (kind, GPUs, types, labels, demand) fit where any of them fits, so that one that
found no capacity answers for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from policies.contract.snapshot import Snapshot
from policies.placement.cluster_state import ClusterState
from policies.placement.from_snapshot import JobRequests
from policies.placement.pricing import prices_of
from policies.placement.requests import RESOURCES, Request, lowest
from policies.placement.speed import LaunchTimes, Speeds

GroupingKey: TypeAlias = tuple[Any, ...]
"""Columns by which jobs are grouped: jobs with equal keys are interchangeable for capacity."""


@dataclass(frozen=True, slots=True)
class Option:
    """So many GPUs of one of these nodes (a set), where the job has this speed and the node power.

    `power_w`: of a node on which only these GPUs are in use.
    """

    nodes: int
    gpus: int
    steps_per_s: float
    power_w: float
    request: Request


class JobClasses:
    """A snapshot's jobs by class; options are found when a class is first asked for."""

    def __init__(self, snapshot: Snapshot, state: ClusterState) -> None:
        self.snapshot, self.layout, self.open = snapshot, state.layout, state.open
        self.columns = snapshot.jobs.columns
        self.requests = JobRequests(snapshot, state.layout)
        self.speeds, self.prices = Speeds(snapshot.kinds), prices_of(snapshot)
        self._options: dict[GroupingKey, tuple[Option, ...]] = {}

    @cached_property
    def keys(self) -> Sequence[GroupingKey]:
        """The class of each job of the snapshot."""
        counts, numbers, others = self.columns.counts, self.columns.numbers, self.columns.others
        columns = [self.columns.kinds, counts["gpus_min"].tolist(), counts["gpus_max"].tolist()]
        columns += [others["allowed_types"], others["labels"]]
        if not self.columns.gpus_only:
            columns += [numbers["cores"].tolist(), numbers["memory_gb"].tolist()]
            columns += [others["resources"], counts["units"].tolist()]
        return list(zip(*columns, strict=True))

    def options(self, row: int) -> tuple[Option, ...]:
        """Return the options of a job on one node, were the cluster empty."""
        key = self.keys[row]
        if key not in self._options:
            self._options[key] = tuple(self._find(row))
        return self._options[key]

    def ranked(self, row: int) -> list[tuple[Option, float]]:
        """Return a job's options with its run time, a launch included, the best first.

        First those that meet the due date by rising energy cost, then the others by rising time.
        """
        options, (due_s, steps) = self.options(row), self._numbers[row]
        slack_s, launch_s = due_s - self.snapshot.now_s, self.launch_times.of(row)
        times_s = [steps / option.steps_per_s + launch_s for option in options]
        flat, reference = self.prices.is_flat, self.prices.reference
        priced_s = times_s if flat else self.prices.priced_s(np.array(times_s)).tolist()
        ranks = [
            (False, seconds * (o.power_w * reference), i) if time_s < slack_s else (True, time_s, i)
            for i, (o, time_s, seconds) in enumerate(zip(options, times_s, priced_s, strict=True))
        ]
        return [(options[i], times_s[i]) for _, _, i in sorted(ranks)]

    @cached_property
    def launch_times(self) -> LaunchTimes:
        """The time from a launch to the first step of each job."""
        return LaunchTimes(self.snapshot)

    @cached_property
    def _numbers(self) -> Sequence[tuple[float, float]]:
        """Due date and remaining steps of each job."""
        numbers = self.columns.numbers
        due_s, steps = numbers["due_s"].tolist(), numbers["remaining_steps"].tolist()
        return list(zip(due_s, steps, strict=True))

    def _find(self, row: int) -> list[Option]:
        """Nodes are grouped by type and by power with so many GPUs in use; demand as when empty."""
        kind, least, most = self.keys[row][:3]
        base, nodes = self.requests.on_one_node(row, 0), dict[tuple[int, str, float, float], int]()
        for c, allowed in self._admitting(base):
            of_class, view = (
                self.layout.classes[c],
                self.layout.nodes[lowest(self.layout.members[c])],
            )
            curve = view.power_w or (0.0,)
            for gpus in range(least, min(most, of_class.size) + 1):
                rate = self.speeds.alone(kind, (of_class.gpu_type,), gpus)
                if rate > 0.0:
                    power_w = curve[min(gpus, len(curve) - 1)]
                    key = gpus, of_class.gpu_type, rate, power_w
                    nodes[key] = nodes.get(key, 0) | allowed
        return [
            Option(of, gpus, rate, power_w, Request(gpus, base.amounts, labels=base.labels))
            for (gpus, _, rate, power_w), of in nodes.items()
        ]

    def _admitting(self, request: Request) -> list[tuple[int, int]]:
        """Return (class, its open nodes with the labels) where the demand fits when empty."""
        classes, allowed = self.layout.admitting(request)
        found = [(c, self.layout.members[c] & allowed & self.open) for c in classes]
        return [
            (c, nodes)
            for c, nodes in found
            if nodes and _has(self.layout.classes[c].capacity, request.amounts)
        ]


def _has(capacity: Sequence[int], amounts: Sequence[int]) -> bool:
    return all(amount <= capacity[i] for i, amount in enumerate(amounts, RESOURCES))
