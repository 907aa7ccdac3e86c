"""Section of a study's report: errors of predicted run times by policy, source and user."""

from collections.abc import Iterable, Sequence
from html import escape

from controlplane.simulation.report.summary import Summary
from profiling.run_times.errors import ErrorRow

HEADINGS = (
    "Jobs",
    "Mean error, s",
    "Mean absolute error, s",
    "Median absolute error, s",
    "Ran longer",
)
NOTE = (
    "Error: predicted minus actual run time of batch jobs, predicted at the launch, first seed."
    " Above 0: the job ended sooner."
)


def run_times_section(summary: Summary) -> str:
    """Return the section; "" if nothing was predicted."""
    tables = ""
    for policy in summary.policies:
        label = policy.choice.label
        errors = policy.run_time_errors
        if errors.by_source:
            tables += _table(f"{label}, by source of the prediction", errors.by_source)
        if errors.by_user:
            tables += _table(f"{label}, by user", errors.by_user)
    if not tables:
        return ""
    return f"<section><h2>Run times</h2><p>{NOTE}</p>{tables}</section>"


def _table(title: str, rows: Sequence[ErrorRow]) -> str:
    """Return a table of errors in HTML."""
    headings = "".join(f'<th scope="col">{heading}</th>' for heading in HEADINGS)
    head = f'<thead><tr><th scope="col">{escape(title)}</th>{headings}</tr></thead>'
    body = "".join(_row(row) for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _row(row: ErrorRow) -> str:
    """Return a row of the table in HTML."""
    cells = "".join(f"<td>{cell}</td>" for cell in _cells(row))
    return f'<tr><th scope="row">{escape(row.name)}</th>{cells}</tr>'


def _cells(row: ErrorRow) -> Iterable[str]:
    """Yield the texts of a row under HEADINGS."""
    yield f"{row.jobs:,}"
    yield f"{row.mean_s:+,.0f}"
    yield f"{row.absolute_s:,.0f}"
    yield f"{row.median_s:,.0f}"
    yield f"{100 * row.too_short:.0f}%"
