"""Jobs that chaos submits, in turn: training jobs, and batch jobs of every form.

A form is a request for a job, and what the checks must know of it: the list that it belongs to, its
walltime, the seats that have a process, elements at once, the jobs that it waits for.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.chaos.jobs.batch_job import RUN_S, STUBBORN
from experiments.chaos.jobs.job import JOURNALS, SAVE_S
from experiments.chaos.parts import ROOT

LOCAL, GANGS = "local", "gangs"
"""Clusters: that of most jobs, and one whose policy spreads gangs and lets jobs share GPUs."""

APART, SLOTS = 2, 2
"""Nodes of the latter, and how many jobs may share each of their GPUs."""

KINDS = ("alpha", "beta")
TRAINING, SHARED, LIMITED, BATCH = "training", "shared", "limited", "batch"
"""Lists of jobs: training jobs, those that share a GPU, batch jobs that only their guard ends, and
other batch jobs. Also the folders of their journals.
"""

WALLTIME_S = 5.0
RUNS_S = 2.0
STUBBORN_S = 8.0
LEAST_STEPS = 40
"""Steps of a job that is interrupted once it has done some."""

SAVES = 0.8
"""Fraction of the grace that a slow job needs to save."""
ARRAY = "0-5%2"
SWEEP = "sweep"

Latest = Mapping[str, str]
"""Id of the newest job of each form."""


@dataclass(frozen=True, slots=True)
class Form:
    """A request, the list of the job, and facts for its check."""

    of: str
    request: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forms:
    """Forms of the jobs whose journals are in `journals`; training jobs have 1 to 3 times `steps`;
    `nodes`: how many nodes there are; `turn`: names of the forms, again and again.
    """

    journals: Path
    steps: int
    nodes: int
    grace_s: float
    turn: Sequence[str]

    def of(self, number: int, latest: Latest) -> tuple[str, Form]:
        """Form of the job of this number, with its name."""
        name = self.turn[number % len(self.turn)]
        return name, _MAKERS[name](self, number, latest)

    def sweep(self) -> Form:
        """Return the last job: it needs all nodes for itself, so no seat may be held any more."""
        seats = {"units": self.nodes, "nodes": self.nodes, "processes": "each", "exclusive": True}
        request = {**self._common(SWEEP, "experiments.chaos.jobs.batch_job", BATCH), **seats}
        return Form(BATCH, request, {"seats": self.nodes})

    def _training(self, number: int, _: Latest) -> Form:
        steps = self.steps * (1 + number % 3)
        request = {
            **self._common(str(number), "experiments.chaos.jobs.job", TRAINING),
            "kind": KINDS[number % len(KINDS)],
            "steps": steps,
            "gpus": "1..2" if number % 3 == 0 else 1,
            "due": f"+{60 + 30 * (number % 4)}s",
            "tardiness_weight": 0.001,
        }
        return Form(TRAINING, request, {"steps": steps})

    def _slow(self, number: int, latest: Latest) -> Form:
        """Make one that needs most of its grace to leave; its user interrupts it once."""
        form = self._training(number, latest)
        saves = {SAVE_S: f"{SAVES * self.grace_s:g}"}
        environment = {**form.request["environment"], **saves}
        steps = max(LEAST_STEPS, form.facts["steps"])
        request = {**form.request, "gpus": 1, "environment": environment, "steps": steps}
        return Form(TRAINING, request, {"steps": steps, "interrupt": True})

    def _gang(self, number: int, latest: Latest) -> Form:
        """Make one of a rank on each of two nodes; its user interrupts it once."""
        request, ranks = self._training(number, latest).request, APART
        apart = {"cluster": GANGS, "gpus": ranks, "steps": LEAST_STEPS}
        facts = {"steps": LEAST_STEPS, "ranks": ranks, "interrupt": True}
        return Form(TRAINING, {**request, **apart}, facts)

    def _shared(self, number: int, latest: Latest) -> Form:
        form = self._training(number, latest)
        common = self._common(str(number), "experiments.chaos.jobs.job", SHARED)
        shares = {"cluster": GANGS, "gpus": 1, "may_share": True}
        return Form(SHARED, {**form.request, **common, **shares}, form.facts)

    def _stubborn(self, number: int, _: Latest) -> Form:
        """Make one that ignores SIGTERM; its user interrupts it once."""
        job = self._batch(number)
        environment = {**job["environment"], RUN_S: f"{STUBBORN_S:g}", STUBBORN: "1"}
        return Form(BATCH, {**job, "environment": environment}, {"interrupt": True})

    def _limited(self, number: int, _: Latest) -> Form:
        """Make one that only its guard ends; every second one ignores SIGTERM."""
        job = self._common(str(number), "experiments.chaos.jobs.limited_job", LIMITED)
        if number // len(TURN) % 2:
            job["environment"] = {**job["environment"], STUBBORN: "1"}
        limit = {"walltime": f"{WALLTIME_S:g}s", "on_walltime": "kill"}
        return Form(LIMITED, {**job, **limit}, {"walltime_s": WALLTIME_S})

    def _spread_limited(self, number: int, latest: Latest) -> Form:
        form = self._limited(number, latest)
        return Form(LIMITED, {**form.request, **_spread("each")}, form.facts)

    def _spread(self, number: int, _: Latest) -> Form:
        """Make one of two seats: every second time one without a process on its second seat."""
        is_each = number // len(TURN) % 2
        seats = _spread("each" if is_each else "first")
        return Form(BATCH, {**self._batch(number), **seats}, {"seats": 2 if is_each else 1})

    def _array(self, number: int, _: Latest) -> Form:
        at_once = int(ARRAY.partition("%")[2])
        return Form(BATCH, {**self._batch(number), "array": ARRAY}, {"at_once": at_once})

    def _after(self, number: int, latest: Latest) -> Form:
        """Make one that waits for an array, a job of several seats, and the end of a third one."""
        after = [latest["array"], latest["spread"], latest["limited"]]
        waits = [*after[:2], f"afterany:{after[2]}"]
        return Form(BATCH, {**self._batch(number), "dependencies": waits}, {"after": after})

    def _never(self, number: int, latest: Latest) -> Form:
        """Make one that waits for the success of a job that fails."""
        request = {**self._batch(number), "dependencies": [latest["spread_limited"]]}
        return Form(BATCH, request, {"never": True})

    def _batch(self, number: int) -> dict[str, Any]:
        return self._common(str(number), "experiments.chaos.jobs.batch_job", BATCH)

    def _common(self, name: str, module: str, journals: str) -> dict[str, Any]:
        kept = {"PYTHONPATH": str(ROOT), JOURNALS: str(self.journals / journals)}
        return {
            "name": f"chaos-{name}",
            "cluster": LOCAL,
            "runtime": "process",
            "command": [sys.executable, "-m", module],
            "environment": {**kept, RUN_S: f"{RUNS_S:g}"},
            "cores": 0.1,
            "memory_gb": 0.1,
            "max_retries": 0,
        }


def _spread(processes: str) -> dict[str, Any]:
    return {"units": 2, "nodes": 2, "processes": processes}


_MAKERS: Mapping[str, Callable[[Forms, int, Latest], Form]] = {
    "training": Forms._training,
    "slow": Forms._slow,
    "gang": Forms._gang,
    "shared": Forms._shared,
    "stubborn": Forms._stubborn,
    "spread": Forms._spread,
    "limited": Forms._limited,
    "array": Forms._array,
    "after": Forms._after,
    "spread_limited": Forms._spread_limited,
    "never": Forms._never,
}

TURN = (
    "slow",
    "shared",
    "shared",
    "gang",
    "spread",
    "stubborn",
    "limited",
    "training",
    "array",
    "slow",
    "after",
    "training",
    "shared",
    "spread_limited",
    "never",
)
"""Forms one after the other, again and again; one that waits comes after those it waits for."""

NEEDS = {"after": ("array", "spread", "limited"), "never": ("spread_limited",)}
"""Forms that others wait for."""


def turn_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the turn of some forms alone. Raises ValueError for one that waits for others."""
    wanted = set(names)
    for name in wanted:
        if name not in _MAKERS:
            raise ValueError(f"jobs: no form {name}; there are {', '.join(_MAKERS)}")
        if missing := set(NEEDS.get(name, ())) - wanted:
            raise ValueError(f"jobs: {name} waits for {', '.join(sorted(missing))}; add them")
    return tuple(name for name in TURN if name in wanted)
