"""One run of a study, in this process or in a child process.

python -m controlplane.simulation.study.run_one FOLDER POLICY SEED KEY PARENT DUMP TRUSTED

FOLDER holds `study.json`; DUMP is `dump_every` of `run_study`; TRUSTED is "trusted" or empty (see
`Study.of`). Standard output gets one JSON object a line: `{"completed", "total", ...}` for
progress, `{"error", "everywhere"}` for failure.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from time import monotonic, perf_counter
from typing import IO, Any

import numpy as np

from controlplane.simulation.report.run_metrics import mean, quantiles
from controlplane.simulation.study.document import Failure, Run, Study
from controlplane.simulation.study.run_files import FinishedRun, WorkloadFacts, save, write_text
from controlplane.simulation.workloads import WorkloadError
from controlplane.simulation.world.outcome import Outcome, Progress
from controlplane.simulation.world.run import OnSnapshot, SimulationError, simulate
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Snapshot
from policies.host.lifetime import die_with

SAID_EVERY_S = 0.25

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Environment for one processor per run; the study chooses how many run at once."""

Watch = Callable[[Progress], None]

_ROOT = str(Path(__file__).resolve().parents[3])


def attempt(
    study: Study, run: Run, folder: Path, watch: Watch, dump_every: int = 0
) -> Failure | None:
    """Simulate a run and write its files; return its failure, if any."""
    look = dumps(folder / "snapshots" / run.key, dump_every) if dump_every else None
    try:
        _simulate(study, run, folder / "runs", watch, look)
    except WorkloadError as error:
        return Failure(run, str(error), everywhere=True)
    except (PolicyError, SimulationError) as error:
        return Failure(run, str(error))
    return None


def dumps(folder: Path, every: int) -> OnSnapshot:
    """Writer of the snapshot of every such round into `folder`, named by the round's number.

    `python -m policies solve` reads these files.
    """

    def write(number: int, snapshot: Snapshot) -> None:
        if number % every == 0:
            write_text(folder / f"{number:07}.json", snapshot.canonical_bytes.decode())

    return write


def _simulate(
    study: Study, run: Run, runs: Path, watch: Watch, look: OnSnapshot | None = None
) -> None:
    started_s = perf_counter()
    workload = study.load(run.seed)
    loaded_s = perf_counter()
    outcome = simulate(
        study.scenario,
        workload,
        study.policies[run.policy].make(),
        name=run.label,
        seed=run.seed,
        switches=study.switches_of(run.policy),
        on_progress=watch,
        on_snapshot=look,
    )
    timings = _timings(outcome, loaded_s - started_s, perf_counter() - loaded_s)
    write_text(runs / f"{run.key}.timings.json", json.dumps(timings))
    facts = WorkloadFacts.of(workload)
    save(runs / f"{run.key}.npz", FinishedRun(outcome, workload.jobs.columns.kinds, facts))


def _timings(outcome: Outcome, load_s: float, simulate_s: float) -> dict[str, float | int | None]:
    """Wall seconds of a run, and of each of its decisions."""
    spent = outcome.decision_s
    of_one = (mean(spent), *quantiles(spent, (0.5, 0.9, 0.99, 1.0))) if len(spent) else (None,) * 5
    names = (f"decision_{part}_s" for part in ("mean", "p50", "p90", "p99", "max"))
    return {
        "load_s": load_s,
        "simulate_s": simulate_s,
        "decisions": len(spent),
        "decisions_s": float(np.sum(spent)),
        **dict(zip(names, of_one, strict=True)),
    }


class Child:
    """Run in a process and session of its own, which dies with this one."""

    def __init__(self, study: Study, folder: Path, run: Run, dump_every: int = 0) -> None:
        self.run, self.started_s, self.fraction = run, monotonic(), 0.0
        self._log = folder / "runs" / f"{run.key}.log"
        self._error: dict[str, Any] | None = None
        rights = "trusted" if study.trusted else ""
        numbers = str(run.policy), str(run.seed), run.key, str(os.getpid()), str(dump_every)
        # An interpreter started anew lacks the places that this one imports from.
        places = [_ROOT, *(place for place in sys.path if place and place != _ROOT)]
        environment = {**dict.fromkeys(ONE_THREAD, "1"), **os.environ}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(folder.resolve()), *numbers, rights],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                env={**environment, "PYTHONPATH": os.pathsep.join(places)},
                start_new_session=True,
            )
        self._reader = Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def failure(self) -> Failure | None:
        """Failure of the ended run; None if its files are there."""
        self._reader.join()
        code, error = self._process.wait(), self._error
        if code == 0:
            self._log.unlink(missing_ok=True)
            return None
        if error is not None:
            return Failure(self.run, str(error["error"]), bool(error["everywhere"]))
        if code < 0:
            return Failure(self.run, f"its process was killed by {signal.Signals(-code).name}")
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed no error"
        return Failure(self.run, f"its process ended with {code}: {last}")

    def kill(self) -> None:
        """Kill it with its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._log.unlink(missing_ok=True)

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                received = json.loads(line)
                if "error" in received:
                    self._error = received
                else:
                    self.fraction = received["completed"] / max(1, received["total"])


def main(
    folder: str, policy: str, seed: str, key: str, parent: str, dump_every: str, trusted: str
) -> int:
    """Run the process; return 0 if the run was written."""
    die_with(int(parent))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a policy prints goes to standard error
    document = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
    study = Study.of(document, trusted=trusted == "trusted")
    run = Run(int(policy), study.policies[int(policy)].label, int(seed), key)
    try:
        failure = attempt(study, run, Path(folder), _reporter(answers), int(dump_every))
    except Exception as error:  # a policy may be anybody's code: it raises what it likes
        traceback.print_exc()
        failure = Failure(run, f"{type(error).__name__}: {error}")
    if failure is not None:
        _write(answers, {"error": failure.message, "everywhere": failure.everywhere})
    return int(failure is not None)


def _reporter(answers: IO[str]) -> Watch:
    last_s = -SAID_EVERY_S

    def report(progress: Progress) -> None:
        nonlocal last_s
        if monotonic() - last_s >= SAID_EVERY_S:
            last_s = monotonic()
            _write(answers, asdict(progress))

    return report


def _write(answers: IO[str], message: dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
