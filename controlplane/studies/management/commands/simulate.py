"""manage.py simulate STUDY.yaml, or --cluster C --workload W --policy P ..."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clusters.management.operators import the_cluster
from clusters.models import Cluster
from controlplane.simulation.study.files import (
    cluster_of,
    is_live,
    policy_of,
    read_study,
    seeds_of,
    switches_of,
    workload_of,
)
from controlplane.simulation.study.study import (
    Study,
    StudyBusyError,
    StudyError,
    StudyProgress,
    run_study,
)
from controlplane.studies.documents import LIVE, live_workload
from controlplane.studies.live_cluster import cluster_spec
from controlplane.studies.pages.selectors import notes_of

OPERATOR = User(is_staff=True, is_active=True)
HISTORY_DAYS, MOST_HISTORY_DAYS = 30, 3660
TOLD_EVERY_S = 10.0
SHOWN = (
    ("total_cost", "total cost"),
    ("energy_cost", "energy"),
    ("tardiness_cost", "tardiness"),
    ("jct_mean_s", "mean completion, s"),
)


class Command(BaseCommand):
    help = (
        "Compare policies on a simulated cluster; the same command again goes on with what is not"
        " finished"
    )
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        workload = "FILE|TYPE[:NAME=VALUE,...]|history[:days=N]|queue"
        policy = "NAME|FILE.py[:PARAMETER=VALUE,...]"
        fields = "cluster, workload, policies, seeds, switches"
        add("study", nargs="?", type=Path, help=f"a YAML file with {fields}")
        add("--cluster", metavar="FILE|live[:NAME]", help="a YAML file, or a cluster as it is now")
        add("--workload", metavar=workload, help="a trace, a generator, past jobs, or present ones")
        add("--policy", action="append", metavar=policy, help="again for each policy")
        add("--seeds", metavar="1,2,3|1-5")
        add("--switch", action="append", metavar="NAME=VALUE", help="such as restart_cost_s=30")
        add("--name", help="the report's title")
        add("--skip-bad", action="store_true", help="leave bad lines of a trace out")
        add("--processes", type=int, help="runs at once (one per processor); 0: none of their own")
        every = "write every Nth round's snapshot of the runs still to do into OUTPUT/snapshots"
        add("--dump-snapshots", type=int, default=0, metavar="N", help=every)
        output = "folder of the results (./simulation)"
        add("--output", type=Path, default=Path("simulation"), help=output)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["processes"] is not None and options["processes"] < 0:
            raise CommandError("--processes: must be at least 0", returncode=2)
        if options["dump_snapshots"] < 0:
            raise CommandError("--dump-snapshots: must be at least 1, or 0 for none", returncode=2)
        try:
            study = Study.of(_document(options), trusted=True)
            report = run_study(
                study,
                options["output"],
                processes=options["processes"],
                on_progress=self._teller(),
                dump_every=options["dump_snapshots"],
            )
        except (StudyError, StudyBusyError) as error:
            raise CommandError(str(error), returncode=2) from None
        except OSError as error:
            why = f"--output: {options['output']} cannot be written: {error.strerror or error}"
            raise CommandError(why, returncode=2) from None
        except KeyboardInterrupt:
            raise CommandError(
                "stopped; finished runs are kept, the same command goes on with the rest",
                returncode=1,
            ) from None
        self._show(report)

    def _teller(self) -> Any:
        last_s, last_over = -TOLD_EVERY_S, -1

        def tell(progress: StudyProgress) -> None:
            nonlocal last_s, last_over
            over = progress.finished + progress.failed
            if over != last_over or monotonic() - last_s >= TOLD_EVERY_S:
                last_s, last_over = monotonic(), over
                self.stderr.write(told(progress), str)  # not in the colour of errors

        return tell

    def _show(self, report: Path) -> None:
        results = json.loads((report.parent / "results.json").read_text(encoding="utf-8"))
        console = Console(width=None if self.stdout.isatty() else 160)
        with console.capture() as shown:
            console.print(_table(results))
        self.stdout.write(shown.get())
        for note in [*notes_of(results), *_decision_times(report.parent)]:
            self.stdout.write(note)
        self.stdout.write(f"Report: {report}")
        if failures := results["failures"]:
            lines = [f"{f['policy']}, seed {f['seed']}: {f['message']}" for f in failures]
            lines.insert(0, f"{len(failures)} runs failed, the same command tries them again:")
            raise CommandError("\n  ".join(lines), returncode=1)


def told(progress: StudyProgress) -> str:
    over = f"{progress.finished} of {progress.total} runs are finished"
    failed = f", {progress.failed} failed" if progress.failed else ""
    left = "" if progress.left_s is None else f"; about {progress.left_s:,.0f} s left"
    return f"{100 * progress.fraction:5.1f}%  {over}{failed}{left if progress.fraction < 1 else ''}"


def _document(options: Mapping[str, Any]) -> dict[str, Any]:
    """Study's file with the options applied."""
    document = read_study(options["study"]) if options["study"] else {}
    given = {
        "name": options["name"],
        "policies": [policy_of(words) for words in options["policy"] or ()] or None,
        "seeds": seeds_of(options["seeds"]) if options["seeds"] else None,
        "skip_bad": options["skip_bad"] or None,
        "workload": workload_of(options["workload"], Path()) if options["workload"] else None,
    }
    if cluster := options["cluster"]:
        given["cluster"] = cluster if is_live(cluster) else cluster_of(cluster, Path())
    if options["switch"]:
        switches = switches_of(options["switch"])
        given["switches"] = {**(document.get("switches") or {}), **switches}
    document |= {field: value for field, value in given.items() if value is not None}
    return _live(document)


