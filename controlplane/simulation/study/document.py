"""A study: cluster, workload, policies, seeds, switches, as one checked JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from controlplane.simulation.cluster.cluster_file import ClusterFileError, scenario_of
from controlplane.simulation.study.policy_files import make_from_file
from controlplane.simulation.study.run_keys import (
    digest,
    digest_of_code,
    digest_of_file,
    files_in,
    slug,
)
from controlplane.simulation.switches import SwitchError, Switches
from controlplane.simulation.workloads import FILES, TYPES, load
from controlplane.simulation.workloads.base import Workload, WorkloadError
from controlplane.simulation.workloads.options import read_options
from controlplane.simulation.world.world import Scenario
from policies.contract.policy import Policy, PolicyError
from policies.host import registry

FIELDS = ("name", "cluster", "workload", "policies", "seeds", "switches", "skip_bad")
POLICY_FIELDS = ("name", "file", "parameters", "label")
MOST_POLICIES, MOST_SEEDS, MOST_SEED = 50, 1000, 2**31 - 1
LONGEST_NAME = 200


class StudyError(ValueError):
    """A study that cannot be run. The message names the field and says what would be right."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A compared policy: by registered name or from a `file`; `label` is unique."""

    label: str
    name: str | None
    parameters: Mapping[str, Any]
    file: str | None = None

    def make(self) -> Policy:
        """The policy with its parameters. PolicyError as the registry raises it."""
        if self.file is not None:
            return make_from_file(Path(self.file), self.name, self.parameters)
        return registry.make(self.name or "", self.parameters)

    def check(self) -> None:
        """Raise as `make` if it cannot be made, without importing registered policies."""
        if self.file is not None:
            self.make()
        else:
            registry.check(self.name or "", self.parameters)

    def plain(self) -> dict[str, Any]:
        """As in a study's document."""
        source = {"file": self.file} if self.file is not None else {}
        name = {} if self.name is None else {"name": self.name}
        return {**source, **name, "parameters": dict(self.parameters), "label": self.label}


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation of a study: a policy (by position) and a seed. `key` names its files."""

    policy: int
    label: str
    seed: int
    key: str


@dataclass(frozen=True, slots=True)
class Study:
    """A checked study. `document` is it as plain JSON with every default filled in: the same
    document, the same results.

    `trusted` and `traces` as in `of`.
    """

    name: str
    scenario: Scenario
    workload: Mapping[str, Any]
    policies: tuple[PolicyChoice, ...]
    seeds: tuple[int, ...]
    switches: Switches
    skip_bad: bool
    document: Mapping[str, Any]
    trusted: bool = False
    traces: Path | None = None

    @classmethod
    def of(
        cls, document: Mapping[str, Any], *, trusted: bool = False, traces: Path | None = None
    ) -> Study:
        """The study of a document. StudyError names the field.

        `trusted`: it comes from somebody who may run any code here anyway; policies may be files,
        and traces may lie anywhere. Else a trace's path counts from `traces`, which it may not
        leave; without that folder a study holds its trace as text.
        """
        given = _with_known_fields(_mapping(document, "the study"))
        name = _name(given.get("name", "Simulation study"))
        cluster, workload = _mapping(given["cluster"], "cluster"), _workload(given["workload"])
        policies = _policies(given["policies"], trusted)
        seeds, skip_bad = _seeds(given.get("seeds", [1])), given.get("skip_bad", False)
        if not isinstance(skip_bad, bool):
            raise StudyError(f"skip_bad: must be true or false, not {skip_bad!r}")
        switches = _switches(given.get("switches", {}))
        plain = {
            "name": name, "cluster": cluster, "workload": workload,
            "policies": [p.plain() for p in policies],
            "seeds": list(seeds), "switches": switches.turned_on, "skip_bad": skip_bad,
        }  # fmt: skip
        _check_json(plain)
        if not trusted and traces is None:
            _check_names_no_file(workload)
        return cls(
            name,
            _scenario(cluster),
            workload,
            policies,
            seeds,
            switches,
            skip_bad,
            plain,
            trusted,
            traces,
        )

    def load(self, seed: int) -> Workload:
        """The workload of one seed. WorkloadError where it cannot be made."""
        types = tuple(sorted({node.gpu_type for node in self.scenario.nodes}))
        return load(
            self.workload,
            seed,
            skip_bad=self.skip_bad,
            gpu_types=types,
            folder=None if self.trusted else self.traces,
        )

    def runs(self) -> tuple[Run, ...]:
        """All runs, seed by seed, so that an interrupted study has compared its first seeds."""
        shared = [digest_of_code(), {**self.document, "name": "", "policies": [], "seeds": []}]
        may_read = self.trusted or self.traces is not None
        traces = (
            files_in(self.document["workload"], None if self.trusted else self.traces)
            if may_read
            else ()
        )
        inputs = digest([shared, [digest_of_file(path) for path in traces]])
        of_policy = [digest([inputs, choice.plain(), _source(choice)]) for choice in self.policies]
        return tuple(
            Run(
                i,
                choice.label,
                seed,
                f"{slug(choice.label)}-{seed}-{digest([of_policy[i], seed])[:12]}",
            )
            for seed in self.seeds
            for i, choice in enumerate(self.policies)
        )


def _source(choice: PolicyChoice) -> str:
    """Digest of the policy's file: a changed one is run again."""
    path = choice.file or registry.source_file(choice.name or "")
    return digest_of_file(Path(path)) if path else ""


