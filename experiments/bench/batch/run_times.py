"""Errors of predicted run times, and their use: `python -m experiments.bench.batch.run_times`.

Logs of batch jobs under EASY with best fit, by arrival and shortest first, with each predictor.
Seth's slice has users and sizes; Eurora's log has no users and no names, so that `data_driven`
knows queue, sort of application and request alone. No job is ended at its walltime.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.simulation.report.run_metrics import metrics_of
from controlplane.simulation.study.document import Study
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, seconds, show
from profiling.run_times.predictors import ORACLE, PREDICTORS

DATA = Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "hpc"
ORDERS = ("arrival", "shortest")

SETH: dict[str, Any] = {
    "nodes": [{"name": "seth", "cores": 240, "memory_gb": 1.0, "gpus": 0, "power_w": [1.0]}]
}
EURORA: dict[str, Any] = {
    "gpu_types": [{"name": "K20", "tflops": 1.2, "memory_gb": 5.0}],
    "nodes": [
        *(
            {
                "name": f"mic-{i}",
                "cores": 16,
                "memory_gb": 16.0,
                "gpus": 0,
                "power_w": [1.0],
                "resources": {"mic": 2},
            }
            for i in range(32)
        ),
        *(
            {
                "name": f"gpu-{i}",
                "cores": 16,
                "memory_gb": 16.0,
                "gpu_type": "K20",
                "gpus": 2,
                "power_w": [1.0, 1.0, 1.0],
            }
            for i in range(32)
        ),
    ],
}
CASES = (
    ("Seth", "hpc2n-seth-slice.swf", SETH, "batch"),
    ("Eurora", "eurora-2014-4days.swf", EURORA, "batch_fields"),
)


def figures(data: Path, only: str) -> Iterator[Figure]:
    """Figures of each log, order and predictor."""
    for name, file, cluster, gpus in CASES:
        if only not in name or not (data / file).exists():
            continue
        study = _study(cluster, {"type": "swf", "path": str(data / file), "gpus": gpus})
        yield from (_figure(name, study, i) for i in range(len(study.policies)))


def _figure(name: str, study: Study, policy: int) -> Figure:
    choice, workload = study.policies[policy], study.load(1)
    run = partial(
        simulate,
        study.scenario,
        workload,
        choice.make(),
        name=choice.label,
        seed=1,
        switches=study.switches_of(policy),
    )
    took_s, outcome = seconds(run)
    found = metrics_of(outcome)
    return figure(
        f"error of run times, {name}, {choice.label}",
        found["run_time_error_absolute_s"],
        None,
        "s",
        mean_error_s=found["run_time_error_mean_s"],
        median_error_s=found["run_time_error_median_s"],
        too_short=found["run_times_too_short"],
        wait_mean_s=found["wait_mean_s"],
        longest_wait_s=float(np.nanmax(outcome.first_start_s - outcome.arrival_s)),
        slowdown=found["slowdown_mean"],
        bounded_slowdown=found["bounded_slowdown_mean"],
        sources={row.name: row.jobs for row in outcome.run_time_errors.by_source},
        simulated_s=took_s,
    )


def _study(cluster: dict[str, Any], workload: dict[str, Any]) -> Study:
    """Study of EASY with each order and predictor."""
    policies = [
        {"name": "backfilling", "parameters": {"order": order}, "predictor": predictor}
        for order in ORDERS
        for predictor in (*PREDICTORS, ORACLE)
    ]
    document = {"cluster": cluster, "workload": workload, "policies": policies}
    return Study.of({**document, "skip_bad": True}, trusted=True)


def main(arguments: list[str] | None = None) -> None:
    """Print the figures; without the logs, say that there is nothing to measure."""
    parser = argparse.ArgumentParser(description="Errors of predicted run times")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the logs")
    parser.add_argument("--only", default="", help="logs whose name contains this")
    asked = parser.parse_args(arguments)
    if not any((asked.data / file).exists() for _, file, *_ in CASES):
        print(f"experiments.bench.batch.run_times: no logs in {asked.data}", file=sys.stderr)
        return
    show(figures(asked.data, asked.only))


if __name__ == "__main__":
    main()
