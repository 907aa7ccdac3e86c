"""Jobs of the chaos, submitted by a user who knows only REST and never gives up."""

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadmaster
from experiments.chaos.jobs.forms import (
    APART,
    BATCH,
    LIMITED,
    SHARED,
    SWEEP,
    TRAINING,
    TURN,
    Form,
    Forms,
)
from experiments.chaos.rounds import Rounds
from experiments.chaos.system import System
from loadmaster.client import InvalidError, LoadmasterError
from loadmaster.demo.journal_checks import SUBMITTED

POLL_S = 0.5
LISTS = (TRAINING, SHARED, LIMITED, BATCH)
ENDED = frozenset({"completed", "failed", "cancelled"})

Record = dict[str, Any]
"""An acknowledged job: id (of an array that of the whole), `form`, `number`, facts, `elements`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs to submit: `active` at a time until there are `most`, then one at a time, so that blows
    find work; training jobs of 1 to 3 times `steps`; `turn`: their forms.
    """

    active: int
    steps: int
    most: int
    turn: tuple[str, ...] = TURN


class Workload:
    """Submits jobs until stopped, and then one that needs every node for itself; acknowledged ones
    are in lists beside the journals.
    """

    def __init__(self, system: System, load: Load, seed: int) -> None:
        site = system.site
        self._system, self.load, self._seed = system, load, seed
        self._forms = Forms(
            site.journals, load.steps, site.agents - APART, site.clockwork["grace_s"], load.turn
        )
        self._paths = {name: site.journals / name / SUBMITTED for name in LISTS}
        for path in self._paths.values():
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                _write(path, [])
        self._lists: dict[str, list[Record]] = {
            name: json.loads(path.read_text()) for name, path in self._paths.items()
        }
        numbers = [job["number"] for job in self.all if job["form"] != SWEEP]
        self._number = max(numbers, default=-1) + 1
        self.states: dict[str, str] = {}
        self.rounds = Rounds(system.whole_since_s)
        self.refused = ""
        """Why the server takes no such job, if it does not: a mistake of this harness."""
        self._stop = threading.Event()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def start(self) -> None:
        """Begin submitting, in a thread of its own: it waits for the server while that is away."""
        self._thread.start()

    def submit_no_more(self) -> None:
        """Let what was submitted come to its end, once that is one job of each form."""
        self._enough.set()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def of(self, name: str) -> list[Record]:
        """Acknowledged jobs of a list."""
        return self._lists[name]

    @property
    def all(self) -> list[Record]:
        """All acknowledged jobs."""
        return [job for jobs in self._lists.values() for job in jobs]

    @property
    def unfinished(self) -> list[str]:
        """Ids of jobs that are not known to be over."""
        return [job["id"] for job in self.all if self.states.get(job["id"]) not in ENDED]

    @property
    def is_over(self) -> bool:
        """Nothing more comes, and all of it has ended, the last one too."""
        return self._enough.is_set() and self._is_swept and not self.unfinished

    @property
    def _is_swept(self) -> bool:
        return any(job["form"] == SWEEP for job in self.of(BATCH))

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                with self._system.client() as client:
                    self._look(client)
                    while self._wants_more():
                        self._submit_next(client)
                    if self._enough.is_set() and not self.unfinished and not self._is_swept:
                        self._submit(client, SWEEP, self._forms.sweep(), SWEEP)
            except InvalidError as error:
                self.refused = str(error)
                return
            except LoadmasterError:
                # the server is away; the same key is used again, so nothing is submitted twice
                continue

    def _wants_more(self) -> bool:
        """Return True until it is enough: each form was submitted once, however short the chaos."""
        is_enough = self._enough.is_set() and self._number >= len(self.load.turn)
        at_once = self.load.active if len(self.all) < self.load.most else 1
        return not (is_enough or self._stop.is_set()) and len(self.unfinished) < at_once

    def _look(self, client: loadmaster.Client) -> None:
        self.rounds.look({c["name"]: c["round_number"] for c in client.clusters()})
        unfinished = set(self.unfinished)
        for job in [job for job in self.all if job["id"] in unfinished]:
            states = (
                client.array(job["id"]).states if "at_once" in job else [self._ask(client, job)]
            )
            self.states[job["id"]] = _state_of(states)

    def _ask(self, client: loadmaster.Client, job: Record) -> str:
        """Return the job's state. Once while it runs, its user stops it and has it go on."""
        if "at_once" in job:
            return _state_of(client.array(job["id"]).states)
        known = client.job(job["id"])
        state, is_begun = known.state, known.progress.steps_done > 0 or "steps" not in job
        if job.get("interrupt") is True and state == "running" and is_begun:
            # noted first: where the answer is lost, it must be released all the same
            self._note(job, "interrupt", "held")
            client.hold(job["id"])
        elif job.get("interrupt") == "held" and state in ("stopping", "held"):
            client.release(job["id"])
            self._note(job, "interrupt", "released")
        return state

    def _note(self, job: Record, name: str, value: str) -> None:
        job[name] = value
        for of, jobs in self._lists.items():
            if job in jobs:
                _write(self._paths[of], jobs)

    def _submit_next(self, client: loadmaster.Client) -> None:
        latest = {job["form"]: job["id"] for job in self.all}
        name, form = self._forms.of(self._number, latest)
        try:
            self._submit(client, name, form, self._number)
        except InvalidError:
            if "never" not in form.facts:
                raise
            # refused because the job that it waits for has failed already
        self._number += 1

    def _submit(self, client: loadmaster.Client, name: str, form: Form, number: int | str) -> None:
        key = f"chaos-{self._seed}-{number}"
        submission = client.submit(form.request, idempotency_key=key)
        record = {"id": submission.id, "form": name, "number": number, **form.facts}
        if submission.job.array:
            record["elements"] = [job.id for job in client.jobs(array=submission.id)]
        self._lists[form.of].append(record)
        _write(self._paths[form.of], self._lists[form.of])


def _state_of(states: Iterable[str]) -> str:
    """Return a state that is not over if there is one, else one that is not `completed`."""
    return min(states, key=lambda state: (state in ENDED, state == "completed"))


def _write(path: Path, jobs: list[Record]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(jobs, indent=1))
    temporary.replace(path)
