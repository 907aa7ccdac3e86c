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

from loadmaster.slurm.scripts.environment import TASK
from loadmaster.slurm.scripts.file_names import filled
from loadmaster.slurm.steps.gpus import StepGpus

POLL_S = 0.05
"""Seconds between two looks of a waiting step for free cores and GPUs."""

KILL_WAIT_S = 5.0
"""Seconds from the SIGTERM that ends a step to SIGKILL."""

FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip  # a long list of names
"""Signals to srun that it passes on to its tasks."""


@dataclass(frozen=True, slots=True)
class Step:
    """Tasks of a program on this node.

    `commands`: command of each task by its number. `cores`: number of the step's own cores; 0 if it
    shares those of other steps. `variables`: environment of all tasks; `task_variables`: what
    differs in each. `output`, `error` and `source` (the input): names of files with fields such as
    %t, "" for srun's own; `appends`: output files are not emptied first. `limit_s`: seconds after
    which the step is ended; None: never.
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
    """Cores and GPUs of a job on its node, and its next step's number, in a file of the run.

    A step locks one byte of the file for each core and GPU of its own: the kernel frees them when
    it ends.
    """

    # Places of the bytes that are locked.
    NUMBER = 0
    TURN = 1
    FIRST_CORE = 2
    FIRST_GPU = 1_000_000

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(
        self, cores: tuple[int, int], gpus: tuple[int, int], tell: Callable[[], None]
    ) -> list[int]:
        """Hold some cores and GPUs, each as (number wanted, number of the job).

        Returns the places of the GPUs among the job's. Calls `tell` once and waits if other steps
        do not leave enough of both, behind steps that wait already.
        """
        held_gpus = self._try(cores, gpus)
        if held_gpus is not None:
            return held_gpus
        tell()
        with self._locked(self.TURN):
            held_gpus = self._try(cores, gpus)
            while held_gpus is None:
                time.sleep(POLL_S)
                held_gpus = self._try(cores, gpus)
        return held_gpus

    def _try(self, cores: tuple[int, int], gpus: tuple[int, int]) -> list[int] | None:
        """Hold all that is wanted and return the GPUs' places; else hold nothing, return None."""
        held_cores = self._hold(self.FIRST_CORE, *cores)
        held_gpus = self._hold(self.FIRST_GPU, *gpus)
        if len(held_cores) == cores[0] and len(held_gpus) == gpus[0]:
            return [byte - self.FIRST_GPU for byte in held_gpus]
        for byte in (*held_cores, *held_gpus):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
        return None

    def _hold(self, first: int, wanted: int, total: int) -> list[int]:
        """Lock at most `wanted` of `total` bytes from `first` on that no other step has locked."""
        held: list[int] = []
        for byte in range(first, first + total):
            if len(held) == wanted:
                break
            with contextlib.suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                held.append(byte)
        return held

    def number(self) -> int:
        """Return the number of the next step, from 0 on, and count it."""
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
    """Files and pipes of a step's tasks, as file descriptors.

    `names`: values of the fields in names of files.
    """

    def __init__(self, step: Step, names: Mapping[str, str]) -> None:
        self._step = step
        self._names = names
        self._files = dict[str, int]()
        # Descriptors that tasks inherit and srun closes once all have begun.
        self._ends_of_tasks = list[int]()
        # Pipes to the inputs of tasks.
        self._inputs = list[int]()
        # Threads that write labelled output.
        self._copying = list[threading.Thread]()

    def of(self, task: int) -> tuple[int, int, int]:
        """Return standard input, output and error of a task. Raises OSError."""
        output = self._target(self._step.output, task, 1)
        error = self._target(self._step.error or self._step.output, task, 2)
        return self._input(task), output, error

    def begun(self) -> None:
        """Close what only tasks hold, and pass srun's own input on to all of them."""
        for end in self._ends_of_tasks:
            os.close(end)
        if self._inputs:
            threading.Thread(target=_feed, args=(self._inputs,), daemon=True).start()

    def ended(self) -> None:
        """Wait for the rest of labelled output."""
        for thread in self._copying:
            thread.join()

    def _target(self, pattern: str, task: int, own: int) -> int:
        """Return where a task writes: a file, or a pipe whose lines get the task's label."""
        target = self._file(pattern, task, own)
        if not self._step.label:
            return target
        read_end, write_end = os.pipe()
        self._ends_of_tasks.append(write_end)
        label = b"%*d: " % (len(str(self._step.tasks - 1)), task)
        thread = threading.Thread(target=_copy, args=(read_end, target, label))
        thread.start()
        self._copying.append(thread)
        return write_end

    def _file(self, pattern: str, task: int, own: int) -> int:
        """Return the file of a pattern, opened once for all tasks; `own` is srun's descriptor."""
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
        if source == "none":
            return subprocess.DEVNULL
        # A number is that of the one task that reads srun's own input.
        if source.isdecimal():
            return 0 if int(source) == task else subprocess.DEVNULL
        if source in ("", "all"):
            if self._step.tasks == 1:
                return 0
            read_end, write_end = os.pipe()
            self._ends_of_tasks.append(read_end)
            self._inputs.append(write_end)
            return read_end
        file = os.open(self._name(source, task), os.O_RDONLY | os.O_CLOEXEC)
        self._ends_of_tasks.append(file)
        return file

    def _name(self, pattern: str, task: int) -> str:
        return str(Path(self._step.folder) / filled(pattern, {**self._names, "t": str(task)}))


