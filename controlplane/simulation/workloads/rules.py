"""Rules of a workload that no policy is told: ends at the walltime, dependencies, job arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Condition(StrEnum):
    """End of other jobs that a job waits for: completed, any end, an end without completion.

    Of AFTER it is their start, or an end without one.
    """

    AFTER = "after"
    AFTEROK = "afterok"
    AFTERANY = "afterany"
    AFTERNOTOK = "afternotok"


@dataclass(frozen=True, slots=True)
class After:
    """Dependency on jobs: one, or all elements of an array called `name`.

    `afternotok` on an array waits for the end of all elements, of which one must have failed.
    `delay_s`: time that must pass after the last of these ends or starts (a log's think time).
    `alternative`: one of several, of which one suffices.
    """

    jobs: tuple[str, ...]
    condition: Condition = Condition.AFTEROK
    delay_s: float = 0.0
    name: str = ""
    alternative: bool = False

    @property
    def is_hidden(self) -> bool:
        """Return True if no policy could tell from the other jobs' presence whether it waits."""
        return bool(self.name) or self.alternative or self.condition is Condition.AFTER


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of a job array by index; at most `at_once` of them run together (0: any number)."""

    elements: tuple[str, ...]
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by job. `kills`: True or False where a job says `on_walltime: kill` or `warn`.

    `after` replaces the view's `dependencies`, which name the jobs of those that are not hidden.
    """

    kills: Mapping[str, bool] = field(default_factory=dict)
    after: Mapping[str, tuple[After, ...]] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


NO_RULES = Rules()


def circle_in(waits_for: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return jobs that wait for each other in a circle, () if none do; others are named by job."""
    done: set[str] = set()
    for start in waits_for:
        path: list[str] = []
        stack = [(start, False)]
        while stack:
            job, leaves = stack.pop()
            if leaves:
                done.add(path.pop())
            elif job in path:
                return tuple(path[path.index(job) :])
            elif job not in done:
                path.append(job)
                stack.append((job, True))
                stack += [(other, False) for other in waits_for.get(job, ())]
    return ()
