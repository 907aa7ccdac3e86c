"""What-if to the end of the queue: choices are checked, and workers simulate the live queue.

The result is a simulation of the user alone. Its document holds the snapshot with all teams' jobs,
so nobody is shown it; the result names only the jobs that the user may see.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from math import isfinite
from typing import Any

from django.contrib.auth.models import User

from clusters.models import Cluster
from clusters.services.clusters import cluster_change
from controlplane.loop.live.observe import observe
from controlplane.simulation.choices import Choice
from controlplane.studies.documents import Resolved
from controlplane.studies.models import Simulation
from controlplane.studies.services import enqueue
from controlplane.studies.what_if.decide import WhatIfError, check
from jobs.selectors import seen_by
from policies.contract import snapshot_json
from policies.contract.snapshot import Snapshot

MOST_CHOICES = 8
HIGHEST_VALUE = 10_000.0
"""Highest value of an hour of a job's waiting, in the cluster's currency."""

FACTORS = (0.0, 0.25, 4.0, 16.0)
"""Values of time compared with the present one, as multiples of it."""

FACTORS_OF_DEFAULT = (0.25, 1.0, 4.0, 16.0)
"""Values of time compared with none, as multiples of the default."""


def queue_end_create(
    user: User, cluster: Cluster, asked: Sequence[Mapping[str, Any]]
) -> Simulation:
    """Queue a simulation of the live queue under the present choice and those asked for.

    A choice says what differs from the present. WhatIfError, SimulationConflictError.
    """
    # 1. The choices, the present one first.
    if not 1 <= len(asked) < MOST_CHOICES:
        problem = f"give 1 to {MOST_CHOICES - 1} to compare with the present one, not {len(asked)}"
        raise WhatIfError("choices", problem)
    choices = [present(cluster)]
    for index, differences in enumerate(asked):
        choices.append(_choice(cluster, differences, f"choices[{index}]."))

    # 2. The queue as it is now.
    snapshot = observe(cluster.pk, time.time(), cluster.round_number + 1).snapshot
    if not snapshot.jobs:
        raise WhatIfError("cluster", f"no job waits or runs on {cluster.name} now")

    # 3. A simulation of the user alone. `seen`: jobs that the result may name.
    document = {
        "snapshot": snapshot_json.to_json(snapshot),
        "choices": [asdict(choice) for choice in choices],
        "seen": sorted(map(str, seen_by(user, snapshot.jobs.columns.ids))),
    }
    name = f"What if on {cluster.name}, to the end of its queue"[:100]
    return enqueue(user, Resolved(name, document, _summary(cluster, snapshot, choices)))


def values_of_time(cluster: Cluster) -> list[dict[str, float]]:
    """Choices of four other values of time; of a cluster without one, around the default."""
    if cluster.value_of_time:
        base = float(cluster.value_of_time)
        factors = FACTORS
    else:
        base = float(Cluster._meta.get_field("value_of_time").default)
        factors = FACTORS_OF_DEFAULT
    return [{"value_of_time": min(HIGHEST_VALUE, factor * base)} for factor in factors]


def apply_choice(cluster: Cluster, by: User, choice: Mapping[str, Any]) -> list[str]:
    """Make an operator's choice the cluster's; return what changed. WhatIfError if refused."""
    check(choice["policy"], choice["parameters"])
    value = round(Decimal(str(choice["value_of_time"])), 6)
    values = {"policy": choice["policy"], "policy_parameters": choice["parameters"]}
    return cluster_change(cluster, by, {**values, "value_of_time": value})


def label(choice: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Choice in words: its policy, parameters, and value of time if it is not the first one's."""
    value = ""
    if choice["value_of_time"] != first["value_of_time"]:
        value = f"time at {choice['value_of_time']:g}/h"
    has_same_policy = all(choice[name] == first[name] for name in ("policy", "parameters"))
    if value and has_same_policy:
        return value
    parameters = ", ".join(f"{name}: {setting}" for name, setting in choice["parameters"].items())
    return ", ".join(part for part in (choice["policy"], parameters, value) if part)


def present(cluster: Cluster) -> Choice:
    """Return the choice that the cluster has now."""
    return Choice(cluster.policy, cluster.policy_parameters, float(cluster.value_of_time))


def _choice(cluster: Cluster, differences: Mapping[str, Any], place: str) -> Choice:
    """Present choice with these differences; errors name the field after `place`. WhatIfError."""
    now = present(cluster)
    policy = differences.get("policy", now.policy)
    defaults = now.parameters if policy == now.policy else {}
    parameters = differences.get("parameters", defaults)
    check(policy, parameters, place)
    value = differences.get("value_of_time", now.value_of_time)
    if not isfinite(value) or not 0.0 <= value <= HIGHEST_VALUE:
        limits = f"must be from 0 to {HIGHEST_VALUE:,.0f} for an hour of a job's waiting"
        raise WhatIfError(f"{place}value_of_time", f"{limits}, not {value:g}")
    return Choice(policy, parameters, value)


def _summary(cluster: Cluster, snapshot: Snapshot, choices: Sequence[Choice]) -> dict[str, Any]:
    """Facts of the simulation for lists."""
    first = asdict(choices[0])
    labels = [label(asdict(choice), first)[:100] for choice in choices]
    return {
        "what_if": True,
        "cluster": cluster.name,
        "live": True,
        "nodes": len(snapshot.nodes),
        "gpus": sum(len(node.devices) for node in snapshot.nodes),
        "workload": "queue",
        "jobs": len(snapshot.jobs),
        "policies": labels,
        "seeds": 1,
        "runs": len(choices),
        "switches": [],
    }
