"""manage.py set_gpu_type NAME --tflops T --memory-gb M --idle-w I --peak-w P: a GPU type."""

from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from clusters.management.operators import OperatorCommand, finite
from clusters.models import Cluster, GpuType
from clusters.tariffs import costs_changed
from controlplane.audit.record import record_values

FIGURES = {
    "tflops": "peak TFLOP/s, used for estimates",
    "memory_gb": "memory of one GPU",
    "idle_w": "watts of one idle GPU",
    "peak_w": "watts of one GPU at work",
    "price_per_hour": (
        "what an hour of one GPU in use costs, for policies that go by prices (0: not known)"
    ),
}
PRICE = "price_per_hour"
"""Optional for a new type."""


class Command(OperatorCommand):
    help = "Make a GPU type known, or change its figures (TFLOP/s for estimates, watts for costs)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("name", help="as the driver calls it; an agent that is refused says the name")
        for figure, meaning in FIGURES.items():
            add(f"--{figure.replace('_', '-')}", type=finite, help=meaning)
        add("--emulated", action="store_true", help="it is a pacing clock in place of hardware")

    def handle(self, *args: Any, name: str, emulated: bool, **options: Any) -> None:
        kind = GpuType.objects.filter(name=name).first() or GpuType(name=name, emulated=emulated)
        given = {figure: options[figure] for figure in FIGURES if options[figure] is not None}
        missing = [f"--{f.replace('_', '-')}" for f in FIGURES if f not in given and f != PRICE]
        if kind.pk is None and missing:
            raise CommandError(f"{name} is new: say {', '.join(missing)} too")
        old = {figure: getattr(kind, figure) for figure in given} if kind.pk else None
        for figure, value in given.items():
            setattr(kind, figure, Decimal(str(value)) if figure == PRICE else value)
        kind.full_clean()
        with transaction.atomic():
            kind.save()
            action = "gpu_type.add" if old is None else "gpu_type.change"
            record_values(action, kind, {name: getattr(kind, name) for name in given}, old)
            costs_changed(Cluster.objects.filter(nodes__gpu_type=kind).distinct())
        price = f", {float(kind.price_per_hour):g} an hour" if kind.price_per_hour else ""
        self.stdout.write(
            f"{kind}: {kind.tflops:g} TFLOP/s, {kind.memory_gb:g} GB, {kind.idle_w:g} W idle,"
            f" {kind.peak_w:g} W at work{price}"
        )