def _copy(source: int, target: int, label: bytes) -> None:
    """Copy lines with a label before each, until the source ends."""
    with os.fdopen(source, "rb") as lines, os.fdopen(os.dup(target), "wb") as file:
        for line in lines:
            file.write(label + line.rstrip(b"\n") + b"\n")
            file.flush()


def _feed(inputs: Sequence[int]) -> None:
    """Copy srun's own input to the inputs of all tasks, and close them at its end."""
    files = [os.fdopen(descriptor, "wb") for descriptor in inputs]
    while chunk := os.read(0, 65_536):
        for file in files:
            with contextlib.suppress(OSError):  # this task reads no more
                file.write(chunk)
                file.flush()
    for file in files:
        with contextlib.suppress(OSError):
            file.close()


def run(step: Step, node: str, names: Mapping[str, str]) -> int:
    """Run the step's tasks to their end; return the highest exit code, 128 + number of a signal.

    `node` is the node's name in messages, `names` are the values of fields in names of files.
    """
    streams = Streams(step, names)
    tasks_by_pid = dict[int, int]()
    codes = dict[int, int]()
    early = list[int]()

    def forward(number: int, frame: FrameType | None = None) -> None:
        for pid in list(tasks_by_pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    # 1. Start the tasks. Signals that arrive meanwhile are kept, and reach all of them.
    for name in FORWARDED:
        signal.signal(name, lambda number, _: early.append(number))
    for task in range(step.tasks):
        try:
            tasks_by_pid[_start(step, task, streams)] = task
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

    # 2. Wait for their ends.
    streams.begun()
    if step.limit_s is not None:
        _later(step.limit_s, end)
    while tasks_by_pid:
        pid, status = os.wait()
        if pid not in tasks_by_pid:
            continue  # a child of the script that became srun by `exec`
        code = os.waitstatus_to_exitcode(status)
        codes[tasks_by_pid.pop(pid)] = code
        if code and step.stops_at_failure:
            end()
    streams.ended()

    # 3. Name the failures. A code below 0 is a signal's.
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
    standard_input, output, error = streams.of(task)
    process = subprocess.Popen(
        (*TASK, path, *words),
        cwd=step.folder,
        env=environment,
        stdin=standard_input,
        stdout=output,
        stderr=error,
        start_new_session=True,
    )
    process.returncode = 0  # `run` waits for it
    return process.pid


def _path_of(program: str, folder: str, path: str) -> str:
    """Return the path of a program, sought in its task's PATH as Slurm does. Raises OSError.

    A path with a slash is relative to `folder`, in which the task starts.
    """
    location = program
    if "/" not in program:
        # Without a PATH nothing is found: `which` would take this process' own.
        location = shutil.which(program, path=path or os.devnull) or ""
    file = Path(folder) / location
    if not location or not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    if file.is_dir() or not os.access(file, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return location


def worded(codes: Mapping[int, int]) -> Iterator[str]:
    """Yield how tasks failed, those with one exit code together."""
    by_code = sorted(codes, key=lambda task: (codes[task], task))
    for code, tasks in groupby(by_code, codes.get):
        if not code:
            continue
        end = f"Exited with exit code {code}"
        if code < 0:
            end = signal.strsignal(-code) or end
        numbers = ranges(tasks)
        noun = "task" if numbers.isdecimal() else "tasks"
        yield f"{noun} {numbers}: {end}"


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as a text: 0, 1, 2, 5 as 0-2,5."""
    spans = list[tuple[int, int]]()
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return ",".join(texts)


def say(text: str) -> None:
    """Write a message of srun to its errors."""
    sys.stderr.write(f"srun: {text}\n")
    sys.stderr.flush()
