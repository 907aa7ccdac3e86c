"""Builders of launches that share a GPU, and of kinds whose pairs are known."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from clusters.models import Cluster, Device, Node
from jobs.models import Assignment, AssignmentSlot, Job, Kind, ProgressPoint
from loadmaster.protocol import AssignmentState
from profiling.models import PairProfile
from tests.builders import a_gpu_type, a_job, a_kind, a_node
from tests.builders_pairs import sharing_kinds


def a_shared_node(cluster: Cluster, gpu_type: str = "V100", gpus: int = 1, **values: Any) -> Node:
    """A node whose GPUs take two jobs each."""
    node = a_node(cluster, gpu_type=gpu_type, gpus=gpus, **values)
    Device.objects.filter(node=node).update(slots=2)
    return node


def a_sharing_job(cluster: Cluster, kind: Kind | None = None, **values: Any) -> Job:
    """A running job of one GPU that may share it."""
    return a_job(cluster, kind=kind, **{"may_share": True, "state": "running", **values})


def a_shared_launch(
    job: Job,
    node: Node,
    *,
    slot: int = 0,
    steps_per_s: float = 2.0,
    from_s: float = -100.0,
    to_s: float = 0.0,
    **values: Any,
) -> Assignment:
    """An ended launch on half of the node's first GPU, from and to so many seconds from now; its
    progress told once a second.
    """
    now = timezone.now()
    Job.objects.filter(pk=job.pk).update(fence=F("fence") + 1)
    job.refresh_from_db(fields=["fence"])
    since, until = now + timedelta(seconds=from_s), now + timedelta(seconds=to_s)
    steps = int((to_s - from_s) * steps_per_s)
    given = {
        "state": AssignmentState.SUCCEEDED, "accepted_at": since, "running_at": since,
        "ended_at": until, "share": 0.5,
        "steps_done": steps, **values,
    }  # fmt: skip
    launch = Assignment.objects.create(job=job, node=node, gpus=1, fence=job.fence, **given)
    live = given["ended_at"] is None
    device = node.devices.order_by("uuid")[0]
    AssignmentSlot.objects.create(assignment=launch, device=device, slot=slot, share=0.5, live=live)
    step_until(launch, steps_per_s, since, until)
    return launch


def step_until(launch: Assignment, steps_per_s: float, since: datetime, until: datetime) -> None:
    """Progress samples at every second, at an even pace."""
    seconds = int((until - since).total_seconds())
    points = [
        ProgressPoint(
            assignment=launch, at=since + timedelta(seconds=s), event="progress",
            step=int(s * steps_per_s),
            launch_steps=int(s * steps_per_s), elapsed_s=int(s * steps_per_s) / steps_per_s,
        )
        for s in range(1, seconds + 1)
    ]  # fmt: skip
    ProgressPoint.objects.bulk_create(points)


def a_known_pair(
    first: Kind, second: Kind, rates: tuple[float, float], gpu_type: str = "V100", **values: Any
) -> PairProfile:
    """A measured pair, in whichever order the kinds are given."""
    if first.pk > second.pk:
        first, second, rates = second, first, (rates[1], rates[0])
    given = {"source": "measured", "samples": 1, **values}
    return PairProfile.objects.create(
        first=first, second=second, gpu_type=a_gpu_type(gpu_type),
        first_steps_per_s=rates[0], second_steps_per_s=rates[1], **given,
    )  # fmt: skip


def families_of_kinds(
    count: int = 3, each: int = 3, gpu_type: str = "V100"
) -> tuple[dict[str, Kind], Mapping[tuple[str, str], float]]:
    """Kinds "family.member" with their own speeds, every pair measured; and the true fraction that
    each keeps beside each.
    """
    truth = {(k, q): s for (k, q, _), s in sharing_kinds(count, each, (gpu_type,)).items()}
    speeds = {name: 1.0 + i for i, name in enumerate(sorted({k for k, _ in truth}))}
    kinds = {
        name: a_kind(name, steps_per_s={(gpu_type, 1): speed}) for name, speed in speeds.items()
    }
    for first in kinds:
        for second in kinds:
            if first <= second:
                rates = truth[first, second] * speeds[first], truth[second, first] * speeds[second]
                a_known_pair(kinds[first], kinds[second], rates, gpu_type)
    return kinds, truth
