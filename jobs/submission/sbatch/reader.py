"""Options in force of one submission: their values are read, problems and fields collected."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from loadmaster.slurm.options.reading import Given
from loadmaster.slurm.options.values import ValueFormatError

T = TypeVar("T")


@dataclass(slots=True)
class Submitted:
    """Fields of a job as REST takes them, and warnings.

    `places`: for messages, the line and option that a field comes from. `test_only`: the job is to
    be forecast, and not submitted. `node_range`: least and greatest number of nodes, if different.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    test_only: bool = False
    node_range: tuple[int, int] | None = None


GpusOfNode = Callable[[Collection[str], Collection[str]], int]
"""Function of GPU types and labels: the GPUs of each node with these; 0 if unknown or different."""


def unknown_gpus(types: Collection[str], labels: Collection[str]) -> int:
    """Return 0: no cluster is known."""
    return 0


@dataclass(frozen=True, slots=True)
class Site:
    """Facts of the cluster that decide what options mean.

    `nodes`: number of nodes of the range that `--nodes` allows, 0: the least.
    """

    nodes: int = 0
    gpus_of_node: GpusOfNode = unknown_gpus


ANY_SITE = Site()


@dataclass(slots=True)
class Reader:
    """Options by name, with the fields, warnings and problems that they have led to so far.

    `parts`: fields of `sbatch`. `own`: fields that the job has itself, which hold over the
    script's. `now`: in the zone of the cluster.
    """

    parts: Mapping[str, Any]
    options: Mapping[str, Given]
    result: Submitted
    now: datetime
    own: Mapping[str, Any]
    site: Site = ANY_SITE
    problems: list[str] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Folder in which the script begins on the node, "" if none is known.

        A relative one begins where the script is submitted.
        """
        folder = str(self.parts["folder"])
        own_folder = self.read("chdir", str, "")
        if own_folder:
            return str(PurePosixPath(folder or "/") / own_folder)
        return folder

    def read(self, option: str, reader: Callable[[str], T], default: T) -> T:
        """Return the value of an option; the default if it is not given or has a problem."""
        given = self.options.get(option)
        if given is None:
            return default
        try:
            return reader(given.value)
        except ValueFormatError as problem:
            self.problems.append(f"{given}: {problem}")
            return default

    def put(self, name: str, value: Any, option: str = "") -> None:
        """Set a field of the job, unless its value is ""; `option` is where it comes from."""
        if value == "":
            return
        self.result.fields[name] = value
        if option in self.options:
            self.result.places[name] = str(self.options[option])

    def warn(self, option: str, text: str) -> None:
        self.result.warnings.append(f"{self.options[option]}: {text}")

    def exclude(self, option: str, *others: str) -> None:
        """Note a problem if an option is given with one that contradicts it."""
        for other in others:
            if {option, other} <= self.options.keys():
                problem = f"{self.options[option]}: goes without --{other}; remove one"
                self.problems.append(problem)

    def put_number(self, name: str, value: int, option: str) -> None:
        """Set a field unless its value is 0."""
        if value:
            self.put(name, value, option)
