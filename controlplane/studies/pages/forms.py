"""Form of a simulation: typed input as a study, which `documents` checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, cast

from django import forms
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile

from clusters.models import Cluster
from controlplane.simulation.study.document import StudyError
from controlplane.simulation.study.files import seeds_of
from controlplane.simulation.switches import NO_SWITCHES
from controlplane.studies.documents import LIVE, StudyDocumentError
from controlplane.web import bounded_data
from controlplane.web.pages.policy_help import ParameterHelp, example_of, parameters_of
from controlplane.web.pages.text_forms import TypedForm, text_field
from jobs.roles import teams_to_submit_to
from loadmaster.text_formats import TextError, decode, unpacked
from policies.host import registry

WORKLOADS = (
    ("history", "The live cluster's own history"),
    ("queue", "The live cluster's queue as it is now"),
    ("poisson", "Generator: jobs at random times"),
    ("andreas", "Generator: the evaluation of ANDREAS"),
    ("gavel_generator", "Generator: the evaluation of Gavel"),
    ("csv", "Trace: CSV of Loadmaster's columns"),
    ("swf", "Trace: Standard Workload Format"),
    ("gavel", "Trace: Gavel"),
    ("philly", "Trace: Philly"),
)
TRACES = ("csv", "swf", "gavel", "philly")
"""Workload types that take a trace."""

TABLES = ("gavel_generator",)
"""Workload types that take Gavel's throughput tables instead of a trace."""

WRITTEN = "written"
"""Choice of a cluster that is written in the form."""

LARGEST_TRACE = 20_000_000
"""Bytes of an uploaded trace, unpacked."""

TICKED = (registry.DEFAULT, "fifo", "edf")
"""Policies that are ticked at first."""

