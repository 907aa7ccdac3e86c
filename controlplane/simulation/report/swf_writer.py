"""Jobs written as an SWF log, which `swf` with `gpus: batch_fields` reads back.

Names of users, groups and kinds become numbers; comment lines say which. Cores may be parts of one,
times have milliseconds, memory is a decimal number of KB: readers that want whole numbers round.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import isfinite, isnan, nan

from controlplane.simulation.workloads.base import STEPS_PER_S, Workload
from controlplane.simulation.workloads.rules import Condition
from controlplane.simulation.workloads.swf.trace import KB_PER_GB
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.outcome import Outcome

KNOWN_RESOURCES = frozenset({"mic"})
"""Named resources that the format has a field for."""

# Statuses of the format.
COMPLETED = 1
FAILED = 0
CANCELLED = 5
UNKNOWN = -1

STATUS: Mapping[JobEnd, int] = {
    JobEnd.COMPLETED: COMPLETED,
    JobEnd.KILLED: FAILED,
    JobEnd.OVERDUE: FAILED,
    JobEnd.NEVER_READY: CANCELLED,
    JobEnd.OPEN: UNKNOWN,
}
"""Status of a job that has started, by its end."""


@dataclass(frozen=True, slots=True)
class Record:
    """Line of a log. `cores`, `gpus`, `mics` and `memory_gb` are of one unit.

    Unknown times are nan. `preceding`: number of the job after whose end, and `think_s`, this one
    is submitted; -1: none.
    """

    submit_s: float
    wait_s: float
    run_s: float
    walltime_s: float
    units: int
    cores: float
    gpus: int
    mics: float
    memory_gb: float
    status: int
    user: str = ""
    group: str = ""
    kind: str = ""
    preceding: int = -1
    think_s: float = -1.0


def lines_of(records: Iterable[Record], title: str, notes: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a log, records in their order, numbered from 1."""
    # 1. Numbers for names.
    records = list(records)
    users = _numbers("user", (record.user for record in records))
    groups = _numbers("group", (record.group for record in records))
    programs = _numbers("application", (_queue_and_program(record.kind)[1] for record in records))

    # 2. Comments.
    yield "; Version: 2.2\n"
    yield f"; Note: {_plain(title)}\n"
    yield "; Note: fields 19 to 26: units; cores, GPUs, MICs and KB of each; -1; application; -1\n"
    yield f"; MaxJobs: {len(records)}\n"
    for note in notes:
        yield f"; Note: {_plain(note)}\n"
    for word, numbers in (("User", users), ("Group", groups), ("Application", programs)):
        for name, number in numbers.items():
            yield f"; {word}: {number} {_plain(name)}\n"

    # 3. Records.
    for number, record in enumerate(records, start=1):
        yield _line(number, record, users, groups, programs)


def records_of(workload: Workload, outcome: Outcome | None = None) -> tuple[list[Record], int]:
    """Return records of a workload's jobs, and how many jobs need more than the format can say.

    With an outcome: as its run went. Without: run times of the workload and no waits. The format
    cannot say dependencies other than on one job's end, and named resources other than `mic`.
    """
    records: list[Record] = []
    incomplete = 0
    row_of_job = {job_id: row for row, job_id in enumerate(workload.jobs.columns.ids)}
    for row, job in enumerate(workload.jobs):
        wait_s, run_s = _times(workload, outcome, row)
        preceding, think_s, is_complete = _preceding(workload, row_of_job, job.id)
        resources = dict(job.resources)
        if not is_complete or not resources.keys() <= KNOWN_RESOURCES:
            incomplete += 1
        record = Record(
            submit_s=job.arrival_s,
            wait_s=wait_s,
            run_s=run_s,
            walltime_s=job.walltime_s,
            units=job.units,
            cores=job.cores,
            gpus=job.gpus_min // job.units,
            mics=resources.get("mic", 0.0),
            memory_gb=job.memory_gb,
            status=_status(outcome, row),
            user=job.user,
            group=job.team,
            kind=job.kind,
            preceding=preceding,
            think_s=think_s,
        )
        records.append(record)
    return records, incomplete


