"""manage.py simulate STUDY.yaml, or --cluster C --workload W --policy P ..."""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
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
"""Unsaved operator, as users of this command can read the database."""

HISTORY_DAYS = 30
MOST_HISTORY_DAYS = 3660
"""Days of a live cluster's history, if not given, and at most."""

PROGRESS_EVERY_S = 10.0
"""Longest time between two lines of progress."""

SHOWN = (
    ("total_cost", "total cost"),
    ("energy_cost", "energy"),
    ("tardiness_cost", "tardiness"),
    ("jct_mean_s", "mean completion, s"),
)


class Command(BaseCommand):
    help = "Compare policies on a simulated cluster; repeat the command to continue unfinished runs"
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        workload = "FILE|TYPE[:NAME=VALUE,...]|history[:days=N]|queue"
        policy = "NAME|FILE.py[:PARAMETER=VALUE,...]"
        fields = "cluster, workload, policies, seeds, switches"
        add("study", nargs="?", type=Path, help=f"a YAML file with {fields}")
        add("--cluster", metavar="FILE|live[:NAME]", help="a YAML file, or a cluster as it is now")
        add(
            "--workload",
            metavar=workload,
            help="a trace, a generator, past jobs, or the present queue",
        )
        add(
            "--policy", action="append", metavar=policy, help="a policy to compare; may be repeated"
        )
        add("--seeds", metavar="1,2,3|1-5")
        add("--switch", action="append", metavar="NAME=VALUE", help="such as restart_cost_s=30")
        add("--name", help="the report's title")
        add("--skip-bad", action="store_true", help="leave bad lines of a trace out")
        add(
            "--processes",
            type=int,
            help="processes for runs (one per processor); 0: run in this process",
        )
        every = "write every Nth round's snapshot of unfinished runs into OUTPUT/snapshots"
        add("--dump-snapshots", type=int, default=0, metavar="N", help=every)
        output = "folder of the results (./simulation)"
        add("--output", type=Path, default=Path("simulation"), help=output)

    def handle(self, *args: Any, **options: Any) -> None:
        # 1. Numbers of which some mean nothing.
        if options["processes"] is not None and options["processes"] < 0:
            raise CommandError("--processes: must be at least 0", returncode=2)
        if options["dump_snapshots"] < 0:
            raise CommandError("--dump-snapshots: must be at least 1, or 0 for none", returncode=2)

        # 2. The study, run to its end.
        try:
            study = Study.of(_document(options), trusted=True)
            report = run_study(
                study,
                options["output"],
                processes=options["processes"],
                on_progress=self._progress_writer(),
                dump_every=options["dump_snapshots"],
            )
        except (StudyError, StudyBusyError) as error:
            raise CommandError(str(error), returncode=2) from None
        except OSError as error:
            cause = error.strerror or error
            problem = f"--output: {options['output']} cannot be written: {cause}"
            raise CommandError(problem, returncode=2) from None
        except KeyboardInterrupt:
            raise CommandError(
                "stopped; finished runs are kept, and the same command continues",
                returncode=1,
            ) from None

        # 3. Its results.
        self._show(report)

    def _progress_writer(self) -> Callable[[StudyProgress], None]:
        """Make a function that writes progress: as each run ends, and every few seconds."""
        last_s = -PROGRESS_EVERY_S
        last_ended = -1

        def write(progress: StudyProgress) -> None:
            nonlocal last_s, last_ended
            ended = progress.finished + progress.failed
            if ended != last_ended or monotonic() - last_s >= PROGRESS_EVERY_S:
                last_s = monotonic()
                last_ended = ended
                self.stderr.write(in_words(progress), str)  # not in the colour of errors

        return write

    def _show(self, report: Path) -> None:
        """Print results and notes beside the report. CommandError if runs failed."""
        results = json.loads((report.parent / "results.json").read_text(encoding="utf-8"))
        console = Console(width=None if self.stdout.isatty() else 160)
        with console.capture() as capture:
            console.print(_table(results))
        self.stdout.write(capture.get())
        for note in [*notes_of(results), *_decision_times(report.parent)]:
            self.stdout.write(note)
        self.stdout.write(f"Report: {report}")
        failures = results["failures"]
        if failures:
            lines = [f"{len(failures)} runs failed, the same command tries them again:"]
            for failure in failures:
                lines.append(f"{failure['policy']}, seed {failure['seed']}: {failure['message']}")
            raise CommandError("\n  ".join(lines), returncode=1)


