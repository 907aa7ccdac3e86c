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
ROWS = 7
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
    """Rows of the form with the problems of each."""
    rows = []
    for number in range(1, ROWS + 1):
        own = {field: text for (row, field), text in (problems or {}).items() if row == number}
        policy, parameters, value = (
            typed.get(f"{name}_{number}", "") for name in ("policy", "parameters", "value")
        )
        rows.append(ChoiceRow(number, policy, parameters, value, own))
    return rows


def asked_choices(rows: Sequence[ChoiceRow]) -> dict[int, dict[str, Any]]:
    """Choices by the number of their row, without empty rows. WhatIfError names the row's field."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        given: dict[str, Any] = {"policy": row.policy} if row.policy else {}
        if row.parameters.strip():
            given["parameters"] = _parameters(row)
        if row.value.strip():
            try:
                given["value_of_time"] = float(row.value)
            except ValueError:
                said = f"must be a number, not {row.value[:40]!r}"
                raise WhatIfError(f"choices[{row.number}].value_of_time", said) from None
        if given:
            found[row.number] = given
    return found


def _parameters(row: ChoiceRow) -> dict[str, Any]:
    place = f"choices[{row.number}].parameters"
    try:
        parameters = read_yaml("parameters", as_mapping(row.parameters))
    except StudyDocumentError as error:
        said = f"{error.fields['parameters'][0]}; write them as name: value, name: value"
        raise WhatIfError(place, said) from None
    if not isinstance(parameters, dict):
        raise WhatIfError(place, "must be parameters by name, such as iterations: 500")
    return parameters


def shown(user: User, simulation: Simulation) -> dict[str, Any] | None:
    """Content of the page for a result; None while there is none."""
    found = results_of(simulation)
    if found is None:
        return None
    first, jobs = found["choices"][0], _jobs(user, found)
    good = [choice for choice in found["choices"] if not choice["failure"]]
    return {
        "headings": [words for words, _, _ in TOTALS],
        "totals": [_total(i, choice, first, found) for i, choice in enumerate(found["choices"])],
        "labels": [label(choice, first) for choice in good],
        "at": datetime.fromtimestamp(found["at_s"], UTC),
        "jobs": jobs[:LISTED],
        "more": max(0, len(jobs) - LISTED),
        "same": len(found["jobs"]) - len(jobs),
        "chart": json.dumps(_chart(good, first, found["currency"])) if len(good) > 1 else "",
    }


def _total(
    number: int, choice: Mapping[str, Any], first: Mapping[str, Any], found: Mapping[str, Any]
) -> Total:
    totals, usual = choice["totals"] or {}, first["totals"] or {}
    cells = [
        _cell(words, totals.get(name), usual.get(name), unit.format(currency=found["currency"]))
        for words, name, unit in TOTALS
    ]
    notes = []
    if totals.get("unended"):
        notes.append(f"without an end: {totals['unended']}")
    if totals.get("is_cut"):
        notes.append("it took too long and was cut")
    return Total(number, label(choice, first), choice["failure"], tuple(cells), tuple(notes))


def _cell(heading: str, value: float | None, usual: float | None, unit: str) -> Cell:
    if value is None:
        return Cell(heading, "–")
    words = duration(value) if unit == "s" else f"{quantity(value)} {unit}".strip()
    if usual is None or abs(value - usual) <= SAME * abs(usual):
        return Cell(heading, words)
    more = value - usual
    size = duration(abs(more)) if unit == "s" else quantity(abs(more))
    return Cell(heading, words, f"{'+' if more > 0 else '−'}{size}", "bad" if more > 0 else "good")


def _jobs(user: User, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Jobs whose ends differ, those that differ most first, with their course by choice."""
    good = [choice for choice in found["choices"] if not choice["failure"]]
    if len(good) < 2:
        return []
    courses = list(zip(*(choice["jobs"] for choice in good), strict=True))
    order = sorted(range(len(courses)), key=lambda i: -_apart_s(courses[i]))
    rows = [(found["jobs"][i], courses[i]) for i in order if _apart_s(courses[i]) > SAME_S]
    seen = seen_by(user, [job for job, _ in rows if job])
    names = dict(Job.objects.filter(pk__in=seen).values_list("pk", "name"))
    labels = [label(choice, found["choices"][0]) for choice in good]
    by_id = {str(pk): name for pk, name in names.items()}
    return [
        {
            "id": job if job in by_id else "",
            "name": by_id.get(job, OTHERS),
            "courses": [
                _course(words, course, of_job[0], found["currency"])
                for words, course in zip(labels, of_job, strict=True)
            ],
        }
        for job, of_job in rows
    ]


def _apart_s(courses: Sequence[Mapping[str, Any]]) -> float:
    """Greatest distance of an end from the first choice's; inf if only one of them is known."""
    ends = [course["end_s"] for course in courses]
    if ends[0] is None:
        return inf if any(end is not None for end in ends) else 0.0
    return max(inf if end is None else abs(end - ends[0]) for end in ends)


def _course(
    heading: str, course: Mapping[str, Any], first: Mapping[str, Any], currency: str
) -> Course:
    start, end = (
        None if s is None else datetime.fromtimestamp(s, UTC)
        for s in (course["start_s"], course["end_s"])
    )
    cost = f"{quantity(course['energy_cost'] + course['lateness_cost'])} {currency}"
    if course["end_s"] is None or first["end_s"] is None:
        return Course(heading, start, end, cost, "", "")
    more_s = course["end_s"] - first["end_s"]
    if abs(more_s) <= SAME_S:
        return Course(heading, start, end, cost, "", "")
    words = f"{duration(abs(more_s))} {'later' if more_s > 0 else 'sooner'}"
    return Course(heading, start, end, cost, words, "bad" if more_s > 0 else "good")


def _chart(
    good: Sequence[Mapping[str, Any]], first: Mapping[str, Any], currency: str
) -> dict[str, Any]:
    """Plotly's figure: cost against mean completion time, a point per choice."""
    by_value = len({(c["policy"], json.dumps(c["parameters"])) for c in good}) == 1
    points = sorted(good, key=lambda c: c["value_of_time"]) if by_value else list(good)
    words = [f"{c['value_of_time']:g}/h" if by_value else plain(label(c, first)) for c in points]
    currency = plain(currency)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers+text" if by_value else "markers+text",
                "x": [(c["totals"]["mean_completion_s"] or 0.0) / 3600.0 for c in points],
                "y": [c["totals"]["cost"] for c in points],
                "text": words,
                "textposition": [SIDES[i % 2] for i in range(len(points))],
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