def _times(workload: Workload, outcome: Outcome | None, row: int) -> tuple[float, float]:
    """Return wait and run time of a job in seconds."""
    if outcome is None:
        steps = float(workload.jobs.columns.numbers["remaining_steps"][row])
        return nan, steps / STEPS_PER_S
    start_s = float(outcome.first_start_s[row])
    wait_s = start_s - float(outcome.arrival_s[row])
    return wait_s, float(outcome.ended_s[row]) - start_s


def _status(outcome: Outcome | None, row: int) -> int:
    """Return the status of a job; without an outcome, all are completed."""
    if outcome is None:
        return COMPLETED
    state = JobEnd(int(outcome.state[row]))
    has_started = not isnan(outcome.first_start_s[row])
    if state is not JobEnd.OPEN and not has_started:
        return CANCELLED
    return STATUS[state]


def _preceding(
    workload: Workload, row_of_job: Mapping[str, int], job: str
) -> tuple[int, float, bool]:
    """Return the preceding job's number, the think time, and whether the job waits for no more."""
    # 1. A job that waits for nothing.
    rules = workload.rules.after.get(job, ())
    dependencies = workload.jobs.columns.others["dependencies"][row_of_job[job]]
    if not rules and not dependencies:
        return -1, -1.0, True

    # 2. One that waits for the end of one job above it.
    if len(rules) == 1 and rules[0].condition is Condition.AFTERANY and len(rules[0].jobs) == 1:
        row = row_of_job.get(rules[0].jobs[0])
        if row is not None and row < row_of_job[job]:
            return row + 1, rules[0].delay_s, True
    return -1, -1.0, False


def _line(
    number: int,
    record: Record,
    users: Mapping[str, int],
    groups: Mapping[str, int],
    programs: Mapping[str, int],
) -> str:
    """Return a line of the log: the format's 18 fields, and 8 about units."""
    processors = record.units * record.cores
    memory_kb = record.memory_gb * KB_PER_GB
    processor_kb = record.units * memory_kb / processors if processors else memory_kb
    queue, program_name = _queue_and_program(record.kind)
    program = programs.get(program_name, -1)
    user = users.get(record.user, -1)
    group = groups.get(record.group, -1)
    fields = (
        number, record.submit_s, record.wait_s, record.run_s, processors, -1, -1,
        processors, record.walltime_s, processor_kb, record.status, user, group,
        program, queue, -1, record.preceding, record.think_s,
        record.units, record.cores, record.gpus, record.mics, memory_kb, -1, program, -1,
    )  # fmt: skip  # in the order of `swf.trace.FIELDS` and `EXTRA`
    return " ".join(_number(value) for value in fields) + "\n"


def _number(value: float) -> str:
    """Return the shortest text that reads back as the same number; -1 for an unknown one."""
    if not isfinite(value):
        return "-1"
    return str(int(value)) if value == int(value) else repr(float(value))


def _queue_and_program(kind: str) -> tuple[int, str]:
    """Return queue and program of a kind, -1 and "" if it has none.

    Kinds that were read from a log are called "queue 2, application 0", or "job".
    """
    match = re.fullmatch(r"(?:queue (\d{1,9}))?(?:, )?(.*)", kind, flags=re.DOTALL)
    assert match is not None  # the pattern fits every text
    queue = int(match[1]) if match[1] else -1
    program = "" if match[2] == "job" else match[2]
    return queue, program


def _numbers(word: str, names: Iterable[str]) -> dict[str, int]:
    """Return a number for each name but "".

    "user 3" has its own, as it was read from a log; others get the next ones that are free.
    """
    # 1. Names with numbers of their own.
    different_names = [name for name in dict.fromkeys(names) if name]
    own_numbers: dict[str, int] = {}
    for name in different_names:
        match = re.fullmatch(rf"{word} (0|[1-9]\d{{0,8}})", name)
        if match:
            own_numbers[name] = int(match[1])

    # 2. Numbers for the others.
    taken = set(own_numbers.values())
    free_numbers = (number for number in count(1) if number not in taken)
    numbers: dict[str, int] = {}
    for name in different_names:
        numbers[name] = own_numbers[name] if name in own_numbers else next(free_numbers)
    return numbers


def _plain(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())
