"""Section of a study's report: errors of predicted run times by policy, source and user."""

from collections.abc import Iterable, Sequence
from html import escape

from controlplane.simulation.report.summary import Summary
from profiling.run_times.errors import ErrorRow

HEADS = (
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
    """Return the section; "" where nothing was predicted."""
    tables = "".join(
        _table(f"{policy.choice.label}, {by}", rows)
        for policy in summary.policies
        for by, rows in (
            ("by source of the prediction", policy.run_time_errors.by_source),
            ("by user", policy.run_time_errors.by_user),
        )
        if rows
    )
    return f"<section><h2>Run times</h2><p>{NOTE}</p>{tables}</section>" if tables else ""


def _table(title: str, rows: Sequence[ErrorRow]) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    head = f'<thead><tr><th scope="col">{escape(title)}</th>{heads}</tr></thead>'
    return f"<table>{head}<tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(row: ErrorRow) -> str:
    cells = "".join(f"<td>{cell}</td>" for cell in _cells(row))
    return f'<tr><th scope="row">{escape(row.name)}</th>{cells}</tr>'


def _cells(row: ErrorRow) -> Iterable[str]:
    yield f"{row.jobs:,}"
    yield f"{row.mean_s:+,.0f}"
    yield f"{row.absolute_s:,.0f}"
    yield f"{row.median_s:,.0f}"
    yield f"{100 * row.too_short:.0f}%"
