"""Checks jobs' journals: nothing lost, nothing run twice at once, no device held twice.

Reads what jobs wrote (`loadmaster.demo.journals`) and `submitted.json`, a list of {"id", "steps"}.
Launches of a rank with one checkpoint folder are a chain: one at a time, each goes on at a step
that an earlier one has done, not before the newest whole checkpoint.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

SUBMITTED = "submitted.json"
_TICK_S = 0.01
"""The kernel tells a process's birth in steps of a hundredth of a second, rounded down."""


class JournalsError(Exception):
    """The folder holds no journals that can be checked; the message says why."""


@dataclass(slots=True)
class Launch:
    """A process of a job from birth to its last sign of life, on `boot_id`'s clock."""

    job: str
    name: str
    rank: int
    devices: tuple[str, ...]
    chain: tuple[str, str]
    boot_id: str
    born_s: float
    last_s: float
    lock_was_free: bool
    how: str = ""
    resumed: int | None = None
    saved: int = 0
    steps: list[int] = field(default_factory=list)
    assignment: str = ""
    fence: int = 0

    def take(self, line: Mapping[str, Any]) -> None:
        """Learn from a later line of the launch."""
        self.last_s = max(self.last_s, float(line["boot_s"]))
        self.lock_was_free &= bool(line.get("lock_free", True))
        match line["event"]:
            case "resumed":
                self.resumed = int(line["step"])
            case "step":
                self.steps.append(int(line["step"]))
            case "saved":
                self.saved = max(self.saved, int(line["step"]))
            case "end":
                self.how = str(line["how"])


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings in the journals: counts, and a sentence for each thing that should not be.

    `unfinished`: jobs not completed or not submitted; `broken`: steps left out or repeated.
    """

    jobs: int
    launches: int
    steps: int
    unfinished: tuple[str, ...]
    broken: tuple[str, ...]
    overlaps: tuple[str, ...]
    held_twice: tuple[str, ...]

    @property
    def lost(self) -> tuple[str, ...]:
        """Jobs and steps that are lost."""
        return self.unfinished + self.broken

    @property
    def holds(self) -> bool:
        """Nothing lost, nothing twice."""
        return not (self.lost or self.overlaps or self.held_twice)


def check_journals(folder: Path, slots: int = 1) -> Findings:
    """Read and check the journals in `folder`; `slots` launches may share a device.

    Raises JournalsError if unreadable.
    """
    wanted = _submitted(folder / SUBMITTED)
    launches = sorted(launches_in(folder), key=attrgetter("born_s"))
    by_job: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_job[launch.job].append(launch)
    unfinished = [
        f"job {job} was submitted and never completed"
        for job, steps in wanted.items()
        if not _is_completed(steps, by_job[job])
    ]
    broken = [text for job in wanted for text in _broken(by_job[job])]
    unknown = [f"job {job} ran but was never submitted" for job in by_job if job not in wanted]
    return Findings(
        len(wanted),
        len(launches),
        sum(len(launch.steps) for launch in launches),
        (*unfinished, *unknown),
        tuple(broken),
        overlaps(launches),
        tuple(_at_once(launches, lambda launch: launch.devices, slots)),
    )


def _submitted(path: Path) -> dict[str, int]:
    try:
        return {str(job["id"]): int(job["steps"]) for job in json.loads(path.read_text())}
    except OSError as error:
        raise JournalsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise JournalsError(f'{path} must be a list of {{"id", "steps"}}: {error}') from error


def overlaps(launches: Sequence[Launch]) -> tuple[str, ...]:
    """Launches of one job, with the same checkpoints, alive at once; `launches` by birth."""
    together = _at_once(launches, lambda launch: [(launch.job, launch.chain)])
    return (*_locked_out(launches), *together)


def launches_in(folder: Path) -> Iterator[Launch]:
    """Yield the launches of the journals in a folder. Raises JournalsError if unreadable."""
    for path in sorted(folder.glob("*.jsonl")):
        found: dict[str, Launch] = {}
        for number, text in enumerate(path.read_text().splitlines(), 1):
            try:
                _take(found, json.loads(text))
            except (ValueError, KeyError, TypeError) as error:
                text = f"{path}, line {number} is no line of a journal: {error}"
                raise JournalsError(text) from error
        yield from found.values()


def _take(found: dict[str, Launch], line: Mapping[str, Any]) -> None:
    name = str(line["launch"])
    if line["event"] == "start":
        found[name] = Launch(
            job=str(line["job"]),
            name=name,
            rank=int(line["rank"]),
            devices=tuple(line["devices"]),
            chain=(str(line["checkpoints"]), str(line["rank"])),
            boot_id=str(line["boot_id"]),
            born_s=float(line["born_s"]) + _TICK_S,
            last_s=float(line["boot_s"]),
            lock_was_free=bool(line["lock_free"]),
            assignment=str(line.get("assignment", "")),
            fence=int(line.get("fence", 0)),
        )
    found[name].take(line)


def _chains(launches: Iterable[Launch]) -> Iterator[list[Launch]]:
    by_chain = sorted(launches, key=attrgetter("chain", "born_s"))
    return (list(chain) for _, chain in groupby(by_chain, key=attrgetter("chain")))


def _is_completed(total: int, launches: Iterable[Launch]) -> bool:
    """Return True if a launch of some rank has ended with all steps done."""
    for chain in _chains(launches):
        done = 0
        for launch in chain:
            done = max([done, *launch.steps])
            if launch.how == "done" and done == total:
                return True
    return False


def _broken(launches: Iterable[Launch]) -> Iterator[str]:
    """Steps that a launch left out, or did again although a checkpoint held them."""
    for chain in _chains(launches):
        done = saved = 0
        for launch in chain:
            yield from _broken_by(launch, done, saved)
            done, saved = max([done, *launch.steps]), max(saved, launch.saved)


def _broken_by(launch: Launch, done: int, saved: int) -> Iterator[str]:
    if launch.resumed is None:
        return
    at = launch.resumed
    who = f"job {launch.job}: launch {launch.name}"
    if at > done:
        yield f"{who} went on after step {at}, but only {done} were done"
    if at < saved:
        yield f"{who} went on after step {at}, although a checkpoint held {saved}"
    if launch.steps != list(range(at + 1, at + 1 + len(launch.steps))):
        yield f"{who} did not do its steps one after another"


def _locked_out(launches: Iterable[Launch]) -> Iterator[str]:
    for launch in launches:
        if not launch.lock_was_free:
            who = f"job {launch.job}: launch {launch.name}"
            yield f"{who} found another one alive (the lock was taken)"


def _at_once(
    launches: Iterable[Launch], keys: Callable[[Launch], Iterable[Hashable]], most: int = 1
) -> Iterator[str]:
    """Launches alive beside `most` others with a common key, within one boot."""
    alive: dict[tuple[str, Hashable], list[Launch]] = defaultdict(list)
    for launch in launches:
        for key in keys(launch):
            same = alive[launch.boot_id, key]
            same[:] = [other for other in same if other.last_s > launch.born_s]
            if len(same) >= most:
                before = max(same, key=attrgetter("last_s"))
                seconds = min(before.last_s, launch.last_s) - launch.born_s
                held = f"job {key[0]}" if isinstance(key, tuple) else f"device {key}"
                both = f"launches {before.name} and {launch.name}"
                yield f"{held}: {both} were alive together for {seconds:.2f} s"
            same.append(launch)
