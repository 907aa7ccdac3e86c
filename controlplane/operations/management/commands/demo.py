"""The demo: start everything, run eight jobs on emulated GPUs, report, stop."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from rich.console import Console

from clusters.models import Cluster
from controlplane.operations.bootstrap import CLUSTER
from controlplane.operations.demo.drive import play
from controlplane.operations.demo.image import demo_image
from controlplane.operations.demo.report import print_summary, report
from controlplane.operations.embedded.local import Local, running_locally, welcome
from controlplane.operations.embedded.programs import LocalRuntime
from controlplane.operations.embedded.supervisor import EmbeddedError
from loadmaster.demo.report import broken_promises, spoiled_figures
from loadmaster.features import RUNTIMES

FAST_INTERVALS = {
    "period_s": 5.0,
    "heartbeat_s": 1.0,
    "lease_s": 15.0,
    "grace_s": 6.0,
    "margin_s": 3.0,
    "restart_cost_s": 0.5,
    "profiling_steps": 12,
}
"""Intervals in seconds: five between periodic rounds in place of the paper's five minutes."""


class Command(BaseCommand):
    help = (
        "Start everything, submit eight training jobs shaped like Table V of the ANDREAS paper,"
        " write a report, stop"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000)
        text = "run jobs as processes or as containers"
        parser.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help=text)
        parser.add_argument("--report", type=Path, default=Path("demo-report.json"))

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(soft_wrap=False, width=None if self.stdout.isatty() else 160)
        try:
            image = demo_image(console.print) if options["runtime"] == "docker" else ""
            # The demo's programs need no network, so their containers have none.
            runtime = LocalRuntime(options["runtime"], "none")

            def welcome_people(local: Local) -> None:
                for line in welcome(local):
                    console.print(line)

            with running_locally(
                options["port"], console.print, runtime, on_pages=welcome_people
            ) as local:
                facts = self._run(local, console, image)
        except KeyboardInterrupt:
            raise CommandError("stopped before the end; no report was written") from None
        except EmbeddedError as error:
            raise CommandError(str(error)) from error
        failures, warnings = broken_promises(facts["jobs"]), spoiled_figures(facts["jobs"])
        facts["checks"] = {"failures": failures, "warnings": warnings}
        options["report"].write_text(json.dumps(facts, indent=1))
        print_summary(facts, console)
        if warnings:
            console.print("[yellow]Warning:[/yellow] some timings missed their goals.")
            machine = facts["machine"]
            console.print(
                f"  The load was {machine['load']:.1f} on {machine['cores']} cores at the end. Run"
                " the demo again on a machine that is otherwise idle."
            )
            for warning in warnings:
                console.print(f"  {warning}")
        if failures:
            raise CommandError("the demo broke these promises:\n  " + "\n  ".join(failures))
        console.print(
            f"Report: {options['report']} (checked: loadmaster check-report {options['report']})"
        )

    def _run(self, local: Local, console: Console, image: str) -> dict[str, Any]:
        Cluster.objects.filter(name=CLUSTER).update(**FAST_INTERVALS)
        cluster = Cluster.objects.get(name=CLUSTER)
        started_at = timezone.now()
        jobs = play(local.url, console, local.supervisor.pause, image=image)
        return report(cluster, jobs, started_at)
