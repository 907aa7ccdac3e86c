"""Jobs of the chaos, submitted by a user who knows only REST and never gives up.

Every fourth one is a batch job that outlives its walltime, of which every second ignores SIGTERM.
"""

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadmaster
from experiments.chaos.job import JOURNALS
from experiments.chaos.limited_job import STUBBORN
from experiments.chaos.parts import ROOT
from experiments.chaos.system import System
from loadmaster.client import InvalidError, LoadmasterError
from loadmaster.demo.journal_checks import SUBMITTED

POLL_S = 0.5
KINDS = ("alpha", "beta")
LIMITED = "limited"
"""Folder of the journals of batch jobs, which never complete, and the name of their list."""

LIMITED_EVERY = 4
WALLTIME_S = 5.0
ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs to submit: `active` at a time, of 1 to 3 times `steps`, `most` in all."""

    active: int
    steps: int
    most: int


class Workload:
    """Submits jobs until stopped; acknowledged ones are in `submitted.json`, batch jobs, which end
    at their walltime, in `limited.json`.
    """

    def __init__(self, system: System, load: Load, seed: int) -> None:
        self._system, self._load, self._seed = system, load, seed
        self.journals_of_limited: Path = system.site.journals / LIMITED
        self.journals_of_limited.mkdir(exist_ok=True)
        self._paths = system.site.journals / SUBMITTED, system.site.journals / f"{LIMITED}.json"
        self.submitted, self.limited = (_known(path) for path in self._paths)
        self.states: dict[str, str] = {}
        self.refused = ""
        """Why the server takes no such job, if it does not: a mistake of this harness."""
        self._stop = threading.Event()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def start(self) -> None:
        """Begin submitting, in a thread of its own: it waits for the server while that is away."""
        self._thread.start()

    def submit_no_more(self) -> None:
        """Let what was submitted come to its end."""
        self._enough.set()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(60)

    @property
    def unfinished(self) -> list[str]:
        """Ids of jobs that are not known to be over."""
        return [job["id"] for job in self._all if self.states.get(job["id"]) not in ENDED]

    @property
    def _all(self) -> list[dict[str, Any]]:
        return [*self.submitted, *self.limited]

    @property
    def is_over(self) -> bool:
        """Nothing more comes, and all of it has ended."""
        return (self._enough.is_set() or len(self._all) >= self._load.most) and not self.unfinished

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                with self._system.client() as client:
                    self._look(client)
                    while self._wants_more():
                        self._submit(client)
            except InvalidError as error:
                self.refused = str(error)
                return
            except LoadmasterError:
                # the server is away; the same key is used again, so nothing is submitted twice
                continue

    def _wants_more(self) -> bool:
        done = self._enough.is_set() or self._stop.is_set() or len(self._all) >= self._load.most
        return not done and len(self.unfinished) < self._load.active

    def _look(self, client: loadmaster.Client) -> None:
        for job_id in self.unfinished:
            self.states[job_id] = client.job(job_id).state

    def _submit(self, client: loadmaster.Client) -> None:
        number = len(self._all)
        key = f"chaos-{self._seed}-{number}"
        if number % LIMITED_EVERY == LIMITED_EVERY - 1:
            submission = client.submit(self._limited(number), idempotency_key=key)
            self.limited.append({"id": str(submission.id), "walltime_s": WALLTIME_S, "key": key})
            _write(self._paths[1], self.limited)
            return
        request = self._training(number)
        submission = client.submit(request, idempotency_key=key)
        self.submitted.append({"id": str(submission.id), "steps": request["steps"], "key": key})
        _write(self._paths[0], self.submitted)

    def _training(self, number: int) -> dict[str, Any]:
        return {
            **self._common(number, "experiments.chaos.job", self._system.site.journals),
            "kind": KINDS[number % len(KINDS)],
            "steps": self._load.steps * (1 + number % 3),
            "gpus": "1..2" if number % 3 == 0 else 1,
            "due": f"+{60 + 30 * (number % 4)}s",
            "tardiness_weight": 0.001,
        }

    def _limited(self, number: int) -> dict[str, Any]:
        """A batch job that only its guard ends."""
        job = self._common(number, "experiments.chaos.limited_job", self.journals_of_limited)
        if number // LIMITED_EVERY % 2:
            job["environment"] = {**job["environment"], STUBBORN: "1"}
        return {**job, "walltime": f"{WALLTIME_S:g}s", "on_walltime": "kill"}

    def _common(self, number: int, module: str, journals: Path) -> dict[str, Any]:
        return {
            "name": f"chaos-{number}",
            "runtime": "process",
            "command": [sys.executable, "-m", module],
            "environment": {"PYTHONPATH": str(ROOT), JOURNALS: str(journals)},
            "cores": 0.1,
            "memory_gb": 0.1,
            "max_retries": 0,
        }


def _known(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def _write(path: Path, jobs: list[dict[str, Any]]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(jobs, indent=1))
    temporary.replace(path)