EXAMPLE = """name: small
nodes:
  - {name: v, gpu_type: V100, gpus: 2, count: 5}
  - {name: t, gpu_type: T4, gpus: 1, count: 5}
energy: {price_per_kwh: 0.172, pue: 1.33}
"""
CLUSTER_HELP = "Nodes, prices and caps as YAML; docs/workloads.md explains the fields."
DAYS_HELP = "Jobs that you may see, submitted in this many days."
TRACE_HELP = (
    "Up to 2 MB, gzip allowed; `manage.py simulate` takes larger files. Gavel's generator needs"
    " its throughput tables (JSON)."
)
OPTIONS_HELP = (
    "YAML, one option a line, such as gap_s: 60 (random), tuning: 1.0 (ANDREAS),"
    " heavy: 0.2 (Gavel), time_factor: 0.5 (traces)."
)
SEEDS_HELP = "Each policy runs once per seed: 1, 2, 3 or 1..5. Several give confidence intervals."
SWITCH_WORDS = {
    "launch_s": "Seconds to launch a job",
    "stop_s": "Seconds to stop a job",
    "restart_cost_s": "Seconds lost by a restart",
    "profiling_s": "Seconds to measure a kind",
    "first_run_steps": "Steps of a first run that measure a kind",
    "node_failures_per_day": "Failures per node and day",
    "node_repair_s": "Seconds to repair a node",
    "job_failure_probability": "Part of the launches that fail",
    "decision_s": "Seconds per decision",
    "decision_per_job_s": "Seconds per decision and job, in addition",
    "kill_at_walltime": "Batch jobs end at their walltime (1: yes)",
    "run_time_noise": "Noise of run times (relative)",
    "power_noise": "Noise of power (relative)",
    "estimate_error": "Error of the speeds that policies see (relative)",
    "pairs_observed": "Part of the pairs that are measured, not estimated",
    "predictor": "Predictor of run times: walltime, last_two, data_driven or oracle",
}


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Policy in the form: ticked or not, its parameters as typed, and those it takes."""

    name: str
    summary: str
    takes: tuple[ParameterHelp, ...]
    ticked: bool = False
    parameters: str = ""

    @property
    def placeholder(self) -> str:
        return example_of(self.takes) if self.takes else "takes no parameters"


def offered() -> list[PolicyChoice]:
    """Policies that can be loaded, with their parameters."""
    choices = []
    for entry in registry.entries():
        if entry.error is None:
            choices.append(PolicyChoice(entry.name, entry.summary, parameters_of(entry.name)))
    return choices


class StudyForm(TypedForm):
    """A study as a person types it."""

    name = text_field("Name", placeholder="FIFO against the optimiser", maxlength=100)
    team = forms.ChoiceField(label="Who sees it", required=False)
    cluster = forms.ChoiceField(label="Cluster", required=False)
    cluster_yaml = text_field("Cluster file", CLUSTER_HELP, EXAMPLE, rows=7)
    workload = forms.ChoiceField(label="Jobs", required=False, choices=WORKLOADS, initial="poisson")
    days = text_field("Days of history", DAYS_HELP, "7", inputmode="decimal")
    trace = forms.FileField(label="Trace file", required=False, help_text=TRACE_HELP)
    trace_text = text_field("or its text", rows=4)
    jobs = text_field(
        "Number of jobs", "Of a trace, at most this many.", "100", inputmode="numeric"
    )
    options = text_field("More options", OPTIONS_HELP, rows=3)
    skip_bad = forms.BooleanField(label="Leave bad lines of a trace out", required=False)
    seeds = text_field("Seeds", SEEDS_HELP, "1..3")

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Cluster.objects.order_by("name").values_list("name", flat=True)
        clusters = [(name, f"{name} (live)") for name in names]
        self.has_live = bool(clusters)
        self.choose("cluster", [*clusters, (WRITTEN, "Written here")])
        teams = [(team.name, f"Team {team.name}") for team in teams_to_submit_to(user)]
        self.choose("team", [("", "Only me"), *teams])
        if not clusters:
            self.choose("workload", [choice for choice in WORKLOADS if choice[0] not in LIVE])

    def policies(self) -> Iterator[PolicyChoice]:
        """Policies as ticked and typed; at first some are ticked."""
        for policy in offered():
            if self.is_bound:
                is_ticked = f"policy_{policy.name}" in self.data
            else:
                is_ticked = policy.name in TICKED
            parameters = self.data.get(f"parameters_{policy.name}", "")
            yield replace(policy, ticked=is_ticked, parameters=parameters)

    def switches(self) -> Iterator[tuple[str, str, str]]:
        """(name, words, typed text) of every switch that is a number or a word."""
        for name, default in asdict(NO_SWITCHES).items():
            if not isinstance(default, int | float | str):
                continue
            default_text = default if isinstance(default, str) else f"{default:g}"
            typed = self.data.get(f"switch_{name}", default_text)
            yield name, SWITCH_WORDS.get(name, name.replace("_", " ")), typed

    def asked(self, trace: UploadedFile[bytes] | None) -> dict[str, Any]:
        """Study as typed. StudyDocumentError for bad YAML or numbers."""
        typed = {name: str(self.data.get(name, "")).strip() for name in self.fields}
        study = {
            "name": typed["name"],
            "team": typed["team"],
            "cluster": self._cluster(typed),
            "workload": _workload(typed, trace),
            "policies": self._policies(),
            "seeds": _seeds(typed["seeds"]),
            "switches": self._switches(),
            "skip_bad": bool(typed["skip_bad"]),
        }
        return {name: value for name, value in study.items() if value != ""}

    def worded(self, problems: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Messages with policies and switches named as beside their fields."""
        ticked = [policy.name for policy in self.policies() if policy.ticked]

        def policy_name(match: re.Match[str]) -> str:
            index = int(match[1])
            return f"{ticked[index]}: " if index < len(ticked) else f"{match[0]}: "

        def switch_words(match: re.Match[str]) -> str:
            return f"{SWITCH_WORDS[match[1]]}: " if match[1] in SWITCH_WORDS else match[0]

        worded = {name: list(messages) for name, messages in problems.items()}
        if "policies" in worded:
            pattern = r"^policies\[(\d+)\][:.] ?"
            worded["policies"] = [re.sub(pattern, policy_name, m) for m in worded["policies"]]
        if "switches" in worded:
            pattern = r"^switches\.(\w+): "
            worded["switches"] = [re.sub(pattern, switch_words, m) for m in worded["switches"]]
        return worded

    def show(self, problems: Mapping[str, Sequence[str]]) -> None:
        """Put messages beside the fields that they name, others at the top."""
        if self.data.get("cluster") == WRITTEN:
            self.places = {"cluster": "cluster_yaml"}
        super().show(problems)

    def _cluster(self, typed: Mapping[str, str]) -> Any:
        if typed["cluster"] and typed["cluster"] != WRITTEN:
            return {"live": typed["cluster"]}
        return read_yaml("cluster", typed["cluster_yaml"])

    def _policies(self) -> list[dict[str, Any]]:
        """Ticked policies with their parameters. StudyDocumentError if there is none."""
        chosen: list[dict[str, Any]] = []
        for policy in self.policies():
            if not policy.ticked:
                continue
            choice: dict[str, Any] = {"name": policy.name}
            parameters = _parameters(policy)
            if parameters:
                choice["parameters"] = parameters
            chosen.append(choice)
        if not chosen:
            raise StudyDocumentError({"policies": ["tick at least one policy"]})
        return chosen

    def _switches(self) -> dict[str, Any]:
        """Switches by name that are not as they are by default; an empty field is as by default."""
        defaults = asdict(NO_SWITCHES)
        changed = {}
        for name, words, text in self.switches():
            if not text.strip():
                continue
            if isinstance(defaults[name], str):
                value: Any = text.strip()
            else:
                value = _number(f"switches: {words}", text)
            if value != defaults[name]:
                changed[name] = value
        return changed


