"""Steps of a batch script: tasks of one program, on cores that steps share."""

import contextlib
import errno
import fcntl
import os
import shutil
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

from loadmaster.slurm.environment import TASK
from loadmaster.slurm.files import filled
from loadmaster.slurm.gpus import StepGpus

POLL_S = 0.05
KILL_WAIT_S = 5.0
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """Tasks of a program on this node; `cores` are the step's own (0: it shares those of others).

    `commands` are those of the tasks by their number. `output`, `error` and `source` are names of
    files with fields such as %t, "" for srun's own; `appends`: files are not emptied first.
    `variables` are the environment of all tasks, `task_variables` of each what differs. A step is
    ended `limit_s` seconds after its start, None: never.
    """

    commands: tuple[tuple[str, ...], ...]
    cores: int
    gpus: StepGpus
    variables: Mapping[str, str] = field(default_factory=dict)
    task_variables: tuple[Mapping[str, str], ...] = ()
    folder: str = "."
    label: bool = False
    output: str = ""
    error: str = ""
    appends: bool = False
    source: str = ""
    stops_at_failure: bool = False
    limit_s: float | None = None

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.commands)


class Account:
    """Cores and GPUs of a job on its node, and its next step's number, in a file of the run's.

    A step holds a byte's lock for each core and GPU of its own: the kernel frees them when it ends.
    """

    NUMBER, TURN, FIRST_CORE, FIRST_GPU = 0, 1, 2, 1_000_000

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(
        self, cores: tuple[int, int], gpus: tuple[int, int], tell: Callable[[], None]
    ) -> list[int]:
        """Hold some cores and GPUs, each (how many, of how many); return the GPUs' places.

        Waits until other steps leave enough of both, behind steps that wait already.
        """
        held = self._try(cores, gpus)
        if held is not None:
            return held
        tell()
        with self._locked(self.TURN):
            while (held := self._try(cores, gpus)) is None:
                time.sleep(POLL_S)
        return held

    def _try(self, cores: tuple[int, int], gpus: tuple[int, int]) -> list[int] | None:
        """Hold all that is wanted, or nothing: then None."""
        held_cores = self._hold(self.FIRST_CORE, *cores)
        held_gpus = self._hold(self.FIRST_GPU, *gpus)
        if len(held_cores) == cores[0] and len(held_gpus) == gpus[0]:
            return [byte - self.FIRST_GPU for byte in held_gpus]
        for byte in (*held_cores, *held_gpus):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
        return None

    def _hold(self, first: int, wanted: int, of: int) -> list[int]:
        """Lock at most `wanted` of the bytes that no other step has locked."""
        held: list[int] = []
        for byte in range(first, first + of):
            if len(held) == wanted:
                break
            with contextlib.suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                held.append(byte)
        return held

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
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            if not self._step.appends:
                flags |= os.O_TRUNC
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
    streams = Streams(step, names)
    tasks = dict[int, int]()
    codes = dict[int, int]()
    early = list[int]()

    def forward(number: int, frame: FrameType | None = None) -> None:
        for pid in list(tasks):
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

    def end() -> None:
        forward(signal.SIGTERM)
        _later(KILL_WAIT_S, lambda: forward(signal.SIGKILL))

    streams.begun()
    if step.limit_s is not None:
        _later(step.limit_s, end)
    while tasks:
        pid, status = os.wait()
        codes[tasks.pop(pid)] = code = os.waitstatus_to_exitcode(status)
        if code and step.stops_at_failure:
            end()
    streams.ended()
    for text in worded(codes):
        say(f"error: {node}: {text}")
    return max(code if code >= 0 else 128 - code for code in codes.values())


def _later(seconds: float, act: Callable[[], None]) -> None:
    """Act after a while, unless the program is over by then."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _start(step: Step, task: int, streams: Streams) -> int:
    """Start a task as a process group of its own, and return its pid. Raises OSError."""
    own = {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
    differing = step.task_variables[task] if step.task_variables else {}
    environment = {**step.variables, **differing, **own}
    program, *words = step.commands[task]
    path = _path_of(program, step.folder, environment.get("PATH", ""))
    given, out, err = streams.of(task)
    process = subprocess.Popen(
        (*TASK, path, *words),
        cwd=step.folder,
        env=environment,
        stdin=given,
        stdout=out,
        stderr=err,
        process_group=0,
    )
    process.returncode = 0  # `run` waits for it
    return process.pid


def _path_of(program: str, folder: str, path: str) -> str:
    """Path of a program, sought in its task's PATH as Slurm does. Raises OSError."""
    found = program if "/" in program else shutil.which(program, path=path or os.devnull)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    place = Path(folder) / found
    if not place.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    if place.is_dir() or not os.access(place, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return found


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