def _with_known_fields(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if unknown := sorted(set(document) - set(FIELDS)):
        raise StudyError(f"{unknown[0]}: no such field of a study; known are: {', '.join(FIELDS)}")
    for field in ("cluster", "workload", "policies"):
        if field not in document:
            raise StudyError(f"{field}: is missing; a study needs cluster, workload and policies")
    return document


def _mapping(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise StudyError(f"{field}: must hold fields by name, not {value!r:.80}")
    return dict(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME:
        raise StudyError(
            f"name: must be a text of 1 to {LONGEST_NAME} characters, not {value!r:.80}"
        )
    return value


def _scenario(cluster: Mapping[str, Any]) -> Scenario:
    try:
        return scenario_of(cluster)
    except ClusterFileError as error:
        raise StudyError(f"cluster: {error}") from error


def _workload(value: object) -> dict[str, Any]:
    workload = _mapping(value, "workload")
    kind = workload.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise StudyError(f"workload.type: must be one of {', '.join(TYPES)}, not {kind!r:.80}")
    try:
        read_options(TYPES[kind][0], workload)
    except WorkloadError as error:
        raise StudyError(f"workload: {str(error).removeprefix('workload: ')}") from error
    return workload


def _check_names_no_file(workload: Mapping[str, Any]) -> None:
    for name in FILES:
        if workload.get(name):
            instead = (
                "the trace itself as `text`"
                if name == "path"
                else "the tables themselves as `tables`"
            )
            raise StudyError(f"workload.{name}: files of the server cannot be read; give {instead}")


def _switches(value: object) -> Switches:
    try:
        return Switches.of(_mapping(value, "switches"))
    except SwitchError as error:
        raise StudyError(f"switches: {error}") from error


def _seeds(value: object) -> tuple[int, ...]:
    right = (
        f"a list of 1 to {MOST_SEEDS} different whole numbers from 0 to {MOST_SEED}, such as [1,"
        " 2, 3]"
    )
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not 1 <= len(value) <= MOST_SEEDS
    ):
        raise StudyError(f"seeds: must be {right}, not {value!r:.80}")
    for seed in value:
        if type(seed) is not int or not 0 <= seed <= MOST_SEED:
            raise StudyError(f"seeds: must be {right}; {seed!r:.80} is not one")
    if len(set(value)) < len(value):
        raise StudyError(f"seeds: must be {right}; one is given twice")
    return tuple(value)


def _policies(value: object, trusted: bool) -> tuple[PolicyChoice, ...]:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not 1 <= len(value) <= MOST_POLICIES
    ):
        raise StudyError(
            f"policies: must be a list of 1 to {MOST_POLICIES} policies, such as [{{name: fifo}}]"
        )
    choices = [_choice(item, f"policies[{i}]", trusted) for i, item in enumerate(value)]
    labels = [_label(choice, choices) for choice in choices]
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise StudyError(
                f"policies[{i}].label: {label!r} is there twice; give each policy a label of"
                " its own"
            )
    return tuple(
        PolicyChoice(label, c.name, c.parameters, c.file)
        for label, c in zip(labels, choices, strict=True)
    )


def _choice(item: object, field: str, trusted: bool) -> PolicyChoice:
    given = {"name": item} if isinstance(item, str) else _mapping(item, field)
    if unknown := sorted(set(given) - set(POLICY_FIELDS)):
        raise StudyError(
            f"{field}.{unknown[0]}: no such field of a policy; known are:"
            f" {', '.join(POLICY_FIELDS)}"
        )
    name, file, label = (
        _text(given.get(key), f"{field}.{key}") for key in ("name", "file", "label")
    )
    if file is not None and not trusted:
        raise StudyError(
            f"{field}.file: a policy's file is only run from the command line (manage.py simulate)"
        )
    if name is None and file is None:
        raise StudyError(f"{field}.name: is missing; known are: {', '.join(registry.names())}")
    choice = PolicyChoice(
        label or "", name, _mapping(given.get("parameters", {}), f"{field}.parameters"), file
    )
    try:
        choice.check()
    except PolicyError as error:
        raise StudyError(f"{field}: {error}") from error
    return choice


def _text(value: object, field: str) -> str | None:
    if value is not None and (
        not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME
    ):
        raise StudyError(
            f"{field}: must be a text of 1 to {LONGEST_NAME} characters, not {value!r:.80}"
        )
    return value


def _label(choice: PolicyChoice, others: Sequence[PolicyChoice]) -> str:
    """As given; else the name, with the parameters where the name alone is not enough."""
    name = choice.name or Path(choice.file or "").stem
    same = [c for c in others if not c.label and (c.name, c.file) == (choice.name, choice.file)]
    if choice.label or len(same) < 2 or not choice.parameters:
        return choice.label or name
    return f"{name} ({', '.join(f'{k}={v}' for k, v in choice.parameters.items())})"


def _check_json(value: object, path: str = "") -> None:
    """Plain JSON without NaN: StudyError for anything else, such as the dates that YAML makes."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise StudyError(f"{path or 'the study'}: the name {name!r} must be a text")
            _check_json(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check_json(inner, f"{path}[{i}]")
    elif isinstance(value, float) and not isfinite(value):
        raise StudyError(f"{path}: must be finite, not {value}")
    elif value is not None and not isinstance(value, str | bool | int | float):
        raise StudyError(f"{path}: must be plain data, not {type(value).__name__}")
