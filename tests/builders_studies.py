"""Builders of simulations: studies as people ask for them, rows, and processes that only pretend to
simulate.
"""

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from controlplane.studies.models import Simulation, SimulationFile
from controlplane.studies.running.process import StudyProcess
from controlplane.studies.running.runner import Ports, run_next
from controlplane.studies.services import simulation_create
from tests.builders import a_user

REPORT = "<!doctype html><title>report</title><script>document.title = 'drawn'</script>"
RESULTS: dict[str, Any] = {
    "version": 1,
    "currency": "EUR",
    "switches_on": {},
    "metrics": [
        {"name": "total_cost", "words": "Total cost", "unit": "EUR"},
        {"name": "energy_cost", "words": "Energy cost", "unit": "EUR"},
        {"name": "tardiness_cost", "words": "Tardiness cost", "unit": "EUR"},
        {"name": "jct_mean_s", "words": "Completion time, mean", "unit": "s"},
        {"name": "makespan_s", "words": "Makespan", "unit": "s"},
        {"name": "utilisation", "words": "GPUs in use", "unit": ""},
        {"name": "late", "words": "Jobs late", "unit": ""},
        {"name": "preemptions", "words": "Pre-emptions", "unit": ""},
    ],
    "workloads": [{"seed": 1, "name": "poisson", "jobs": 8, "skipped": 0, "unplaceable": 0}],
    "policies": [
        {
            "name": name, "label": name, "parameters": {},
            "mean": {
                metric: {"mean": value * factor, "half_width": 0.1 * value, "n": 3}
                for metric, value in {
                    "total_cost": 2.4, "energy_cost": 2.0, "tardiness_cost": 0.4,
                    "jct_mean_s": 4321.0, "makespan_s": 9000.0,
                    "utilisation": 0.61, "late": 3.0, "preemptions": 5.0,
                }.items()
            },
            "total_cost_against_first": {"mean": factor - 1.0, "half_width": 0.02, "n": 3},
        }
        for name, factor in (("fifo", 1.0), ("randomized_greedy", 0.7))
    ],
    "failures": [],
}  # fmt: skip


def a_study(**fields: Any) -> dict[str, Any]:
    """A small study as somebody sends it; None leaves a field out."""
    data: dict[str, Any] = {
        "name": "small",
        "cluster": {
            "nodes": [{"name": "v", "gpu_type": "V100", "gpus": 2, "count": 2}],
            "energy": {"price_per_kwh": 0.172, "pue": 1.33},
        },
        "workload": {"type": "poisson", "jobs": 8, "gap_s": 300},
        "policies": [{"name": "fifo"}, {"name": "edf"}],
        "seeds": [1],
        **fields,
    }
    return {name: value for name, value in data.items() if value is not None}


def a_simulation(user: User | None = None, **values: Any) -> Simulation:
    """A row of a small study; `study` gives fields of the study, the rest are the row's own."""
    study = values.pop("study", {})
    made = simulation_create(user or a_user(), a_study(**study))
    if values:
        Simulation.objects.filter(pk=made.pk).update(**values)
        made.refresh_from_db()
    return made


def a_done_simulation(user: User | None = None, **values: Any) -> Simulation:
    """One that is done, with files that are easy to tell."""
    made = a_simulation(user, **{"state": "done", "progress": 1.0, **values})
    for name, text in (
        ("report.html", REPORT),
        ("results.json", json.dumps(RESULTS)),
        ("jobs.csv", "policy,seed\nfifo,1\n"),
    ):
        data = text.encode()
        SimulationFile.objects.create(
            simulation=made, name=name, size=len(data), data=zlib.compress(data)
        )
    return made


def a_simulation_that_ran(user: User, **values: Any) -> Simulation:
    """One that a worker has really run; nothing else may wait."""
    made = a_simulation(user, **values)
    assert run_next(Ports(lambda folder: StudyProcess(folder, processes=0, memory_gb=0))) == made
    made.refresh_from_db()
    assert made.state == "done", made.message
    return made


def pretending(folder: Path, script: str, **ports: Any) -> Ports:
    """A process that runs this script in place of the study; it sees `folder` and `say`."""
    path = folder / "pretend.py"
    path.write_text(
        "import json, os, pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[-1])\n"
        "def say(**what): print(json.dumps(what), flush=True)\n"
        f"{script}\n"
    )

    def process(of: Path) -> StudyProcess:
        return StudyProcess(of, processes=1, memory_gb=0, command=[sys.executable, str(path)])

    defaults: dict[str, Any] = {"stopping": _never, "turn_s": 0.05}
    return Ports(process, **{**defaults, **ports})


def _never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    """True from the call after so many on."""
    count = 0

    def is_so() -> bool:
        nonlocal count
        count += 1
        return count > calls

    return is_so
