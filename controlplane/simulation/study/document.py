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

MOST_POLICIES = 50
MOST_SEEDS = 1000


class StudyError(ValueError):
    """Study that cannot be run; the message names the field and says what would be right."""


def _not_blank(text: str) -> str:
    """Return the text; ValueError if it has only spaces."""
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Name = Annotated[str, Field(max_length=200), AfterValidator(_not_blank)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Policy of a study: `name` is known to the registry, or that of a class in `file`.

    `label`: its name in results; "" until the study is checked. `predictor`: of run times, instead
    of the study's own.
    """

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
        values = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                values[each.name] = value
        return values


@dataclass(frozen=True, slots=True)
class Run:
    """Simulation of a study: a policy (by its position) and a seed. `key` names its files."""

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


FIELDS = tuple(each.name for each in fields(StudyDocument))
"""Fields of a study's document."""

_FORM = Form(StudyDocument, "study")


@dataclass(frozen=True, slots=True)
class Study:
    """Checked study. `document`: plain JSON with every default; equal ones give equal results.

    `trusted`: as in `of`.
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
        """Check a document. Raises StudyError, which names the field.

        `trusted`: its author may run any code here anyway; policies may be files, and workloads may
        name files.
        """
        # 1. Each part by its own reader.
        checked = _read(document)
        with _errors_of("cluster"):
            scenario = scenario_of(checked.cluster)
        with _errors_of("workload"):
            options_of(checked.workload)
        if not trusted:
            _refuse_files(checked.workload)
        policies = _labelled(checked.policies, trusted)

        # 2. The document with every default.
        plain: dict[str, Any] = {name: getattr(checked, name) for name in FIELDS}
        plain["policies"] = [policy.plain() for policy in policies]
        plain["seeds"] = list(checked.seeds)
        plain["switches"] = checked.switches.turned_on
        return cls(
            name=checked.name,
            scenario=scenario,
            workload=checked.workload,
            policies=policies,
            seeds=checked.seeds,
            switches=checked.switches,
            skip_bad=checked.skip_bad,
            document=plain,
            trusted=trusted,
        )

    def load(self, seed: int) -> Workload:
        """Load the workload of one seed. Raises WorkloadError if it cannot be made."""
        types = tuple(sorted({node.gpu_type for node in self.scenario.nodes}))
        return load(self.workload, seed, skip_bad=self.skip_bad, gpu_types=types)

    def switches_of(self, policy: int) -> Switches:
        """Return the switches of the runs of a policy."""
        predictor = self.policies[policy].predictor
        if not predictor:
            return self.switches
        return replace(self.switches, predictor=predictor)

    def runs(self) -> tuple[Run, ...]:
        """Return the runs, seed by seed: an interrupted study has compared its first seeds.

        A run's key is a digest of all that decides its result, so that a finished one is reused
        only if nothing has changed.
        """
        # 1. What all runs share: code, document, and the content of its files.
        shared = [digest_of_code(), {**self.document, "name": "", "policies": [], "seeds": []}]
        files = files_in(self.workload) if self.trusted else ()
        shared_digest = digest([shared, [digest_of_file(path) for path in files]])

        # 2. Each policy with its parameters and code, and each seed.
        runs_by_seed: dict[int, list[Run]] = {seed: [] for seed in self.seeds}
        for position, choice in enumerate(self.policies):
            source = choice.file or registry.source_file(choice.name or "")
            code = digest_of_file(Path(source)) if source else ""
            policy_digest = digest([shared_digest, choice.plain(), code])
            for seed in self.seeds:
                key = f"{slug(choice.label)}-{seed}-{digest([policy_digest, seed])[:12]}"
                runs_by_seed[seed].append(Run(position, choice.label, seed, key))
        return tuple(run for runs in runs_by_seed.values() for run in runs)


def _read(document: Mapping[str, Any]) -> StudyDocument:
    """Read the fields of a document, in which a policy may be a name alone."""
    _check_json(document)
    policies = document.get("policies") if isinstance(document, Mapping) else None
    if isinstance(policies, list | tuple):
        entries = [{"name": item} if isinstance(item, str) else item for item in policies]
        document = {**document, "policies": entries}
    try:
        checked = _FORM.read(document)
    except FormError as error:
        raise StudyError(str(error)) from None
    if not 1 <= len(checked.policies) <= MOST_POLICIES:
        raise StudyError(f"policies: must be 1 to {MOST_POLICIES}, such as [{{name: fifo}}]")
    has_repeated_seed = len(set(checked.seeds)) < len(checked.seeds)
    if has_repeated_seed or not 1 <= len(checked.seeds) <= MOST_SEEDS:
        raise StudyError(f"seeds: must be 1 to {MOST_SEEDS} different ones, such as [1, 2, 3]")
    return checked


def _refuse_files(workload: Mapping[str, Any]) -> None:
    """Raise StudyError for a workload that names files."""
    for name in FILES:
        if workload.get(name):
            remedy = "trace itself as `text`" if name == "path" else "tables as `tables`"
            cause = f"workload.{name}: the server's files cannot be read"
            raise StudyError(f"{cause}; give the {remedy}")


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Turn errors of a part's reader into StudyError, with the part's path before them."""
    try:
        yield
    except (ClusterFileError, WorkloadError, PolicyError) as error:
        message = str(error)
        if not message.startswith((f"{path}:", f"{path}.", f"{path}[")):
            message = f"{path}: {message}"
        raise StudyError(message) from error


def _labelled(choices: Sequence[PolicyChoice], trusted: bool) -> tuple[PolicyChoice, ...]:
    """Return the policies, each checked and with a label of its own."""
    labelled: list[PolicyChoice] = []
    for i, choice in enumerate(choices):
        _check(choice, f"policies[{i}]", trusted)
        label = _label(choice, choices)
        if any(label == other.label for other in labelled):
            remedy = "give each policy a label of its own"
            raise StudyError(f"policies[{i}].label: {label!r} is there twice; {remedy}")
        labelled.append(replace(choice, label=label))
    return tuple(labelled)


def _check(choice: PolicyChoice, path: str, trusted: bool) -> None:
    """Raise StudyError for an unknown policy or wrong parameters; `path`: its place."""
    if choice.file is not None and not trusted:
        limit = "a policy's file is only run from the command line (manage.py simulate)"
        raise StudyError(f"{path}.file: {limit}")
    if choice.name is None and choice.file is None:
        raise StudyError(f"{path}.name: is missing; known are: {', '.join(registry.names())}")
    with _errors_of(path):
        if choice.file is not None:
            choice.make()
        else:  # without importing the policy
            registry.check(choice.name or "", choice.parameters)


def _label(choice: PolicyChoice, choices: Sequence[PolicyChoice]) -> str:
    """Return the label of one of the choices: its own, or else its name.

    If others have the same name and no label, it has its parameters as well.
    """
    # 1. Its own label.
    if choice.label:
        return choice.label

    # 2. Its name alone, if that tells it apart.
    name = choice.name or Path(choice.file or "").stem
    source = (choice.name, choice.file)
    same = [other for other in choices if not other.label and (other.name, other.file) == source]
    parameters = dict(choice.parameters)
    if choice.predictor is not None:
        parameters["predictor"] = choice.predictor
    if len(same) < 2 or not parameters:
        return name

    # 3. Its name and parameters.
    words = ", ".join(f"{parameter}={value}" for parameter, value in parameters.items())
    return f"{name} ({words})"


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
