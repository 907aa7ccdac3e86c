"""Jobs of the chaos, submitted by a user who knows only REST and never gives up."""

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadmaster
from experiments.chaos.job import JOURNALS
from experiments.chaos.parts import ROOT
from experiments.chaos.system import System
from loadmaster.client import InvalidError, LoadmasterError
from loadmaster.demo.journal_checks import SUBMITTED

POLL_S = 0.5
KINDS = ("alpha", "beta")
ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs to submit: `active` at a time, of 1 to 3 times `steps`, `most` in all."""

    active: int
    steps: int
    most: int


class Workload:
    """Submits jobs until stopped; acknowledged ones are in `submitted.json`."""

    def __init__(self, system: System, load: Load, seed: int) -> None:
        self._system, self._load, self._seed = system, load, seed
        self._path: Path = system.site.journals / SUBMITTED
        self.submitted: list[dict[str, Any]] = (
            json.loads(self._path.read_text()) if self._path.exists() else []
        )
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
        return [job["id"] for job in self.submitted if self.states.get(job["id"]) not in ENDED]

    @property
    def is_over(self) -> bool:
        """Nothing more comes, and all of it has ended."""
        return (
            self._enough.is_set() or len(self.submitted) >= self._load.most
        ) and not self.unfinished

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
        done = (
            self._enough.is_set() or self._stop.is_set() or len(self.submitted) >= self._load.most
        )
        return not done and len(self.unfinished) < self._load.active

    def _look(self, client: loadmaster.Client) -> None:
        for job_id in self.unfinished:
            self.states[job_id] = client.job(job_id).state

    def _submit(self, client: loadmaster.Client) -> None:
        number = len(self.submitted)
        steps = self._load.steps * (1 + number % 3)
        key = f"chaos-{self._seed}-{number}"
        request = {
            "name": f"chaos-{number}",
            "runtime": "process",
            "command": [sys.executable, "-m", "experiments.chaos.job"],
            "environment": {"PYTHONPATH": str(ROOT), JOURNALS: str(self._system.site.journals)},
            "kind": KINDS[number % len(KINDS)],
            "steps": steps,
            "gpus": "1..2" if number % 3 == 0 else 1,
            "cores": 0.1,
            "memory_gb": 0.1,
            "due": f"+{60 + 30 * (number % 4)}s",
            "tardiness_weight": 0.001,
            "max_retries": 0,
        }
        submission = client.submit(request, idempotency_key=key)
        self.submitted.append({"id": str(submission.id), "steps": steps, "key": key})
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.submitted, indent=1))
        temporary.replace(self._path)
