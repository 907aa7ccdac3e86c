"""Job that is made of a script's options, with the warnings and problems found on the way."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from loadmaster.slurm.options.reading import GivenOption
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
class ScriptJob:
    """Job that is being made of a script: its options, and the fields and messages so far.

    `parts`: fields of `sbatch`. `options`: those in force, by name; their text is the place for
    messages, such as "line 2: --time". `own`: fields that the job has itself, which hold over the
    script's. `now`: in the zone of the cluster. `problems`: why the job is refused, if there are
    any.
    """

    parts: Mapping[str, Any]
    options: Mapping[str, GivenOption]
    submitted: Submitted
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
        own_folder = self.option_value("chdir", str, "")
        if own_folder:
            return str(PurePosixPath(folder or "/") / own_folder)
        return folder

    # -- options

    def option_value(self, option: str, parse: Callable[[str], T], default: T) -> T:
        """Return the parsed value of an option; the default if it is not given or is wrong.

        A wrong value is a problem of the job.
        """
        given = self.options.get(option)
        if given is None:
            return default
        try:
            return parse(given.value)
        except ValueFormatError as problem:
            self.refuse(option, str(problem))
            return default

    def exclude_together(self, option: str, *others: str) -> None:
        """Refuse the job if an option is given with one that contradicts it."""
        for other in others:
            if option in self.options and other in self.options:
                self.refuse(option, f"goes without --{other}; remove one")

    # -- fields and messages

    def set_field(self, name: str, value: Any, option: str = "") -> None:
        """Set a field of the job, unless its value is ""; `option` is where it comes from."""
        if value == "":
            return
        self.submitted.fields[name] = value
        if option in self.options:
            self.submitted.places[name] = str(self.options[option])

    def set_field_unless_0(self, name: str, value: int, option: str) -> None:
        """Set a field of the job, unless its value is 0."""
        if value:
            self.set_field(name, value, option)

    def warn(self, option: str, text: str) -> None:
        """Add a warning about an option that is given."""
        self.submitted.warnings.append(f"{self.options[option]}: {text}")

    def refuse(self, option: str, text: str) -> None:
        """Add a problem with an option that is given: the job is refused."""
        self.problems.append(f"{self.options[option]}: {text}")
