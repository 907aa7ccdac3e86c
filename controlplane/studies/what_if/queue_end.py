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
FACTORS = (0.0, 0.25, 4.0, 16.0)
"""Values of time compared with the present one, as multiples of it."""


def queue_end_create(
    user: User, cluster: Cluster, asked: Sequence[Mapping[str, Any]]
) -> Simulation:
    """Queue a simulation of the live queue under the present choice and those asked for.

    A choice says what differs from the present. WhatIfError, SimulationConflictError.
    """
    if not 1 <= len(asked) < MOST_CHOICES:
        said = f"give 1 to {MOST_CHOICES - 1} to compare with the present one, not {len(asked)}"
        raise WhatIfError("choices", said)
    others = [_choice(cluster, given, f"choices[{i}].") for i, given in enumerate(asked)]
    choices = [present(cluster), *others]
    snapshot = observe(cluster.pk, time.time(), cluster.round_number + 1).snapshot
    if not snapshot.jobs:
        raise WhatIfError("cluster", f"no job waits or runs on {cluster.name} now")
    document = {
        "snapshot": snapshot_json.to_json(snapshot),
        "choices": [asdict(choice) for choice in choices],
        "seen": sorted(map(str, seen_by(user, snapshot.jobs.columns.ids))),
    }
    name = f"What if on {cluster.name}, to the end of its queue"[:100]
    return enqueue(user, Resolved(name, document, _summary(cluster, snapshot, choices)))


def values_of_time(cluster: Cluster) -> list[dict[str, float]]:
    """Choices of four other values of time; of a cluster without one, around the default."""
    usual = float(cluster.value_of_time) or float(Cluster._meta.get_field("value_of_time").default)
    factors = FACTORS if cluster.value_of_time else (0.25, 1.0, 4.0, 16.0)
    return [{"value_of_time": min(HIGHEST_VALUE, factor * usual)} for factor in factors]


def apply_choice(cluster: Cluster, by: User, choice: Mapping[str, Any]) -> list[str]:
    """Make an operator's choice the cluster's; return what changed. WhatIfError if refused."""
    check(choice["policy"], choice["parameters"])
    value = round(Decimal(str(choice["value_of_time"])), 6)
    values = {"policy": choice["policy"], "policy_parameters": choice["parameters"]}
    return cluster_change(cluster, by, {**values, "value_of_time": value})


def label(choice: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Choice in words: its policy, parameters, and value of time where it is another."""
    given = ", ".join(f"{name}: {value}" for name, value in choice["parameters"].items())
    value = f"time at {choice['value_of_time']:g}/h"
    differs = choice["value_of_time"] != first["value_of_time"]
    same = all(choice[name] == first[name] for name in ("policy", "parameters"))
    if differs and same:
        return value
    return ", ".join(filter(None, [choice["policy"], given, value if differs else ""]))


def present(cluster: Cluster) -> Choice:
    """Return the choice that the cluster has now."""
    return Choice(cluster.policy, cluster.policy_parameters, float(cluster.value_of_time))


def _choice(cluster: Cluster, given: Mapping[str, Any], place: str) -> Choice:
    now = present(cluster)
    policy = given.get("policy", now.policy)
    usual = now.parameters if policy == now.policy else {}
    parameters = given.get("parameters", usual)
    check(policy, parameters, place)
    value = given.get("value_of_time", now.value_of_time)
    if not isfinite(value) or not 0.0 <= value <= HIGHEST_VALUE:
        wanted = f"must be from 0 to {HIGHEST_VALUE:,.0f} for an hour of a job's waiting"
        raise WhatIfError(f"{place}value_of_time", f"{wanted}, not {value:g}")
    return Choice(policy, parameters, value)


def _summary(cluster: Cluster, snapshot: Snapshot, choices: Sequence[Choice]) -> dict[str, Any]:
    return {
        "what_if": True,
        "cluster": cluster.name,
        "live": True,
        "nodes": len(snapshot.nodes),
        "gpus": sum(len(node.devices) for node in snapshot.nodes),
        "workload": "queue",
        "jobs": len(snapshot.jobs),
        "policies": [label(asdict(c), asdict(choices[0]))[:100] for c in choices],
        "seeds": 1,
        "runs": len(choices),
        "switches": [],
    }
