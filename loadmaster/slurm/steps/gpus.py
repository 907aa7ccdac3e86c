"""GPUs of a step: how many it asks for, and which of them each task sees."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmaster.slurm.options import values
from loadmaster.slurm.options.values import ValueFormatError

AMOUNTS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
"""Options that say how many GPUs a step has; without any it has all of its job's."""

_BINDING = re.compile(
    r"(?:(?:quiet|verbose|q|v),)?"
    r"(?:(?P<plain>none|closest)|(?P<name>single|per_task):(?P<count>[1-9]\d{0,8})"
    r"|(?P<list>map_gpu|mask_gpu):(?P<items>[0-9a-fA-Fx,]+))"
)


@dataclass(frozen=True, slots=True)
class Binding:
    """How tasks share a step's GPUs: by `name`, with the `numbers` that the option gives.

    "" lets every task see all of them.
    """

    name: str = ""
    numbers: tuple[int, ...] = ()

    def of_task(self, task: int, gpus: Sequence[int]) -> list[int]:
        """Return the GPUs that a task sees, of those of its step."""
        if not gpus or not self.name:
            return list(gpus)
        number = self.numbers[task % len(self.numbers)]
        if self.name == "single":
            chosen = [task // number % len(gpus)]
        elif self.name == "per_task":
            chosen = list(range(task * number, (task + 1) * number))
        elif self.name == "map_gpu":
            chosen = [number]
        else:  # mask_gpu: bit 0 is the first GPU
            chosen = [place for place in range(len(gpus)) if number >> place & 1]
        # Like Slurm, a task that is bound to no GPU of its step gets the first of them.
        seen = [gpus[place] for place in chosen if place < len(gpus)]
        return seen or [gpus[0]]


def binding(text: str) -> Binding:
    """Read the value of `--gpu-bind`: none, closest, single:N, per_task:N, map_gpu:0,1 and such."""
    match = _BINDING.fullmatch(text)
    if match is None:
        forms = "write single:1, per_task:1, map_gpu:0,1, mask_gpu:0x3, closest or none"
        raise ValueFormatError(f"{text[:40]!r} binds no GPUs; {forms}")
    if match["plain"]:
        return Binding()
    if match["name"]:
        return Binding(match["name"], (int(match["count"]),))
    base = 10 if match["list"] == "map_gpu" else 16
    try:
        numbers = tuple(int(item, base) for item in match["items"].split(","))
    except ValueError:
        raise ValueFormatError(f"{text[:40]!r} holds no numbers; write them as 0,1") from None
    return Binding(match["list"], numbers)


@dataclass(frozen=True, slots=True)
class StepGpus:
    """Request of a step: number of its GPUs, their types (none: any), and their binding."""

    count: int
    types: tuple[str, ...] = ()
    binding: Binding = Binding()


def step_gpus(options: Mapping[str, str], tasks: int, of_job: int) -> StepGpus:
    """Return the GPUs that a step's options ask for; without one all `of_job` on this node.

    Raises ValueFormatError for a wrong value.
    """
    count, types = _amount(options, tasks)
    if count is None:
        count = of_job
    return StepGpus(count, tuple(types), _binding(options))


def _amount(options: Mapping[str, str], tasks: int) -> tuple[int | None, list[str]]:
    """Return the number of GPUs and their types; None if no option is about GPUs."""
    count: int | None = None
    types: list[str] = []
    for option in AMOUNTS:
        if option not in options:
            continue
        if option == "gres":
            number, kinds, others = values.gres(options[option])
            if others and not number:
                continue  # it speaks of other resources alone
        else:
            number, kinds = values.gpus(options[option])
        if option == "gpus-per-task":
            number *= tasks
        count = max(count or 0, number)
        types += kinds
    return count, types


def _binding(options: Mapping[str, str]) -> Binding:
    """Return the binding by `--gpu-bind`, or the one that other options of GPUs imply."""
    if "gpu-bind" in options:
        return binding(options["gpu-bind"])
    if "gpus-per-task" in options:
        number, _ = values.gpus(options["gpus-per-task"])
        return Binding("per_task", (number,)) if number else Binding()
    if "ntasks-per-gpu" in options:
        return Binding("single", (values.count(options["ntasks-per-gpu"]),))
    return Binding()
