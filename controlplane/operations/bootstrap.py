"""First contents of an empty database; every step may be repeated."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from clusters.models import Cluster, EnergyTariff, GpuType, PueRecord
from controlplane.audit.record import record
from controlplane.web.credentials.passwords import make_one_time
from jobs.models import Membership, Team, TeamRole

CLUSTER = "local"
TEAM = "research"
ADMIN = "admin"

ANDREAS_PRICE = Decimal("0.17168313")
"""EUR/kWh of the published ANDREAS data."""

ANDREAS_PUE = 1.33

_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """Local agent's offer of emulated GPUs, with a node's power as in ANDREAS.

    base_w + idle_w for an idle GPU, peak_w for one at work (V100: 360 + 170 g, T4: 330 + 70 g W).
    """

    name: str
    gpu_type: str
    gpus: int
    tflops: float
    idle_w: float
    peak_w: float
    base_w: float
    memory_gb: float = 16.0


EMULATED_NODES = (
    EmulatedNode("volta", "V100", 2, tflops=14.0, idle_w=30.0, peak_w=200.0, base_w=300.0),
    EmulatedNode("pascal", "P100", 2, tflops=9.3, idle_w=30.0, peak_w=180.0, base_w=270.0),
    EmulatedNode("turing", "T4", 1, tflops=8.1, idle_w=10.0, peak_w=80.0, base_w=320.0),
)


@transaction.atomic
def bootstrap() -> str | None:
    """Create cluster, GPU types, prices, team and admin; the admin's password if new."""
    password = _make_admin()
    # Short leases, so that one machine notices a lost agent in seconds.
    intervals = {"heartbeat_s": 2.0, "lease_s": 15.0, "grace_s": 8.0, "margin_s": 3.0}
    cluster, _ = Cluster.objects.get_or_create(name=CLUSTER, defaults=intervals)
    if not cluster.tariffs.exists():
        EnergyTariff.objects.create(
            cluster=cluster,
            name="flat",
            effective_from=_BEGINNING,
            default_price_per_kwh=ANDREAS_PRICE,
        )
    if not cluster.pues.exists():
        PueRecord.objects.create(cluster=cluster, effective_from=_BEGINNING, pue=ANDREAS_PUE)
    for node in EMULATED_NODES:
        names = ("tflops", "memory_gb", "idle_w", "peak_w")
        values: dict[str, Any] = {name: getattr(node, name) for name in names}
        GpuType.objects.get_or_create(name=node.gpu_type, defaults={**values, "emulated": True})
    team, _ = Team.objects.get_or_create(name=TEAM)
    for admin in User.objects.filter(is_superuser=True):
        maintainer = {"role": TeamRole.MAINTAINER}
        Membership.objects.get_or_create(team=team, user=admin, defaults=maintainer)
    if password is not None:
        record("server.bootstrap", cluster, new={"admin": ADMIN, "team": team.name})
    return password


def _make_admin() -> str | None:
    """Create the admin; return the one-time password, None if there is an admin already."""
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(12)
    make_one_time(User.objects.create_superuser(ADMIN, password=password))
    return password
