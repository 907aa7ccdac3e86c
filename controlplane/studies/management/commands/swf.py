"""manage.py swf FOLDER [--policy LABEL] [--seed N], or --cluster NAME [--days N]: an SWF log."""

import json
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from clusters.management.operators import the_cluster
from controlplane.simulation.report.swf_writer import Record, lines_of, records_of
from controlplane.simulation.study.run_files import load as load_run
from controlplane.simulation.study.study import Study, StudyError
from controlplane.simulation.workloads import WorkloadError
from controlplane.studies.history_log import history_records

OPERATOR = User(is_staff=True, is_active=True)
"""Unsaved operator, as users of this command can read the database."""


class Command(BaseCommand):
    help = "Print a study's run, or a cluster's history, in the Standard Workload Format"
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", nargs="?", type=Path, help="a study's folder of results")
        parser.add_argument("--policy", help="label of the run's policy (the first)")
        parser.add_argument("--seed", type=int, help="seed of the run (the first)")
        parser.add_argument("--cluster", help="a live cluster, instead of a study")
        parser.add_argument("--days", type=float, default=30.0, help="of the history (30)")

    def handle(self, *args: Any, **options: Any) -> None:
        folder = options["folder"]
        cluster_name = options["cluster"]
        if (folder is None) == (cluster_name is None):
            raise CommandError("give a study's folder, or --cluster", returncode=2)
        if cluster_name is None:
            self._print_run(folder, options["policy"], options["seed"])
            return
        if not 0 < options["days"] <= 3660:
            raise CommandError("--days: must be above 0, at most 3660", returncode=2)
        cluster = the_cluster(cluster_name)
        records = history_records(OPERATOR, cluster, options["days"])
        self._print(records, f"{cluster.name}, history")

    def _print_run(self, folder: Path, label: str | None, seed: int | None) -> None:
        """Print a study's first run with this label and seed, any for None. CommandError."""
        # 1. The run.
        try:
            document = json.loads((folder / "study.json").read_text(encoding="utf-8"))
            study = Study.of(document, trusted=True)
            runs = list(study.runs())
        except (OSError, ValueError, StudyError) as error:
            raise CommandError(f"{folder} is no study's folder: {error}", returncode=2) from None
        if label is not None:
            runs = [run for run in runs if run.label == label]
        if seed is not None:
            runs = [run for run in runs if run.seed == seed]
        if not runs:
            raise CommandError("--policy, --seed: the study has no such run", returncode=2)
        run = runs[0]

        # 2. Its outcome, as records of the format.
        stored = load_run(folder / "runs" / f"{run.key}.npz")
        if stored is None:
            problem = "this run is not finished, or of an older version; run the study again"
            raise CommandError(f"{folder}: {problem}", returncode=1)
        try:
            records, incomplete = records_of(study.load(run.seed), stored.outcome)
        except WorkloadError as error:
            raise CommandError(f"{folder}: {error}", returncode=1) from None

        # 3. The log.
        notes = []
        if incomplete:
            notes.append(
                f"{incomplete} jobs have dependencies or resources that the format cannot say"
            )
        self._print(records, f"{study.name}, {run.label}, seed {run.seed}", notes)

    def _print(self, records: Iterable[Record], title: str, notes: Iterable[str] = ()) -> None:
        for line in lines_of(records, title, list(notes)):
            self.stdout.write(line, ending="")
