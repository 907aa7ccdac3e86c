"""manage.py set_gpu_type NAME --tflops T --memory-gb M ...: create or change a GPU type."""

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
"""Fields of a GPU type that are numbers, with their help."""

PRICE = "price_per_hour"
"""Figure that a new type need not have."""


class Command(OperatorCommand):
    help = "Make a GPU type known, or change its figures (TFLOP/s for estimates, watts for costs)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("name", help="as the driver calls it; an agent that is refused says the name")
        for figure, meaning in FIGURES.items():
            add(f"--{figure.replace('_', '-')}", type=finite, help=meaning)
        add("--emulated", action="store_true", help="it is a pacing clock in place of hardware")

    def handle(self, *args: Any, name: str, emulated: bool, **options: Any) -> None:
        # 1. The figures that were given; a new type needs all but the price.
        gpu_type = GpuType.objects.filter(name=name).first()
        if gpu_type is None:
            gpu_type = GpuType(name=name, emulated=emulated)
        values = {}
        missing = []
        for figure in FIGURES:
            value = options[figure]
            if value is not None:
                values[figure] = Decimal(str(value)) if figure == PRICE else value
            elif figure != PRICE:
                missing.append(f"--{figure.replace('_', '-')}")
        if gpu_type.pk is None and missing:
            raise CommandError(f"{name} is new: say {', '.join(missing)} too")

        # 2. Save them, with a round of each cluster that has such GPUs.
        old_values = None
        if gpu_type.pk is not None:
            old_values = {figure: getattr(gpu_type, figure) for figure in values}
        for figure, value in values.items():
            setattr(gpu_type, figure, value)
        gpu_type.full_clean()
        new_values = {figure: getattr(gpu_type, figure) for figure in values}
        with transaction.atomic():
            gpu_type.save()
            action = "gpu_type.add" if old_values is None else "gpu_type.change"
            record_values(action, gpu_type, new_values, old_values)
            costs_changed(Cluster.objects.filter(nodes__gpu_type=gpu_type).distinct())

        # 3. Show the type.
        price = ""
        if gpu_type.price_per_hour:
            price = f", {float(gpu_type.price_per_hour):g} an hour"
        self.stdout.write(
            f"{gpu_type}: {gpu_type.tflops:g} TFLOP/s, {gpu_type.memory_gb:g} GB,"
            f" {gpu_type.idle_w:g} W idle, {gpu_type.peak_w:g} W at work{price}"
        )
