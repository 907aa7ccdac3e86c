"""One run of a study, in this process or in a child process.

python -m controlplane.simulation.study.run_one FOLDER POLICY SEED KEY DUMP TRUSTED

FOLDER has `study.json`; DUMP is `dump_every` of `run_study`; TRUSTED is "trusted" or empty (see
`Study.of`). The child writes messages to its standard output, one JSON object a line:
`{"completed", "total", ...}` for progress, `{"error", "everywhere"}` for a failure.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic, perf_counter
from typing import IO, Any

import numpy as np

from controlplane.simulation.report.run_metrics import mean, quantiles
from controlplane.simulation.study.document import Failure, Run, Study
from controlplane.simulation.study.run_files import FinishedRun, WorkloadFacts, save, write_text
from controlplane.simulation.workloads import WorkloadError
from controlplane.simulation.world.outcome import Outcome, Progress
from controlplane.simulation.world.run import OnSnapshot, SimulationError, simulate
from foundation.child_processes.child import ChildProcess, python_module
from foundation.child_processes.limits import set_up_child
from foundation.child_processes.messages import DeadlineError, reserve_pipes, write_message
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Snapshot

MESSAGE_S = 0.25
"""Least seconds between two messages of a child about its progress."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Variables that give a run one thread; the study chooses how many runs there are at once."""

Watch = Callable[[Progress], None]
"""Function that is told the progress of a run."""


def attempt(
    study: Study, run: Run, folder: Path, watch: Watch, dump_every: int = 0
) -> Failure | None:
    """Simulate a run and write its files; return its failure, if any."""
    on_snapshot = dumps(folder / "snapshots" / run.key, dump_every) if dump_every else None
    try:
        _simulate(study, run, folder / "runs", watch, on_snapshot)
    except WorkloadError as error:
        return Failure(run, str(error), everywhere=True)
    except (PolicyError, SimulationError) as error:
        return Failure(run, str(error))
    return None


def dumps(folder: Path, every: int) -> OnSnapshot:
    """Return a function that writes the snapshot of every `every`th round into `folder`.

    Files are named by the round's number. `python -m policies solve` reads these files.
    """

    def write(number: int, snapshot: Snapshot) -> None:
        if number % every == 0:
            write_text(folder / f"{number:07}.json", snapshot.canonical_bytes.decode())

    return write


def _simulate(
    study: Study, run: Run, runs: Path, watch: Watch, on_snapshot: OnSnapshot | None = None
) -> None:
    """Simulate a run, and write its timings and its outcome into the folder `runs`."""
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
        on_snapshot=on_snapshot,
    )
    timings = _timings(outcome, loaded_s - started_s, perf_counter() - loaded_s)
    write_text(runs / f"{run.key}.timings.json", json.dumps(timings))
    facts = WorkloadFacts.of(workload)
    save(runs / f"{run.key}.npz", FinishedRun(outcome, workload.jobs.columns.kinds, facts))


def _timings(outcome: Outcome, load_s: float, simulate_s: float) -> dict[str, float | int | None]:
    """Return the wall seconds of a run, of its decisions together, and of one of them."""
    decision_s = outcome.decision_s
    timings: dict[str, float | int | None] = {
        "load_s": load_s,
        "simulate_s": simulate_s,
        "decisions": len(decision_s),
        "decisions_s": float(np.sum(decision_s)),
        "decision_mean_s": None,
        "decision_p50_s": None,
        "decision_p90_s": None,
        "decision_p99_s": None,
        "decision_max_s": None,
    }
    if len(decision_s):
        p50, p90, p99, longest = quantiles(decision_s, (0.5, 0.9, 0.99, 1.0))
        timings["decision_mean_s"] = mean(decision_s)
        timings["decision_p50_s"] = p50
        timings["decision_p90_s"] = p90
        timings["decision_p99_s"] = p99
        timings["decision_max_s"] = longest
    return timings


class RunProcess:
    """Run in a process of its own, which ends with this one.

    `fraction` of its jobs that are done, and whether it `is_over`: as of the last `listen`.
    """

    def __init__(self, study: Study, folder: Path, run: Run, dump_every: int = 0) -> None:
        self.run = run
        self.started_s = monotonic()
        self.fraction = 0.0
        self.is_over = False
        self._log = folder / "runs" / f"{run.key}.log"
        self._error: dict[str, Any] | None = None
        command = python_module(
            __name__,
            str(folder.resolve()),
            str(run.policy),
            str(run.seed),
            run.key,
            str(dump_every),
            "trusted" if study.trusted else "",
        )
        environment = dict.fromkeys(THREAD_VARIABLES, "1")
        environment.update(os.environ)
        # An interpreter started anew lacks the folders that this one imports from.
        environment["PYTHONPATH"] = os.pathsep.join(place for place in sys.path if place)
        with self._log.open("wb") as log:
            self._child = ChildProcess(command, environment, errors=log)

    def listen(self) -> None:
        """Take the messages that have come, without waiting."""
        # Asked first: the last messages of an ended child are then taken below.
        self.is_over = self._child.has_ended()
        with suppress(DeadlineError, EOFError):
            while True:
                self._receive(json.loads(self._child.receive(monotonic())))

    def failure(self) -> Failure | None:
        """Return the failure of the ended run; None if its files are there."""
        # 1. A success.
        code = self._child.wait()
        self._child.kill()  # ends the children that it has left
        if code == 0:
            self._log.unlink(missing_ok=True)
            return None

        # 2. A failure that it has reported, a signal, or another end whose reason is in its log.
        if self._error is not None:
            return Failure(self.run, str(self._error["error"]), bool(self._error["everywhere"]))
        if code < 0:
            return Failure(self.run, f"its process was killed by {signal.Signals(-code).name}")
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed no error"
        return Failure(self.run, f"its process ended with {code}: {last}")

    def kill(self) -> None:
        """Kill it with its children."""
        self._child.kill()
        self._log.unlink(missing_ok=True)

    def _receive(self, message: dict[str, Any]) -> None:
        """Take one message of the child: a failure, or its progress."""
        if "error" in message:
            self._error = message
        else:
            self.fraction = message["completed"] / max(1, message["total"])


def main(folder: str, policy: str, seed: str, key: str, dump_every: str, trusted: str) -> int:
    """Simulate in the child process; return 0 if the run was written."""
    set_up_child()
    _, messages = reserve_pipes()
    document = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
    study = Study.of(document, trusted=trusted == "trusted")
    run = Run(int(policy), study.policies[int(policy)].label, int(seed), key)
    try:
        failure = attempt(study, run, Path(folder), _reporter(messages), int(dump_every))
    except Exception as error:  # a policy may be anybody's code: it raises what it likes
        traceback.print_exc()
        failure = Failure(run, f"{type(error).__name__}: {error}")
    if failure is not None:
        write_message(messages, {"error": failure.message, "everywhere": failure.everywhere})
    return int(failure is not None)


def _reporter(messages: IO[str]) -> Watch:
    """Return a function that writes messages about the progress, and not too many of them."""
    last_message_s = -MESSAGE_S

    def report(progress: Progress) -> None:
        nonlocal last_message_s
        if monotonic() - last_message_s >= MESSAGE_S:
            last_message_s = monotonic()
            write_message(messages, asdict(progress))

    return report


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