def _live(document: dict[str, Any]) -> dict[str, Any]:
    """Study with the live cluster and its history written out."""
    cluster, workload = document.get("cluster"), document.get("workload")
    given: Mapping[str, Any] = workload if isinstance(workload, Mapping) else {}
    of = given.get("type")
    if not isinstance(cluster, str):
        if of in LIVE:
            raise StudyError(f"workload: a {of} is a live cluster's; give --cluster live too")
        return document
    row = _cluster(cluster.partition(":")[2])
    written: dict[str, Any] = {"cluster": cluster_spec(OPERATOR, row)}
    if of in LIVE:
        asked = {"days": HISTORY_DAYS, **given} if of == "history" else given
        written["workload"] = live_workload(OPERATOR, asked, row, MOST_HISTORY_DAYS)
    return {**document, **written}


def _cluster(name: str) -> Cluster:
    if name:
        return the_cluster(name)
    rows = list(Cluster.objects.order_by("name")[:2])
    if len(rows) != 1:
        problem = "say which, live:NAME" if rows else "there is no live cluster yet"
        raise CommandError(f"--cluster: {problem}", returncode=2)
    return rows[0]


def _table(results: Mapping[str, Any]) -> Table:
    title = escape(f"{results['study']['name']} ({results['currency']})")
    table = Table(title=title, title_justify="left")
    for heading in ("policy", *(words for _, words in SHOWN), "GPUs in use", "late", "unfinished"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy in results["policies"]:
        mean = policy["mean"]
        cells = [_figure(mean[name]) for name, _ in SHOWN]
        counts = _figure(mean["late"]), _figure(mean["unfinished"])
        used = mean["utilisation"]["mean"]
        share = "-" if used is None else f"{100 * used:.1f}%"
        table.add_row(escape(policy["label"]), *cells, share, *counts)
    return table


def _decision_times(folder: Path) -> list[str]:
    """Wall time of the decisions of each policy, over its seeds."""
    runs = json.loads((folder / "timings.json").read_text(encoding="utf-8"))["runs"]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run.get("decisions"):
            found.setdefault(run["policy"], []).append(run)
    return [
        f"Decisions of {policy}: {1000 * _mean_s(of):,.3g} ms on average, "
        f"{1000 * max(run['decision_p99_s'] for run in of):,.3g} ms at 99%, "
        f"{sum(run['decisions'] for run in of):,} in all"
        for policy, of in found.items()
    ]


def _mean_s(runs: Sequence[Mapping[str, Any]]) -> float:
    decisions = sum(int(run["decisions"]) for run in runs)
    return sum(float(run["decisions_s"]) for run in runs) / decisions


def _figure(interval: Mapping[str, Any]) -> str:
    if interval["mean"] is None:
        return "-"
    half = interval["half_width"]
    return f"{interval['mean']:,.6g}" + ("" if half is None else f" ± {half:,.3g}")
