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
    """Cores and GPUs that the steps of a job hold on its node, and the next step's number.

    They are kept in a file of the run, which all steps open. A step locks one byte of it for each
    core and GPU of its own: the kernel frees them when it ends, however it ends.
    """

    # Offsets of the bytes that are locked, which need not exist.
    NUMBER = 0
    QUEUE = 1
    FIRST_CORE = 2
    FIRST_GPU = 1_000_000

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(
        self, cores: tuple[int, int], gpus: tuple[int, int], tell: Callable[[], None]
    ) -> list[int]:
        """Hold some cores and GPUs, each given as (number wanted, number that the job has).

        Returns the places of the GPUs among the job's. If other steps do not leave enough of both,
        it calls `tell` once, and waits until they do, behind steps that wait already.
        """
        gpu_places = self._take_now(cores, gpus)
        if gpu_places is not None:
            return gpu_places
        tell()
        with self._locked(self.QUEUE):
            gpu_places = self._take_now(cores, gpus)
            while gpu_places is None:
                time.sleep(POLL_S)
                gpu_places = self._take_now(cores, gpus)
        return gpu_places

    def _take_now(self, cores: tuple[int, int], gpus: tuple[int, int]) -> list[int] | None:
        """Hold all that is wanted and return the GPUs' places; else hold nothing, return None."""
        cores_wanted, cores_of_job = cores
        gpus_wanted, gpus_of_job = gpus
        core_bytes = self._lock_free_bytes(self.FIRST_CORE, cores_wanted, cores_of_job)
        gpu_bytes = self._lock_free_bytes(self.FIRST_GPU, gpus_wanted, gpus_of_job)
        if len(core_bytes) == cores_wanted and len(gpu_bytes) == gpus_wanted:
            return [byte - self.FIRST_GPU for byte in gpu_bytes]
        for byte in (*core_bytes, *gpu_bytes):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
        return None

    def _lock_free_bytes(self, first: int, wanted: int, total: int) -> list[int]:
        """Lock at most `wanted` of `total` bytes from `first` on that no other step has locked."""
        locked: list[int] = []
        for byte in range(first, first + total):
            if len(locked) == wanted:
                break
            with contextlib.suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                locked.append(byte)
        return locked

    def next_number(self) -> int:
        """Return the number of the next step, from 0 on, and count it."""
        with self._locked(self.NUMBER):
            number = int(os.pread(self._file, 20, 0) or 0)
            os.pwrite(self._file, b"%d" % (number + 1), 0)
            return number

    @contextlib.contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        """Wait for the lock of a byte, and hold it inside the context."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)


class Streams:
    """Files and pipes of a step's tasks, as file descriptors.

    `name_fields`: values of the fields in names of files, by letter.
    """

    def __init__(self, step: Step, name_fields: Mapping[str, str]) -> None:
        self._step = step
        self._name_fields = name_fields
        self._file_by_name = dict[str, int]()
        # Descriptors that tasks inherit and srun closes once all tasks have started.
        self._ends_of_tasks = list[int]()
        # Pipes to the inputs of tasks.
        self._input_pipes = list[int]()
        # Threads that write labelled output.
        self._copying = list[threading.Thread]()

    def of_task(self, task: int) -> tuple[int, int, int]:
        """Return standard input, output and error of a task. Raises OSError."""
        output = self._output(self._step.output, task, 1)
        error = self._output(self._step.error or self._step.output, task, 2)
        return self._input(task), output, error

    def tasks_started(self) -> None:
        """Close what only tasks hold, and pass srun's own input on to all of them."""
        for end in self._ends_of_tasks:
            os.close(end)
        if self._input_pipes:
            threading.Thread(target=_feed, args=(self._input_pipes,), daemon=True).start()

    def tasks_ended(self) -> None:
        """Wait for the rest of labelled output."""
        for thread in self._copying:
            thread.join()

    def _output(self, pattern: str, task: int, own: int) -> int:
        """Return where a task writes: a file, or a pipe whose lines get the task's label.

        `own`: srun's own descriptor, 1 or 2.
        """
        file = self._output_file(pattern, task, own)
        if not self._step.label:
            return file
        read_end, write_end = os.pipe()
        self._ends_of_tasks.append(write_end)
        widest = len(str(self._step.tasks - 1))
        label = f"{task:>{widest}}: ".encode()
        thread = threading.Thread(target=_copy, args=(read_end, file, label))
        thread.start()
        self._copying.append(thread)
        return write_end

    def _output_file(self, pattern: str, task: int, own: int) -> int:
        """Return the file of a pattern, opened once for all tasks; srun's own for none."""
        if pattern in ("", "all"):
            return own
        name = os.devnull if pattern == "none" else self._name(pattern, task)
        if name not in self._file_by_name:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            if not self._step.appends:
                flags |= os.O_TRUNC
            self._file_by_name[name] = os.open(name, flags, 0o666)
        return self._file_by_name[name]

    def _input(self, task: int) -> int:
        """Return the standard input of a task. Raises OSError."""
        # 1. None, or a number: that of the one task that reads srun's own input.
        source = self._step.source
        if source == "none":
            return subprocess.DEVNULL
        if source.isdecimal():
            return 0 if int(source) == task else subprocess.DEVNULL

        # 2. A copy of srun's own input for each task.
        if source in ("", "all"):
            if self._step.tasks == 1:
                return 0
            read_end, write_end = os.pipe()
            self._ends_of_tasks.append(read_end)
            self._input_pipes.append(write_end)
            return read_end

        # 3. A file.
        file = os.open(self._name(source, task), os.O_RDONLY | os.O_CLOEXEC)
        self._ends_of_tasks.append(file)
        return file

    def _name(self, pattern: str, task: int) -> str:
        """Return the path of a file by a pattern such as out-%j-%t."""
        name = filled(pattern, {**self._name_fields, "t": str(task)})
        return str(Path(self._step.folder) / name)


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


