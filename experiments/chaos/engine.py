"""Strike blow after blow, wait for rest, and report what the jobs' journals show."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from experiments.chaos.checks.findings import find
from experiments.chaos.schedule import Blow
from experiments.chaos.system import ChaosError, System
from experiments.chaos.workload import Workload

CANNOT_S = 60.0
"""Seconds on two free cores that a blow waits for an absent target until it counts as missed."""

BEGIN_S = 180.0
MISSED = "missed"
BLOWS = "blows.jsonl"
RESULT = "result.json"


class Field(Protocol):
    """A target of blows."""

    def strike(self, blow: Blow) -> str | None:
        """Strike; what was done in words, or None while the target is away."""

    def mend(self) -> None:
        """Undo what is due (a cut link)."""


@dataclass(slots=True)
class Run:
    """One run of a schedule, which goes on where an interrupted one of the same folder stopped."""

    system: System
    workload: Workload
    blows: Sequence[Blow]
    strike_field: Field
    say: Callable[[str], None]
    patience_s: float
    struck: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    rest_s: float = 0.0

    def play(self) -> dict[str, Any]:
        """Everything; the result as plain data, also written to result.json."""
        path = self.system.site.folder / BLOWS
        before = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        self.struck = Counter(line["part"] for line in before)
        self._begin()
        began_s = time.monotonic() - (before[-1]["at_s"] if before else 0.0)
        for blow in self.blows[len(before) :]:
            self._play_one(blow, path, began_s)
        self.seconds = time.monotonic() - began_s
        self._come_to_rest()
        return self._result()

    def _begin(self) -> None:
        """Submit, and wait until work has begun; an interrupted run goes on at once."""
        self.workload.start()
        until_s = time.monotonic() + BEGIN_S
        while not any(self.system.site.journals.glob("*/*.jsonl")):
            self._check_refusal()
            if time.monotonic() > until_s:
                raise ChaosError("no job has begun: see the logs")
            self._wait(0.2)

    def _check_refusal(self) -> None:
        if self.workload.refused:
            raise ChaosError(f"the server refuses a job: {self.workload.refused}")

    def _play_one(self, blow: Blow, path: Path, began_s: float) -> None:
        self._wait(blow.gap_s * self.system.slowness)
        until_s = time.monotonic() + CANNOT_S * self.system.slowness
        while (what := self.strike_field.strike(blow)) is None and time.monotonic() < until_s:
            self._wait(0.1)
        part = blow.part if what else MISSED
        self.struck[part] += 1
        at_s = time.monotonic() - began_s
        line = {
            "number": blow.number,
            "part": part,
            "what": what or f"{blow.target} was away",
            "at_s": round(at_s, 2),
        }
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        open_jobs = len(self.workload.unfinished)
        self.say(
            f"{at_s:6.1f} s  {blow.number + 1}/{len(self.blows)} {line['what']}; {open_jobs} jobs"
            " unfinished"
        )

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while True:
            self.strike_field.mend()
            left_s = until_s - time.monotonic()
            self.system.wait(max(0.0, min(0.1, left_s)))
            if left_s <= 0:
                return

    def _come_to_rest(self) -> None:
        """No more blows, no more jobs: all that were submitted come to their end."""
        self.workload.submit_no_more()
        began_s = time.monotonic()
        while (
            not self.workload.is_over
            and time.monotonic() < began_s + self.patience_s * self.system.slowness
        ):
            self._check_refusal()
            self._wait(0.5)
        self.rest_s = time.monotonic() - began_s

    def _result(self) -> dict[str, Any]:
        deaths = {
            part.name: part.died_by_itself
            for part in self.system.parts.values()
            if part.died_by_itself
        }
        return {
            "struck": dict(sorted(self.struck.items())),
            "seconds": round(self.seconds, 1),
            "slowness": round(self.system.slowness, 2),
            "rest_s": round(self.rest_s, 1),
            **find(self.system, self.workload, sum(self.struck.values())),
            "died_by_themselves": deaths,
            "clockwork": dict(self.system.site.clockwork),
        }
