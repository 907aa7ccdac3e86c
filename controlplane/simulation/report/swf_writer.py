"""Jobs written as an SWF log, which `swf` with `gpus: batch_fields` reads back.

Names of users, groups and kinds become numbers; comment lines say which. Cores may be parts of one,
times have milliseconds, memory is a decimal number of KB: readers that want whole numbers round.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import isfinite, isnan

from controlplane.simulation.workloads.base import STEPS_PER_S, Workload
from controlplane.simulation.workloads.rules import Condition
from controlplane.simulation.workloads.swf.trace import KB_PER_GB
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.outcome import Outcome

KNOWN_RESOURCES = frozenset({"mic"})
COMPLETED, FAILED, CANCELLED, UNKNOWN = 1, 0, 5, -1
STATUS: Mapping[JobEnd, int] = {
    JobEnd.COMPLETED: COMPLETED, JobEnd.KILLED: FAILED, JobEnd.OVERDUE: FAILED,
    JobEnd.NEVER_READY: CANCELLED, JobEnd.OPEN: UNKNOWN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """Line of a log. Amounts are of one unit; `run_s`, `wait_s` and `walltime_s` nan if unknown."""

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
    records = list(records)
    users = _numbers("user", (record.user for record in records))
    groups = _numbers("group", (record.group for record in records))
    programs = _numbers("application", (_program(record.kind)[1] for record in records))
    yield "; Version: 2.2\n"
    yield f"; Note: {_plain(title)}\n"
    yield "; Note: fields 19 to 26: units; cores, GPUs, MICs and KB of each; -1; application; -1\n"
    yield f"; MaxJobs: {len(records)}\n"
    for note in notes:
        yield f"; Note: {_plain(note)}\n"
    named = {"User": users, "Group": groups, "Application": programs}
    for word, numbers in named.items():
        for name, number in numbers.items():
            yield f"; {word}: {number} {_plain(name)}\n"
    for number, record in enumerate(records, start=1):
        yield _line(number, record, users, groups, programs)


def records_of(workload: Workload, outcome: Outcome | None = None) -> tuple[list[Record], int]:
    """Records of a workload's jobs, and how many jobs need more than the format can say.

    With an outcome: as its run went. Without: run times of the workload and no waits. Not said are
    dependencies other than on one job's end, and named resources other than `mic`.
    """
    columns, found, lost = workload.jobs.columns, list[Record](), 0
    rows = {job: row for row, job in enumerate(columns.ids)}
    for row, job in enumerate(workload.jobs):
        times = _times(workload, outcome, row)
        preceding, think_s, is_said = _preceding(workload, rows, job.id)
        named = dict(job.resources)
        lost += not (is_said and named.keys() <= KNOWN_RESOURCES)
        units = job.units
        found.append(
            Record(
                job.arrival_s, *times, job.walltime_s, units, job.cores, job.gpus_min // units,
                named.get("mic", 0.0), job.memory_gb, _status(outcome, row), job.user, job.team,
                job.kind, preceding, think_s,
            )
        )  # fmt: skip
    return found, lost


def _times(workload: Workload, outcome: Outcome | None, row: int) -> tuple[float, float]:
    """(wait, run time) of a job in seconds."""
    if outcome is None:
        return float("nan"), float(
            workload.jobs.columns.numbers["remaining_steps"][row]
        ) / STEPS_PER_S
    start_s = float(outcome.first_start_s[row])
    return start_s - float(outcome.arrival_s[row]), float(outcome.ended_s[row]) - start_s


def _status(outcome: Outcome | None, row: int) -> int:
    if outcome is None:
        return COMPLETED
    state = JobEnd(int(outcome.state[row]))
    return (
        CANCELLED
        if state is not JobEnd.OPEN and isnan(outcome.first_start_s[row])
        else STATUS[state]
    )


def _preceding(workload: Workload, rows: Mapping[str, int], job: str) -> tuple[int, float, bool]:
    """(preceding job's number, think time, whether this is all that the job waits for)."""
    after = workload.rules.after.get(job, ())
    others = workload.jobs.columns.others["dependencies"][rows[job]]
    if not after and not others:
        return -1, -1.0, True
    if len(after) == 1 and after[0].condition is Condition.AFTERANY and len(after[0].jobs) == 1:
        at = rows.get(after[0].jobs[0])
        if at is not None and at < rows[job]:
            return at + 1, after[0].delay_s, True
    return -1, -1.0, False


def _line(
    number: int,
    of: Record,
    users: Mapping[str, int],
    groups: Mapping[str, int],
    kinds: Mapping[str, int],
) -> str:
    processors, memory_kb = of.units * of.cores, of.memory_gb * KB_PER_GB
    kb_per_processor = of.units * memory_kb / processors if processors else memory_kb
    queue, program = _program(of.kind)
    kind = kinds.get(program, -1)
    fields = (
        number, of.submit_s, of.wait_s, of.run_s, processors, -1, -1, processors, of.walltime_s,
        kb_per_processor, of.status, users.get(of.user, -1), groups.get(of.group, -1), kind, queue,
        -1, of.preceding, of.think_s, of.units, of.cores, of.gpus, of.mics, memory_kb, -1, kind, -1,
    )  # fmt: skip
    return " ".join(_number(value) for value in fields) + "\n"


def _number(value: float) -> str:
    """Shortest text that reads back as the same number; -1 for one that is not known."""
    if not isfinite(value):
        return "-1"
    return str(int(value)) if value == int(value) else repr(float(value))


def _program(kind: str) -> tuple[int, str]:
    """(queue, rest) of a kind; a log's are called "queue 2, application 0" when it is read."""
    found = re.fullmatch(r"(?:queue (\d{1,9}))?(?:, )?(.*)", kind, flags=re.DOTALL)
    assert found is not None  # anything matches
    return (int(found[1]) if found[1] else -1), ("" if found[2] == "job" else found[2])


def _numbers(word: str, names: Iterable[str]) -> dict[str, int]:
    """Number of each name but "": of "user 3" its own, of others the next ones that are free."""
    known = [name for name in dict.fromkeys(names) if name]
    own = {n: int(f[1]) for n in known if (f := re.fullmatch(rf"{word} (0|[1-9]\d{{0,8}})", n))}
    free = (number for number in count(1) if number not in set(own.values()))
    return {name: own[name] if name in own else next(free) for name in known}


def _plain(text: str) -> str:
    return " ".join(text.split())
