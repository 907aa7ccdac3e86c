"""One run of a study: load the workload, simulate, write the outcome. Also as a process of its own,
which a study starts.

    python -m controlplane.simulation.study.run_one FOLDER POLICY SEED KEY PARENT TRUSTED TRACES

FOLDER holds `study.json`; TRUSTED is "trusted" or empty, TRACES a folder or empty (see `Study.of`).
Standard output gets one JSON object a line: `{"completed", "total", ...}` as it goes on, `{"error",
"everywhere"}` if it fails, where `everywhere` says that every run of the study would fail the same
way.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic, perf_counter
from typing import IO

import numpy as np

from controlplane.simulation.report.metrics import mean, quantiles
from controlplane.simulation.study.document import Run, Study
from controlplane.simulation.study.run_files import FinishedRun, WorkloadFacts, save, write_text
from controlplane.simulation.workloads.base import WorkloadError
from controlplane.simulation.world.outcome import Outcome, Progress
from controlplane.simulation.world.run import SimulationError, simulate
from policies.contract.policy import PolicyError
from policies.host.lifetime import die_with

SAID_EVERY_S = 0.25

Watch = Callable[[Progress], None]


def run_here(study: Study, run: Run, runs: Path, on_progress: Watch) -> None:
    """Simulate a run and write its files. WorkloadError, PolicyError, SimulationError."""
    started_s = perf_counter()
    workload = study.load(run.seed)
    loaded_s = perf_counter()
    policy = study.policies[run.policy].make()
    outcome = simulate(
        study.scenario,
        workload,
        policy,
        name=run.label,
        seed=run.seed,
        switches=study.switches,
        on_progress=on_progress,
    )
    ended_s = perf_counter()
    write_text(
        runs / f"{run.key}.timings.json",
        json.dumps(_timings(outcome, loaded_s - started_s, ended_s - loaded_s)),
    )
    save(
        runs / f"{run.key}.npz",
        FinishedRun(outcome, workload.jobs.columns.kinds, WorkloadFacts.of(workload)),
    )


def _timings(outcome: Outcome, load_s: float, simulate_s: float) -> dict[str, float | int | None]:
    """Wall seconds of a run, and of each of its decisions."""
    spent = outcome.decision_s
    p50, p90, p99, most = (
        quantiles(spent, (0.5, 0.9, 0.99, 1.0)) if len(spent) else (None, None, None, None)
    )
    return {
        "load_s": load_s, "simulate_s": simulate_s, "decisions": len(spent),
        "decisions_s": float(np.sum(spent)),
        "decision_mean_s": mean(spent) if len(spent) else None, "decision_p50_s": p50,
        "decision_p90_s": p90,
        "decision_p99_s": p99, "decision_max_s": most,
    }  # fmt: skip


def main(
    folder: str, policy: str, seed: str, key: str, parent: str, trusted: str, traces: str
) -> int:
    """The process: 0 if the run was written."""
    die_with(int(parent))
    answers = _own_output()
    document = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
    study = Study.of(
        document, trusted=trusted == "trusted", traces=Path(traces) if traces else None
    )
    run = Run(int(policy), study.policies[int(policy)].label, int(seed), key)
    try:
        run_here(study, run, Path(folder) / "runs", _said(answers))
    except (WorkloadError, PolicyError, SimulationError) as error:
        return _fail(answers, str(error), everywhere=isinstance(error, WorkloadError))
    except (
        Exception
    ) as error:  # a policy may be anybody's code: whatever it raises is an error of this run
        traceback.print_exc()
        return _fail(answers, f"{type(error).__name__}: {error}")
    return 0


def _own_output() -> IO[str]:
    """Standard output for us alone: what a policy prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _said(answers: IO[str]) -> Watch:
    last_s = -SAID_EVERY_S

    def say(progress: Progress) -> None:
        nonlocal last_s
        if monotonic() - last_s >= SAID_EVERY_S:
            last_s = monotonic()
            print(json.dumps(asdict(progress)), file=answers, flush=True)

    return say


def _fail(answers: IO[str], message: str, everywhere: bool = False) -> int:
    print(json.dumps({"error": message, "everywhere": everywhere}), file=answers, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