def run(step: Step, node: str, name_fields: Mapping[str, str]) -> int:
    """Run the step's tasks to their end; return the highest exit code, 128 + number of a signal.

    `node` is the node's name in messages, `name_fields` are the values of fields in names of files.
    """
    streams = Streams(step, name_fields)
    task_by_pid = dict[int, int]()
    code_by_task = dict[int, int]()
    early_signals = list[int]()

    def forward(number: int, frame: FrameType | None = None) -> None:
        """Send a signal to the process groups of all tasks that have not ended."""
        for pid in list(task_by_pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def end_tasks() -> None:
        """Order all tasks to end, and kill them a little later."""
        forward(signal.SIGTERM)
        _call_later(KILL_WAIT_S, lambda: forward(signal.SIGKILL))

    # 1. Start the tasks. Signals that arrive meanwhile are kept, and reach all of them.
    for forwarded in FORWARDED:
        signal.signal(forwarded, lambda number, _: early_signals.append(number))
    for task in range(step.tasks):
        try:
            pid = _start(step, task, streams)
        except OSError as error:
            code_by_task[task] = error.errno or 1
            say(f"error: {node}: task {task}: {error.strerror}: {error.filename}")
        else:
            task_by_pid[pid] = task
    for forwarded in FORWARDED:
        signal.signal(forwarded, forward)
    for number in early_signals:
        forward(number)

    # 2. Wait for their ends.
    streams.tasks_started()
    if step.limit_s is not None:
        _call_later(step.limit_s, end_tasks)
    while task_by_pid:
        pid, status = os.wait()
        if pid not in task_by_pid:
            continue  # a child of the script that became srun by `exec`
        task = task_by_pid.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        code_by_task[task] = code
        if code and step.stops_at_failure:
            end_tasks()
    streams.tasks_ended()

    # 3. Name the failures, and return the highest code. One below 0 is a signal's.
    for text in failure_texts(code_by_task):
        say(f"error: {node}: {text}")
    return max(code if code >= 0 else 128 - code for code in code_by_task.values())


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    """Call a function after a while, unless the program is over by then."""
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def _start(step: Step, task: int, streams: Streams) -> int:
    """Start a task as a process group of its own, and return its pid. Raises OSError."""
    environment = dict(step.variables)
    if step.task_variables:
        environment.update(step.task_variables[task])
    environment["SLURM_PROCID"] = str(task)
    environment["SLURM_LOCALID"] = str(task)

    program, *arguments = step.commands[task]
    path = _path_of(program, step.folder, environment.get("PATH", ""))
    standard_input, output, error = streams.of_task(task)
    process = subprocess.Popen(
        (*TASK, path, *arguments),
        cwd=step.folder,
        env=environment,
        stdin=standard_input,
        stdout=output,
        stderr=error,
        start_new_session=True,
    )
    process.returncode = 0  # `run` waits for the process, so Popen need not
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


def failure_texts(code_by_task: Mapping[int, int]) -> Iterator[str]:
    """Yield how tasks failed, those with one exit code together."""
    by_code = sorted(code_by_task, key=lambda task: (code_by_task[task], task))
    for code, tasks in groupby(by_code, code_by_task.get):
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
