"""Builders of work that drew energy: a node with known watts, assignments with their hours, samples
of power.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone

from clusters.models import Cluster, EnergyTariff, Node
from controlplane.accounting.models import EnergyEntry
from jobs.models import Assignment, AssignmentSlot, UsagePoint
from tests.builders import a_cluster, a_gpu_type, a_job, a_node

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PRICE = 0.172 * 1.33
"""Per kWh of IT energy: the builders' tariff times their PUE."""


def later(hours: float) -> datetime:
    """So many hours after START."""
    return START + timedelta(hours=hours)


def a_priced_cluster(**values: Any) -> Cluster:
    """A cluster whose tariff and PUE have been in force since long before START."""
    cluster = a_cluster(**values)
    EnergyTariff.objects.filter(cluster=cluster).update(
        effective_from=LONG_AGO, emissions_g_per_kwh=300.0
    )
    cluster.pues.update(effective_from=LONG_AGO)
    return cluster


def a_v100_node(cluster: Cluster, **values: Any) -> Node:
    """A V100 node as ANDREAS measured it: 360 + 170 g watts with g of its two GPUs in use."""
    return a_node(
        cluster,
        gpu_type=a_gpu_type("V100", idle_w=30.0, peak_w=200.0),
        **{"gpus": 2, "base_w": 300.0, **values},
    )


def some_work(
    node: Node, hours: tuple[float, float], *, devices: tuple[int, ...] = (0, 1), **values: Any
) -> Assignment:
    """An assignment that was accepted, ran at once and ended: hours since START."""
    begin, end = later(hours[0]), later(hours[1])
    given = {
        "accepted_at": begin,
        "running_at": begin,
        "ended_at": end,
        "state": "succeeded",
        "fence": 1,
        **values,
    }
    job = given.pop("job", None) or a_job(node.cluster)
    assignment = Assignment.objects.create(job=job, node=node, gpus=len(devices), **given)
    held = [node.devices.order_by("pk")[i] for i in devices]
    AssignmentSlot.objects.bulk_create(
        AssignmentSlot(assignment=assignment, device=d, live=False) for d in held
    )
    return assignment


def a_sample(assignment: Assignment, hours: float, watts: float, source: str = "measured") -> None:
    """What its GPUs took together at that hour since START."""
    UsagePoint.objects.create(
        assignment=assignment,
        at=later(hours),
        cores=1.0,
        memory_gb=1.0,
        gpu_power_w=watts,
        power_source=source,
    )


def a_days_energy(hours: int = 30) -> None:
    """Entries of every placed job for each of the last hours, part measured and part modelled, more
    by day than by night.
    """
    newest = timezone.now().replace(minute=0, second=0, microsecond=0)
    for assignment in Assignment.objects.select_related("job", "node__cluster"):
        for back in range(hours):
            hour = newest - timedelta(hours=back)
            busy = (0.3 + 0.7 * abs(12 - hour.hour) / 12) * assignment.gpus
            EnergyEntry.objects.create(
                assignment=assignment, hour=hour, cluster=assignment.node.cluster,
                node=assignment.node, job=assignment.job,
                team=assignment.job.team, purpose="training", gpu_s=3600.0 * assignment.gpus,
                measured_kwh=0.15 * busy,
                modelled_kwh=0.1 * busy, rest_kwh=0.2 * busy, facility_kwh=0.6 * busy,
                emissions_g=180 * busy,
                cost=Decimal(f"{0.1 * busy:.6f}"), measured_cost=Decimal(f"{0.034 * busy:.6f}"),
                predicted_kwh=0.43 * busy,
                predicted_cost=Decimal(f"{0.097 * busy:.6f}"),
            )  # fmt: skip
