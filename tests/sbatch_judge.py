"""Both sides of the judge: cases are submitted to Slurm and to Loadmaster, and what became of them
is read in one form.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from typer.testing import CliRunner

from loadmaster.cli.main import app
from loadmaster.client import ENDED, Client
from tests.sbatch_cases import SLURMS_OWN, Case, Step

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 150.0


@dataclass(slots=True)
class Outcome:
    """Outcome of a case: its submissions, the ends of its jobs, and the files it left."""

    submissions: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


class Side(Protocol):
    """A system that scripts are submitted to."""

    name: str

    def submit(self, step: Step, folder: Path, exported: Mapping[str, str]) -> str:
        """Number of the submitted job, "" if it is refused."""

    def do(self, word: str, number: str) -> None:
        """Cancel or requeue a job."""

    def states(self) -> dict[str, dict[str, str]]:
        """State with exit code by number of submission and index ("" for no array)."""


class Slurm:
    """Slurm of `tests/with-slurm`, by its own commands."""

    name = "slurm"

    def submit(self, step: Step, folder: Path, exported: Mapping[str, str]) -> str:
        words = ["sbatch", "--parsable", *step.options, "run.sh", *step.arguments]
        env = {**os.environ, **exported}
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        return done.stdout.strip()

    def do(self, word: str, number: str) -> None:
        if word == "cancel":
            _run("scancel", number)
        else:
            _run("scontrol", "requeuehold", number)
            _eventually(lambda: self._job(number)["JobState"] == "PENDING")
            _eventually(lambda: _succeeds("scontrol", "release", number))

    def states(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for row in _rows(_run("scontrol", "show", "jobs", "-o", "-d")):
            number, index = row.get("ArrayJobId", row["JobId"]), row.get("ArrayTaskId", "")
            found.setdefault(number, {})[index] = _slurm_state(row)
        return found

    def _job(self, number: str) -> dict[str, str]:
        return next(_rows(_run("scontrol", "show", "job", "-o", number)))


def _rows(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if pairs := re.findall(r"(\w+)=(\S*)", line):
            yield dict(reversed(pairs))


def _slurm_state(row: Mapping[str, str]) -> str:
    state = row["JobState"]
    if row.get("Reason") == "DependencyNeverSatisfied":
        return "never"
    if state in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"):
        return "active"
    return f"{state} {row['ExitCode']}" if state in ("COMPLETED", "FAILED") else state


class Loadmaster:
    """Loadmaster of `tests.slurm_site`, by its command line and its REST client."""

    name = "loadmaster"

    def __init__(self, url: str, token: str) -> None:
        self.client = Client(url, token)
        self.env = {"LOADMASTER_URL": url, "LOADMASTER_TOKEN": token}

    def submit(self, step: Step, folder: Path, exported: Mapping[str, str]) -> str:
        words = ["submit", "--sbatch", "run.sh", *step.options, *step.arguments]
        before = Path.cwd()
        os.chdir(folder)
        try:
            done = CliRunner().invoke(app, words, env={**self.env, **exported})
        finally:
            os.chdir(before)
        assert done.exit_code in (0, 2), done.output
        (folder.parent / f"{folder.name}.said").write_text(done.output)
        return done.stdout.strip() if done.exit_code == 0 else ""

    def do(self, word: str, number: str) -> None:
        job = next(self.client.jobs(search=number)).id
        if word == "cancel":
            self.client.cancel(job)
            return
        self.client.hold(job)
        _eventually(lambda: self.client.job(job).state == "held")
        self.client.release(job)

    def states(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for job in self.client.jobs(limit=1000):
            number, index = self._place(job)
            found.setdefault(number, {})[index] = self._state(job)
        return found

    def _place(self, job: Any) -> tuple[str, str]:
        if job.array:
            return str(job.array.number), str(job.array.index)
        return str(job.number), ""

    def _state(self, job: Any) -> str:
        if job.state not in ENDED:
            return "active"
        if job.state == "cancelled":
            return "CANCELLED"
        if "walltime" in job.failure_reason:
            return "TIMEOUT"
        path = f"jobs/{job.id}/assignments/"
        rows = [row for row in self.client._rest.pages(path, None, {}) if row["rank"] == 0]
        code = (rows[-1]["exit_code"] if rows else None) or 0
        signalled = code < 0
        return f"{job.state.upper()} {0 if signalled else code}:{-code if signalled else 0}"


@contextmanager
def loadmaster_site(folder: Path) -> Iterator[Loadmaster]:
    """A running Loadmaster with its home in the folder."""
    without = {n: v for n, v in os.environ.items() if n not in ("DATABASE_URL", "REDIS_URL")}
    without = {n: v for n, v in without.items() if n != "DJANGO_SETTINGS_MODULE"}
    env = {**without, "LOADMASTER_HOME": str(folder / "home")}
    argv, pipe = [sys.executable, "-m", "tests.slurm_site"], subprocess.PIPE
    with (folder / "said").open("w") as said:
        site = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=said, text=True
        )
    try:
        assert site.stdout is not None
        line = site.stdout.readline()
        assert line, (folder / "said").read_text()[-3000:]
        own = Loadmaster(**json.loads(line))
        yield own
        own.client.close()
    finally:
        site.communicate(timeout=90)


@dataclass(slots=True)
class Trial:
    """A case on one side: its folder, and the numbers of its jobs."""

    case: Case
    folder: Path
    numbers: list[str] = field(default_factory=list)


def play(side: Side, cases: Sequence[Case], folder: Path) -> Callable[[], dict[str, Outcome]]:
    """Submit all cases; return what waits for their ends and reads what became of them."""
    trials = [_submitted(side, case, folder / side.name / str(place)) for place, case in
              enumerate(cases)]  # fmt: skip
    for trial in trials:
        for step, number in zip(trial.case.steps, trial.numbers, strict=True):
            if step.then:
                _eventually((trial.folder / "started").exists)
                side.do(step.then, number)

    def ended() -> dict[str, Outcome]:
        waits = {n for t in trials if not t.case.stays for n in t.numbers if n}
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            states = side.states()
            if not any("active" in states.get(number, {"": "active"}).values() for number in waits):
                break
            time.sleep(0.5)
        return {trial.case.name: _outcome(trial, states) for trial in trials}

    return ended


def _submitted(side: Side, case: Case, folder: Path) -> Trial:
    folder.mkdir(parents=True)
    for name in case.folders:
        (folder / name).mkdir()
    trial, now = Trial(case, folder), str(int(time.time()))
    for step in case.steps:
        (folder / "run.sh").write_bytes(step.script.encode(errors="surrogateescape"))
        words = dict(enumerate(trial.numbers))

        def filled(word: str, words: Mapping[int, str] = words, now: str = now) -> str:
            word = re.sub(r"\{(\d)\}", lambda m: words[int(m[1])], word)
            return word.replace("{now}", now)

        made = Step(
            step.script, tuple(map(filled, step.options)), tuple(map(filled, step.arguments))
        )
        trial.numbers.append(side.submit(made, folder, case.exported))
    return trial


def _outcome(trial: Trial, states: Mapping[str, Mapping[str, str]]) -> Outcome:
    names = {number: f"JOB{place}" for place, number in enumerate(trial.numbers) if number}
    outcome = Outcome(["taken" if number else "refused" for number in trial.numbers])
    for number, name in names.items():
        for index, state in states.get(number, {}).items():
            outcome.states[f"{name}{'_' * bool(index)}{index}"] = state
    for path in sorted(trial.folder.rglob("*")):
        if path.is_file() and path.name != "run.sh":
            name = _plain(str(path.relative_to(trial.folder)), names, trial.folder)
            outcome.files[name] = _plain(
                _without_own(path.read_text(errors="surrogateescape")), names, trial.folder
            )
    return outcome


def _plain(text: str, names: Mapping[str, str], folder: Path) -> str:
    """The text with JOB0 for the number of the case's first job, and FOLDER for its folder."""
    text = text.replace(str(folder), "FOLDER")
    for number, name in names.items():
        text = re.sub(rf"(?<!\d)0*{number}(?!\d)", name, text)
    return re.sub(r"\S*/slurm_script", "SCRIPT", text)


def _without_own(text: str) -> str:
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in SLURMS_OWN]
    # A shell tells of its killed child only if it outlives the child, which is chance.
    chance = re.compile(r"slurmstepd|\S+: line \d+: +\d+ Killed ")
    return "\n".join(line for line in kept if not chance.match(line))


def differences(of_slurm: Outcome, own: Outcome) -> dict[str, str]:
    """Differences by part: submissions, states, files."""
    found: dict[str, str] = {}
    for part in ("submissions", "states", "files"):
        theirs, ours = getattr(of_slurm, part), getattr(own, part)
        if theirs != ours:
            found[part] = f"{part}:\n  Slurm      {theirs}\n  Loadmaster {ours}"
    return found


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, capture_output=True).returncode == 0


def _eventually(seen: Callable[[], object]) -> None:
    until = time.monotonic() + 60.0
    while not seen():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.1)
