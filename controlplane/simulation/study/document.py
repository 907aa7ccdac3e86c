"""A study: cluster, workload, policies, seeds, switches, as one checked JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from controlplane.simulation.cluster.cluster_file import ClusterFileError, scenario_of
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.study.policy_files import make_from_file
from controlplane.simulation.study.run_keys import (
    digest,
    digest_of_code,
    digest_of_file,
    files_in,
    slug,
)
from controlplane.simulation.switches import NO_SWITCHES, AnyPredictor, Switches
from controlplane.simulation.workloads import FILES, Workload, WorkloadError, load, options_of
from foundation.forms import Form, FormError, PlainData
from policies.contract.policy import Policy, PolicyError
from policies.host import registry

MOST_POLICIES, MOST_SEEDS = 50, 1000


class StudyError(ValueError):
    """A study that cannot be run. The message names the field and says what would be right."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Name = Annotated[str, Field(max_length=200), AfterValidator(_not_blank)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Policy to run. `predictor`: of run times, instead of the study's own."""

    file: Name | None = None
    name: Name | None = None
    parameters: PlainData = field(default_factory=dict)
    label: Annotated[str, Field(max_length=200)] = ""
    predictor: AnyPredictor | None = None

    def make(self) -> Policy:
        """Make the policy with its parameters. PolicyError as the registry raises it."""
        if self.file is not None:
            return make_from_file(Path(self.file), self.name, self.parameters)
        return registry.make(self.name or "", self.parameters)

    def plain(self) -> dict[str, Any]:
        """Return the entry in a study's document."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Run:
    """Simulation of a study: a policy (by position) and a seed. `key` names its files."""

    policy: int
    label: str
    seed: int
    key: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a run; `everywhere`: of every run of the study."""

    run: Run
    message: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDocument:
    """Fields of a study's document; cluster and workload are checked by their own readers."""

    name: Name = "Simulation study"
    cluster: dict[str, Any]
    workload: dict[str, Any]
    policies: tuple[PolicyChoice, ...]
    seeds: tuple[Seed, ...] = (1,)
    switches: Switches = NO_SWITCHES
    skip_bad: bool = False


FIELDS = tuple(f.name for f in fields(StudyDocument))
_FORM = Form(StudyDocument, "study")


@dataclass(frozen=True, slots=True)
class Study:
    """Checked study. `document` is plain JSON with every default; `trusted` as in `of`.

    Equal documents give equal results.
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

    @classmethod
    def of(cls, document: Mapping[str, Any], *, trusted: bool = False) -> Study:
        """Check a document. StudyError names the field.

        `trusted`: its author may run any code here anyway; policies may be files, and workloads may
        name files.
        """
        given = _read(document)
        with _errors_of("cluster"):
            scenario = scenario_of(given.cluster)
        with _errors_of("workload"):
            options_of(given.workload)
        for name in FILES if not trusted else ():
            if given.workload.get(name):
                instead = "trace itself as `text`" if name == "path" else "tables as `tables`"
                raise StudyError(
                    f"workload.{name}: the server's files cannot be read; give the {instead}"
                )
        policies = _labelled(given.policies, trusted)
        values: dict[str, Any] = {name: getattr(given, name) for name in FIELDS}
        plain = {
            **values,
            "policies": [policy.plain() for policy in policies],
            "seeds": list(given.seeds),
            "switches": given.switches.turned_on,
        }
        del values["cluster"]
        values |= {"scenario": scenario, "policies": policies}
        return cls(**values, document=plain, trusted=trusted)

    def load(self, seed: int) -> Workload:
        """Load the workload of one seed. WorkloadError where it cannot be made."""
        types = tuple(sorted({node.gpu_type for node in self.scenario.nodes}))
        return load(self.workload, seed, skip_bad=self.skip_bad, gpu_types=types)

    def switches_of(self, policy: int) -> Switches:
        """Return the switches of the runs of a policy."""
        predictor = self.policies[policy].predictor
        return replace(self.switches, predictor=predictor) if predictor else self.switches

    def runs(self) -> tuple[Run, ...]:
        """Runs, seed by seed, so that an interrupted study has compared its first seeds."""
        shared = [digest_of_code(), {**self.document, "name": "", "policies": [], "seeds": []}]
        named = files_in(self.workload) if self.trusted else ()
        inputs = digest([shared, [digest_of_file(path) for path in named]])
        found = []
        for i, choice in enumerate(self.policies):
            source = choice.file or registry.source_file(choice.name or "")
            code = digest_of_file(Path(source)) if source else ""
            of_policy = digest([inputs, choice.plain(), code])
            for seed in self.seeds:
                key = f"{slug(choice.label)}-{seed}-{digest([of_policy, seed])[:12]}"
                found.append(Run(i, choice.label, seed, key))
        order = {seed: i for i, seed in enumerate(self.seeds)}
        return tuple(sorted(found, key=lambda run: order[run.seed]))


def _read(document: Mapping[str, Any]) -> StudyDocument:
    _check_json(document)
    policies = document.get("policies") if isinstance(document, Mapping) else None
    if isinstance(policies, list | tuple):
        named = [{"name": item} if isinstance(item, str) else item for item in policies]
        document = {**document, "policies": named}
    try:
        given = _FORM.read(document)
    except FormError as error:
        raise StudyError(str(error)) from None
    if not 1 <= len(given.policies) <= MOST_POLICIES:
        raise StudyError(f"policies: must be 1 to {MOST_POLICIES}, such as [{{name: fifo}}]")
    if not 1 <= len(set(given.seeds)) == len(given.seeds) <= MOST_SEEDS:
        raise StudyError(f"seeds: must be 1 to {MOST_SEEDS} different ones, such as [1, 2, 3]")
    return given


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except (ClusterFileError, WorkloadError, PolicyError) as error:
        said = str(error)
        named = said.startswith((f"{path}:", f"{path}.", f"{path}["))
        raise StudyError(said if named else f"{path}: {said}") from error


def _labelled(choices: Sequence[PolicyChoice], trusted: bool) -> tuple[PolicyChoice, ...]:
    """The policies, each checked and with a label of its own."""
    found: list[PolicyChoice] = []
    for i, choice in enumerate(choices):
        _check(choice, f"policies[{i}]", trusted)
        label = _label(choice, choices)
        if any(label == other.label for other in found):
            raise StudyError(
                f"policies[{i}].label: {label!r} is there twice; give each policy a label of its"
                " own"
            )
        found.append(replace(choice, label=label))
    return tuple(found)


def _check(choice: PolicyChoice, path: str, trusted: bool) -> None:
    if choice.file is not None and not trusted:
        raise StudyError(
            f"{path}.file: a policy's file is only run from the command line (manage.py simulate)"
        )
    if choice.name is None and choice.file is None:
        raise StudyError(f"{path}.name: is missing; known are: {', '.join(registry.names())}")
    with _errors_of(path):
        if choice.file is not None:
            choice.make()
        else:  # without importing it
            registry.check(choice.name or "", choice.parameters)


def _label(choice: PolicyChoice, others: Sequence[PolicyChoice]) -> str:
    name = choice.name or Path(choice.file or "").stem
    same = [c for c in others if not c.label and (c.name, c.file) == (choice.name, choice.file)]
    given = dict(choice.parameters)
    if choice.predictor is not None:
        given["predictor"] = choice.predictor
    if choice.label or len(same) < 2 or not given:
        return choice.label or name
    return f"{name} ({', '.join(f'{k}={v}' for k, v in given.items())})"


def _check_json(value: object, path: str = "") -> None:
    """Raise StudyError unless plain JSON without NaN; YAML makes dates, for instance."""
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