def in_words(progress: StudyProgress) -> str:
    """Line of progress: " 50.0%  2 of 4 runs are finished, 1 failed; about 60 s left"."""
    line = f"{100 * progress.fraction:5.1f}%  "
    line += f"{progress.finished} of {progress.total} runs are finished"
    if progress.failed:
        line += f", {progress.failed} failed"
    if progress.left_s is not None and progress.fraction < 1:
        line += f"; about {progress.left_s:,.0f} s left"
    return line


def _document(options: Mapping[str, Any]) -> dict[str, Any]:
    """Study's file, if there is one, with the options in place of its fields. StudyError."""
    document = read_study(options["study"]) if options["study"] else {}
    if options["name"] is not None:
        document["name"] = options["name"]
    if options["policy"]:
        document["policies"] = [policy_of(words) for words in options["policy"]]
    if options["seeds"]:
        document["seeds"] = seeds_of(options["seeds"])
    if options["skip_bad"]:
        document["skip_bad"] = True
    if options["workload"]:
        document["workload"] = workload_of(options["workload"], Path())
    cluster = options["cluster"]
    if cluster:
        document["cluster"] = cluster if is_live(cluster) else cluster_of(cluster, Path())
    if options["switch"]:
        earlier = document.get("switches") or {}
        document["switches"] = {**earlier, **switches_of(options["switch"])}
    return _with_live_parts(document)


def _with_live_parts(document: dict[str, Any]) -> dict[str, Any]:
    """Study with the live cluster, "live" or "live:NAME", and its workload written out."""
    cluster = document.get("cluster")
    workload = document.get("workload")
    spec: Mapping[str, Any] = workload if isinstance(workload, Mapping) else {}
    workload_type = spec.get("type")
    if not isinstance(cluster, str):
        if workload_type in LIVE:
            raise StudyError(
                f"workload: a {workload_type} is a live cluster's; give --cluster live too"
            )
        return document

    live_cluster = _cluster(cluster.partition(":")[2])
    written: dict[str, Any] = {"cluster": cluster_spec(OPERATOR, live_cluster)}
    if workload_type in LIVE:
        if workload_type == "history":
            spec = {"days": HISTORY_DAYS, **spec}
        written["workload"] = live_workload(OPERATOR, spec, live_cluster, MOST_HISTORY_DAYS)
    return {**document, **written}


def _cluster(name: str) -> Cluster:
    """Cluster of this name; the only one if the name is empty. CommandError."""
    if name:
        return the_cluster(name)
    clusters = list(Cluster.objects.order_by("name")[:2])
    if len(clusters) != 1:
        problem = "say which, live:NAME" if clusters else "there is no live cluster yet"
        raise CommandError(f"--cluster: {problem}", returncode=2)
    return clusters[0]


def _table(results: Mapping[str, Any]) -> Table:
    """Table of the policies' mean figures."""
    title = escape(f"{results['study']['name']} ({results['currency']})")
    table = Table(title=title, title_justify="left")
    table.add_column("policy", justify="left")
    headings = [words for _, words in SHOWN]
    for heading in (*headings, "GPUs in use", "late", "unfinished"):
        table.add_column(heading, justify="right")
    for policy in results["policies"]:
        mean = policy["mean"]
        figures = [_figure(mean[name]) for name, _ in SHOWN]
        utilisation = mean["utilisation"]["mean"]
        in_use = "-" if utilisation is None else f"{100 * utilisation:.1f}%"
        late = _figure(mean["late"])
        unfinished = _figure(mean["unfinished"])
        table.add_row(escape(policy["label"]), *figures, in_use, late, unfinished)
    return table


def _decision_times(folder: Path) -> list[str]:
    """Wall time of the decisions of each policy, over its seeds."""
    runs = json.loads((folder / "timings.json").read_text(encoding="utf-8"))["runs"]
    runs_by_policy: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run.get("decisions"):
            runs_by_policy.setdefault(run["policy"], []).append(run)
    lines = []
    for policy, policy_runs in runs_by_policy.items():
        decisions = sum(int(run["decisions"]) for run in policy_runs)
        mean_s = sum(float(run["decisions_s"]) for run in policy_runs) / decisions
        slowest_s = max(run["decision_p99_s"] for run in policy_runs)
        lines.append(
            f"Decisions of {policy}: {1000 * mean_s:,.3g} ms on average, "
            f"{1000 * slowest_s:,.3g} ms at 99%, {decisions:,} in all"
        )
    return lines


def _figure(interval: Mapping[str, Any]) -> str:
    """Mean with half its confidence interval: "12.3 ± 0.4"; a dash if it is not known."""
    if interval["mean"] is None:
        return "-"
    half_width = interval["half_width"]
    spread = "" if half_width is None else f" ± {half_width:,.3g}"
    return f"{interval['mean']:,.6g}{spread}"
