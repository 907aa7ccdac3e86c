"""Builders for the training side: a launch's folders as an agent would make them, and a toy job
whose state tells what it did.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PATIENCE_S = 200.0

# Its state is every batch it used, in order: so nothing can be lost, doubled or reordered without
# being seen.
TOY_JOB = """
import json, os, sys, time
from pathlib import Path
import loadmaster.training

{prelude}
used = []

def save(path):
    {before_save}
    path.write_text(json.dumps(used))

def load(path):
    used[:] = json.loads(path.read_text())

class Loader:
    def __len__(self):
        return 7
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        return iter([(self.epoch, number) for number in range(7)])

for batch in loadmaster.training.steps(Loader(), save=save, load=load, total={total}):
    used.append(list(batch))
    {in_step}
    loadmaster.training.report(loss=1.0 / len(used))
Path(sys.argv[1]).write_text(json.dumps(used))
"""


def batches_of(steps: int) -> list[list[int]]:
    """What the toy job uses in so many steps: seven batches an epoch."""
    return [[step // 7, step % 7] for step in range(steps)]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, with the patience of a machine that is busy with other things."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


@dataclass
class Launches:
    """The launches of one job: each in a folder of its own and with the next fence, over one folder
    of checkpoints.
    """

    root: Path
    steps: int = 20
    environ: dict[str, str] = field(default_factory=dict)
    fence: int = 0

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def run_dir(self) -> Path:
        return self.root / f"run-{self.fence}"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    def next_environ(self, **environ: str) -> dict[str, str]:
        """The environment of the next launch, as an agent sets it; its folder is made."""
        self.fence += 1
        self.run_dir.mkdir(parents=True)
        self.checkpoints.mkdir(exist_ok=True)
        return {
            "LOADMASTER_RUN_DIR": str(self.run_dir),
            "LOADMASTER_CHECKPOINT_DIR": str(self.checkpoints),
            "LOADMASTER_FENCE": str(self.fence),
            "LOADMASTER_STEPS": str(self.steps),
            "LOADMASTER_CHECKPOINT_EVERY_S": "1000",
            **self.environ,
            **environ,
        }

    def start(self, *command: str, **environ: str) -> "subprocess.Popen[bytes]":
        """Start the next launch of a command of the interpreter (`-m package`, `-c script`)."""
        return start(*command, **self.next_environ(**environ))

    def start_toy(self, script: str, **environ: str) -> "subprocess.Popen[bytes]":
        return self.start("-c", script, str(self.result), **environ)

    def write_term(self, **term: object) -> None:
        """Write the launch's term as the agent does: whole, under a temporary name, renamed."""
        content = {
            "version": 1,
            "fence": self.fence,
            "stop": False,
            "reason": None,
            "term_until_s": None,
            "grace_s": 30.0,
        }
        temporary = self.run_dir / "term.json.new"
        temporary.write_text(json.dumps({**content, **term}))
        temporary.replace(self.run_dir / "term.json")

    def lines(self) -> list[dict[str, object]]:
        path = self.run_dir / "progress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.lines() if line["event"] == event]

    def manifest(self) -> dict[str, object]:
        return dict(json.loads((self.checkpoints / "manifest.json").read_bytes()))


def start(*command: str, **environ: str) -> "subprocess.Popen[bytes]":
    """Start this interpreter with nothing of an agent in its environment but what is given.

    SIGINT is what it is in a terminal: a test run in a shell's background would hand on that it is
    ignored.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("LOADMASTER_")
    }
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**inherited, **environ},
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def end_of(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Wait for a process; its exit code and what it wrote to stderr."""
    try:
        _, stderr = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, stderr.decode()


def toy_job(
    *, total: int | None = None, prelude: str = "", before_save: str = "pass", in_step: str = "pass"
) -> str:
    return TOY_JOB.format(total=total, prelude=prelude, before_save=before_save, in_step=in_step)
