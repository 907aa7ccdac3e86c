"""Form of a what-if to the end of the queue, and its result as a page shows it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any

from django.contrib.auth.models import User

from controlplane.studies.documents import StudyDocumentError
from controlplane.studies.models import Simulation
from controlplane.studies.pages.forms import as_mapping, read_yaml
from controlplane.studies.pages.selectors import SAME, results_of
from controlplane.studies.what_if.decide import WhatIfError
from controlplane.studies.what_if.queue_end import label
from controlplane.web.pages.formats import duration, quantity
from controlplane.web.pages.gantt import plain
from jobs.models import Job
from jobs.selectors import OTHERS, seen_by

LISTED = 50
"""Most jobs that the page lists."""

ROWS = 7
"""Rows of the form."""

SAME_S = 1.0
"""Difference of two ends below which they are the same."""

SIDES = ("top center", "bottom center")
"""Where the words of points stand, by turns."""

TOTALS = (
    ("Cost", "cost", "{currency}"),
    ("Energy", "energy_cost", "{currency}"),
    ("Lateness", "lateness_cost", "{currency}"),
    ("Completion", "mean_completion_s", "s"),
    ("Slowdown", "worst_slowdown", ""),
    ("IT energy", "energy_kwh", "kWh"),
    ("Moves", "moves", ""),
)
"""(words, figure, unit) of the columns; less is better in all."""


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """Row of the form as typed."""

    number: int
    policy: str
    parameters: str
    value: str
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """Figure in words, its difference from the first choice's, and whether it is better."""

    heading: str
    words: str
    difference: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Total:
    """Choice with its figures; `notes` say what they leave out."""

    number: int
    label: str
    failure: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Course:
    """Job's course under a choice."""

    heading: str
    start: datetime | None
    end: datetime | None
    words: str
    difference: str
    tone: str


def typed_rows(
    typed: Mapping[str, str], problems: Mapping[tuple[int, str], str] | None = None
) -> list[ChoiceRow]:
    """Rows of the form as typed; `problems` are messages by number of the row and field."""
    rows = []
    for number in range(1, ROWS + 1):
        own_problems = {}
        for (row_number, field), message in (problems or {}).items():
            if row_number == number:
                own_problems[field] = message
        policy = typed.get(f"policy_{number}", "")
        parameters = typed.get(f"parameters_{number}", "")
        value = typed.get(f"value_{number}", "")
        rows.append(ChoiceRow(number, policy, parameters, value, own_problems))
    return rows


def asked_choices(rows: Sequence[ChoiceRow]) -> dict[int, dict[str, Any]]:
    """Choices by the number of their row, without empty rows. WhatIfError names the row's field."""
    choices: dict[int, dict[str, Any]] = {}
    for row in rows:
        choice: dict[str, Any] = {}
        if row.policy:
            choice["policy"] = row.policy
        if row.parameters.strip():
            choice["parameters"] = _parameters(row)
        if row.value.strip():
            choice["value_of_time"] = _value_of_time(row)
        if choice:
            choices[row.number] = choice
    return choices


def _value_of_time(row: ChoiceRow) -> float:
    try:
        return float(row.value)
    except ValueError:
        field = f"choices[{row.number}].value_of_time"
        raise WhatIfError(field, f"must be a number, not {row.value[:40]!r}") from None


def _parameters(row: ChoiceRow) -> dict[str, Any]:
    field = f"choices[{row.number}].parameters"
    try:
        parameters = read_yaml("parameters", as_mapping(row.parameters))
    except StudyDocumentError as error:
        problem = error.fields["parameters"][0]
        raise WhatIfError(field, f"{problem}; write them as name: value, name: value") from None
    if not isinstance(parameters, dict):
        raise WhatIfError(field, "must be parameters by name, such as iterations: 500")
    return parameters


def shown(user: User, simulation: Simulation) -> dict[str, Any] | None:
    """Context of the page for a result; None while there is none."""
    results = results_of(simulation)
    if results is None:
        return None
    choices = results["choices"]
    first = choices[0]
    solved = _solved_choices(results)
    totals = []
    for number, choice in enumerate(choices):
        totals.append(_total(number, choice, first, results["currency"]))
    differing_jobs = _differing_jobs(user, results)
    chart = json.dumps(_chart(solved, first, results["currency"])) if len(solved) > 1 else ""
    return {
        "headings": [words for words, _, _ in TOTALS],
        "totals": totals,
        "labels": [label(choice, first) for choice in solved],
        "at": datetime.fromtimestamp(results["at_s"], UTC),
        "jobs": differing_jobs[:LISTED],
        "more": max(0, len(differing_jobs) - LISTED),
        "same": len(results["jobs"]) - len(differing_jobs),
        "chart": chart,
    }


