"""Steps of a batch script: tasks of one program, on cores that steps share."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import FrameType

from loadmaster.slurm.files import filled

POLL_S = 0.05
KILL_WAIT_S = 5.0
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """Tasks of a program on this node; `cores` are the step's own (0: it shares those of others).

    `output`, `error` and `source` are names of files with fields such as %t, "" for srun's own;
    `variables` are those of the tasks, but for what differs by task.
    """

    command: tuple[str, ...]
    tasks: int
    cores: int
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    label: bool = False
    output: str = ""
    error: str = ""
    source: str = ""
    stops_at_failure: bool = False


class Cores:
    """Cores of a job on its node, and its next step's number, in a file of the run's folder.

    A step holds a byte's lock for each of its cores: the kernel frees them when it ends.
    """

    NUMBER, TURN, FIRST = 0, 1, 2

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, wanted: int, of: int, tell: Callable[[], None]) -> None:
        """Hold some cores of a number, as soon as steps that came before have theirs."""
        if wanted and not self._try(wanted, of):
            tell()
            with self._locked(self.TURN):
                while not self._try(wanted, of):
                    time.sleep(POLL_S)

    def _try(self, wanted: int, of: int) -> bool:
        held = list[int]()
        for core in range(self.FIRST, self.FIRST + of):
            if len(held) < wanted:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, core)
                    held.append(core)
        if len(held) == wanted:
            return True
        for core in held:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, core)
        return False

    def number(self) -> int:
        """Number of the next step, from 0 on."""
        with self._locked(self.NUMBER):
            number = int(os.pread(self._file, 20, 0) or 0)
            os.pwrite(self._file, b"%d" % (number + 1), 0)
            return number

    @contextlib.contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)


class Streams:
    """Files and pipes of a step's tasks; `names` are the values of fields in names of files."""

    def __init__(self, step: Step, names: Mapping[str, str]) -> None:
        self._step, self._names = step, names
        self._files = dict[str, int]()
        self._ends = list[int]()
        self._fed = list[int]()
        self._copying = list[threading.Thread]()

    def of(self, task: int) -> tuple[int, int, int]:
        """Standard input, output and errors of a task. Raises OSError."""
        error = self._step.error or self._step.output
        out, err = self._target(self._step.output, task, 1), self._target(error, task, 2)
        return self._input(task), out, err

    def begun(self) -> None:
        """Close what only tasks hold, and pass srun's own input on to all of them."""
        for end in self._ends:
            os.close(end)
        if self._fed:
            threading.Thread(target=_feed, args=(self._fed,), daemon=True).start()

    def ended(self) -> None:
        """Wait for the rest of labelled output."""
        for thread in self._copying:
            thread.join()

    def _target(self, pattern: str, task: int, own: int) -> int:
        target = self._file(pattern, task, own)
        if not self._step.label:
            return target
        read, write = os.pipe()
        self._ends.append(write)
        label = b"%*d: " % (len(str(self._step.tasks - 1)), task)
        self._copying.append(threading.Thread(target=_copy, args=(read, target, label)))
        self._copying[-1].start()
        return write

    def _file(self, pattern: str, task: int, own: int) -> int:
        if pattern in ("", "all"):
            return own
        name = os.devnull if pattern == "none" else self._name(pattern, task)
        if name not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._files[name] = os.open(name, flags, 0o666)
        return self._files[name]

    def _input(self, task: int) -> int:
        source = self._step.source
        if source == "none" or (source.isdecimal() and int(source) != task):
            return subprocess.DEVNULL
        if source in ("", "all") and self._step.tasks > 1:
            read, write = os.pipe()
            self._ends.append(read)
            self._fed.append(write)
            return read
        if source in ("", "all") or source.isdecimal():
            return 0
        self._ends.append(os.open(self._name(source, task), os.O_RDONLY | os.O_CLOEXEC))
        return self._ends[-1]

    def _name(self, pattern: str, task: int) -> str:
        return str(Path(self._step.folder) / filled(pattern, {**self._names, "t": str(task)}))


def _copy(read: int, target: int, label: bytes) -> None:
    with os.fdopen(read, "rb") as lines, os.fdopen(os.dup(target), "wb") as file:
        for line in lines:
            file.write(label + line.rstrip(b"\n") + b"\n")
            file.flush()


def _feed(ends: Sequence[int]) -> None:
    files = [os.fdopen(end, "wb") for end in ends]
    while chunk := os.read(0, 65_536):
        for file in files:
            with contextlib.suppress(OSError):  # this task reads no more
                file.write(chunk)
                file.flush()
    for file in files:
        with contextlib.suppress(OSError):
            file.close()


def run(step: Step, node: str, names: Mapping[str, str]) -> int:
    """Run the step's tasks to their end; the highest exit code, 128 and more for signals."""
    streams, tasks, codes = Streams(step, names), dict[int, int](), dict[int, int]()
    early = list[int]()

    def forward(number: int, frame: FrameType | None = None) -> None:
        for pid in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    for name in FORWARDED:
        signal.signal(name, lambda number, _: early.append(number))
    for task in range(step.tasks):
        try:
            tasks[_start(step, task, streams)] = task
        except OSError as error:
            codes[task] = error.errno or 1
            say(f"error: {node}: task {task}: {error.strerror}: {error.filename}")
    for name in FORWARDED:
        signal.signal(name, forward)
    for number in early:
        forward(number)
    streams.begun()
    while tasks:
        pid, status = os.wait()
        codes[tasks.pop(pid)] = code = os.waitstatus_to_exitcode(status)
        if code and step.stops_at_failure:
            forward(signal.SIGTERM)
            killer = threading.Timer(KILL_WAIT_S, forward, (signal.SIGKILL,))
            killer.daemon = True
            killer.start()
    streams.ended()
    for text in worded(codes):
        say(f"error: {node}: {text}")
    return max(code if code >= 0 else 128 - code for code in codes.values())


def _start(step: Step, task: int, streams: Streams) -> int:
    """Start a task as a process group of its own, and return its pid. Raises OSError."""
    own = {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
    environment = {**os.environ, **step.variables, **own}
    given, out, err = streams.of(task)
    process = subprocess.Popen(
        step.command,
        cwd=step.folder,
        env=environment,
        stdin=given,
        stdout=out,
        stderr=err,
        process_group=0,
    )
    process.returncode = 0  # `run` waits for it
    return process.pid


def worded(codes: Mapping[int, int]) -> Iterator[str]:
    """Yield how tasks failed, those with one exit code together."""
    for code, tasks in groupby(sorted(codes, key=lambda task: (codes[task], task)), codes.get):
        if code:
            known = code < 0 and signal.strsignal(-code)
            listed = ranges(tasks)
            which = f"task{'s' * (not listed.isdecimal())} {listed}"
            yield f"{which}: {known or f'Exited with exit code {code}'}"


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as a text: of 0, 1, 2, 5 the text 0-2,5."""
    spans = list[list[int]]()
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)


def say(text: str) -> None:
    """Write a message of srun to its errors."""
    sys.stderr.write(f"srun: {text}\n")
    sys.stderr.flush()