def read_yaml(field: str, text: str) -> Any:
    """Data in YAML. StudyDocumentError names the line of an error."""
    try:
        return bounded_data.read_yaml(text)
    except ValueError as error:
        raise StudyDocumentError({field: [str(error)]}) from None


def _workload(typed: Mapping[str, str], trace: UploadedFile[bytes] | None) -> dict[str, Any]:
    """Workload as typed. StudyDocumentError."""
    # 1. A live cluster's queue or history.
    workload_type = typed["workload"]
    if workload_type in LIVE:
        if typed["cluster"] == WRITTEN:
            problem = f"choose a live cluster above: a written one has no {workload_type}"
            raise StudyDocumentError({"workload": [problem]})
        live: dict[str, Any] = {"type": workload_type, "cluster": typed["cluster"]}
        if workload_type == "history":
            live["days"] = _number("workload: days", typed["days"])
        return live

    # 2. A generator or a trace. Its options may also say what has a field of its own.
    options = read_yaml("options", typed["options"]) or {}
    if not isinstance(options, dict):
        raise StudyDocumentError({"options": ["must be options by name, such as gap_s: 60"]})
    workload: dict[str, Any] = {"type": workload_type}
    if typed["jobs"]:
        workload["jobs"] = _number("jobs", typed["jobs"])
    if workload_type in TABLES and "kinds" not in options and "tables" not in options:
        workload["tables"] = _trace_text(typed, trace)
    elif workload_type in TRACES:
        workload["text"] = _trace_text(typed, trace)
    return {**workload, **options}


def _trace_text(typed: Mapping[str, str], trace: UploadedFile[bytes] | None) -> str:
    """Text of the uploaded file, else the pasted one. StudyDocumentError."""
    text = typed["trace_text"]
    if trace is not None and trace.size:
        try:
            text = decode(unpacked(cast("IO[bytes]", trace), LARGEST_TRACE), any_encoding=True)
        except TextError as error:
            raise StudyDocumentError({"trace": [str(error)]}) from None
    if not text:
        raise StudyDocumentError({"trace": ["choose a file, or paste its text"]})
    return text + "\n"


def _parameters(policy: PolicyChoice) -> Any:
    try:
        return read_yaml("policies", as_mapping(policy.parameters)) or {}
    except StudyDocumentError as error:
        problem = f"{policy.name}: {error.fields['policies'][0]}"
        advice = "write parameters as name: value, name: value"
        raise StudyDocumentError({"policies": [f"{problem}; {advice}"]}) from None


def as_mapping(typed: str) -> str:
    """Parameters typed in a line, `a: 1, b: 2`, as a mapping in YAML: with braces."""
    typed = typed.strip()
    if not typed or typed.startswith("{"):
        return typed
    return f"{{{typed}}}"


def _seeds(typed: str) -> list[int]:
    try:
        return seeds_of(re.sub(r"[\s,]+", ",", typed).replace("..", "-"))
    except StudyError:
        problem = "must be whole numbers such as 1, 2, 3 or a range such as 1..5"
        raise StudyDocumentError({"seeds": [problem]}) from None


def _number(field: str, typed: str) -> float | int:
    """Number as typed. StudyDocumentError for `field`, "field" or "field: words"."""
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(typed)
    name, _, words = field.partition(": ")
    raise StudyDocumentError({name: [f"{words} must be a number, not {typed[:40]!r}".strip()]})