def _solved_choices(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Choices whose simulation did not fail."""
    return [choice for choice in results["choices"] if not choice["failure"]]


def _total(
    number: int, choice: Mapping[str, Any], first: Mapping[str, Any], currency: str
) -> Total:
    """Figures of a choice beside those of the first one."""
    totals = choice["totals"] or {}
    first_totals = first["totals"] or {}
    cells = []
    for heading, name, unit in TOTALS:
        unit = unit.format(currency=currency)
        cells.append(_cell(heading, totals.get(name), first_totals.get(name), unit))
    notes = []
    if totals.get("unended"):
        notes.append(f"without an end: {totals['unended']}")
    if totals.get("is_cut"):
        notes.append("it took too long and was cut")
    return Total(number, label(choice, first), choice["failure"], tuple(cells), tuple(notes))


def _cell(heading: str, value: float | None, first_value: float | None, unit: str) -> Cell:
    """Figure in words, with its difference from the first choice's; less is better."""
    if value is None:
        return Cell(heading, "–")
    words = duration(value) if unit == "s" else f"{quantity(value)} {unit}".strip()
    if first_value is None or abs(value - first_value) <= SAME * abs(first_value):
        return Cell(heading, words)
    excess = value - first_value
    size = duration(abs(excess)) if unit == "s" else quantity(abs(excess))
    if excess > 0:
        return Cell(heading, words, f"+{size}", "bad")
    return Cell(heading, words, f"−{size}", "good")


def _differing_jobs(user: User, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Jobs whose ends differ, those that differ most first, with their course by choice."""
    solved = _solved_choices(results)
    if len(solved) < 2:
        return []

    # 1. Each job's courses, one for each choice, and how far apart they end.
    courses_by_job = list(zip(*(choice["jobs"] for choice in solved), strict=True))
    differing = []
    for job_id, courses in zip(results["jobs"], courses_by_job, strict=True):
        apart_s = _apart_s(courses)
        if apart_s > SAME_S:
            differing.append((apart_s, job_id, courses))
    differing.sort(key=lambda job: -job[0])

    # 2. Names of the jobs that the user may see; the ids of others are empty.
    job_ids = [job_id for _, job_id, _ in differing if job_id]
    visible = Job.objects.filter(pk__in=seen_by(user, job_ids))
    names = {str(pk): name for pk, name in visible.values_list("pk", "name")}

    # 3. The courses in words, each against the first choice's.
    headings = [label(choice, results["choices"][0]) for choice in solved]
    rows = []
    for _, job_id, courses in differing:
        cells = []
        for heading, course in zip(headings, courses, strict=True):
            cells.append(_course(heading, course, courses[0], results["currency"]))
        rows.append(
            {
                "id": job_id if job_id in names else "",
                "name": names.get(job_id, OTHERS),
                "courses": cells,
            }
        )
    return rows


def _apart_s(courses: Sequence[Mapping[str, Any]]) -> float:
    """Greatest distance of an end from the first choice's; inf if only one of them is known."""
    ends = [course["end_s"] for course in courses]
    if ends[0] is None:
        return inf if any(end is not None for end in ends) else 0.0
    return max(inf if end is None else abs(end - ends[0]) for end in ends)


def _course(
    heading: str, course: Mapping[str, Any], first: Mapping[str, Any], currency: str
) -> Course:
    """A job's course in words; `first`: its course under the first choice."""
    start = _moment(course["start_s"])
    end = _moment(course["end_s"])
    cost = f"{quantity(course['energy_cost'] + course['lateness_cost'])} {currency}"
    if course["end_s"] is None or first["end_s"] is None:
        return Course(heading, start, end, cost, "", "")
    later_s = course["end_s"] - first["end_s"]
    if abs(later_s) <= SAME_S:
        return Course(heading, start, end, cost, "", "")
    if later_s > 0:
        return Course(heading, start, end, cost, f"{duration(later_s)} later", "bad")
    return Course(heading, start, end, cost, f"{duration(-later_s)} sooner", "good")


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _chart(
    choices: Sequence[Mapping[str, Any]], first: Mapping[str, Any], currency: str
) -> dict[str, Any]:
    """Plotly's figure: cost against mean completion time, a point for each choice.

    If the choices differ only in the value of time, a line joins the points in its order.
    """
    # 1. The points and their words.
    policies = {(choice["policy"], json.dumps(choice["parameters"])) for choice in choices}
    by_value = len(policies) == 1
    if by_value:
        choices = sorted(choices, key=lambda choice: choice["value_of_time"])
        words = [f"{choice['value_of_time']:g}/h" for choice in choices]
    else:
        words = [plain(label(choice, first)) for choice in choices]
    completions_h = [(choice["totals"]["mean_completion_s"] or 0.0) / 3600.0 for choice in choices]

    # 2. The figure.
    currency = plain(currency)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers+text" if by_value else "markers+text",
                "x": completions_h,
                "y": [choice["totals"]["cost"] for choice in choices],
                "text": words,
                "textposition": [SIDES[index % 2] for index in range(len(choices))],
                "cliponaxis": False,
                "marker": {"size": 9},
                "hovertemplate": "%{text}<br>%{x:.3g} h, %{y:.4g} " + f"{currency}<extra></extra>",
            }
        ],
        "layout": {
            "height": 320,
            "margin": {"l": 60, "r": 30, "t": 30, "b": 50},
            "showlegend": False,
            "xaxis": {"title": {"text": "mean completion time, h"}},
            "yaxis": {"title": {"text": f"energy and lateness, {currency}"}},
        },
    }
