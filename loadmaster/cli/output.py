"""Output: tables for people, JSON for programs, errors in red, exit codes 1 and 2.

Texts of others (names, reasons, logs) cannot command the terminal: each control character is shown
as its picture (ESC as ␛), one for one, so text may arrive in pieces.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Option

from loadmaster.client import ApiError, AuthenticationError, Client, InvalidError, LoadmasterError
from loadmaster.client.account import credentials
from loadmaster.client.results import Element, Job, JobArray, Node, Placement
from loadmaster.slurm.options.reading import ScriptError
from loadmaster.strict_yaml import DocumentError

Json = Annotated[bool, Option("--json", help="Answer in JSON.")]
USAGE = 2
SHORT_ID = 8
"""Digits of a job's id that are shown, and that commands take."""
FAILURE = 1
STATE_STYLES = {
    **dict.fromkeys(("running", "completed", "done"), "green"),
    **dict.fromkeys(("failed", "lost"), "red"),
    **dict.fromkeys(("cancelled", "held"), "yellow"),
}


@dataclass
class Options:
    """Options given before the command."""

    url: str = ""
    token: str = ""
    json: bool = False
    transport: httpx.BaseTransport | None = field(default=None, repr=False)


class _Harmless(Console):
    """A console that obeys its own styles and nothing that stands in the texts it is given."""

    def print(self, *objects: Any, **options: Any) -> None:
        texts = (harmless(item) if isinstance(item, str) else item for item in objects)
        super().print(*texts, **options)


def out() -> Console:
    """Console of answers; made anew, so that redirection is seen."""
    return _Harmless(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Console of errors and remarks."""
    return _Harmless(file=sys.stderr, highlight=False, soft_wrap=True)


@contextmanager
def connected(context: typer.Context) -> Iterator[Client]:
    """A client by options, environment or login; its errors end the program."""
    options = context.ensure_object(Options)
    try:
        account = credentials(options.url, options.token)
    except LoadmasterError as error:
        fail(str(error), USAGE)
    client = Client(account.url, account.token, transport=options.transport)
    with exit_on_error(), client:
        yield client


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print errors and exit: with 2 for bad input, 1 for the rest."""
    try:
        yield
    except InvalidError as error:
        complain(error)
        raise typer.Exit(USAGE) from None
    except (DocumentError, ScriptError) as error:
        fail(str(error), USAGE)
    except AuthenticationError as error:
        fail(f"{error.detail} (loadmaster login gives a new token)", FAILURE)
    except ApiError as error:
        complain(error)
        raise typer.Exit(FAILURE) from None
    except LoadmasterError as error:
        fail(str(error), FAILURE)


def complain(error: ApiError, where: str = "") -> None:
    """The messages by field, in red; `where` goes before each."""
    console = err()
    if not error.fields:
        console.print(f"[red]{shown(where) or 'Error: '}[/red]{shown(error.detail)}")
    for name, messages in error.fields.items():
        for message in messages:
            console.print(f"[red]{shown(where)}{shown(name)}:[/red] {shown(message)}")


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """Say it in red and end."""
    err().print(f"[red]Error:[/red] {shown(message)}")
    raise typer.Exit(code)


def warn(messages: Iterable[str]) -> None:
    """Remarks that stop nothing."""
    for message in messages:
        err().print(f"[yellow]Warning:[/yellow] {shown(message)}")


def wants_json(context: typer.Context, as_json: bool) -> bool:
    """Return True if a program reads the answer, by the command's option or the one before it."""
    return as_json or context.ensure_object(Options).json


def show_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, default=str) + "\n")


def shown_as_json(context: typer.Context, as_json: bool, value: Any) -> bool:
    """Print the value as JSON if a program reads the answer; return True if so."""
    if wanted := wants_json(context, as_json):
        show_json(value)
    return wanted


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*(harmless(str(cell)) for cell in row))
    out().print(made)


def show_jobs(jobs: Iterable[Job]) -> None:
    """Jobs, a line each."""
    rows = [_array_row(j, j.array) if j.array and j.array.states else _row(j) for j in jobs]
    table(("ID", "NAME", "STATE", "DONE", "WHERE", "DUE", "USER", "WHY IT WAITS"), rows)


def _row(job: Job) -> tuple[str, ...]:
    done = f"{100 * job.progress.fraction:.0f}%"
    name, state, due = shown(job.title), styled(job.state), short(job.due)
    waits = _why_and_how_long(job)
    return job.id[:SHORT_ID], name, state, done, where(job), due, shown(job.user), waits


def _array_row(job: Job, array: Element) -> tuple[str, ...]:
    """Row of an array, of which `job` is an element."""
    limit = "" if array.at_once is None else f"%{array.at_once}"
    name = shown(f"{job.name}[{array.indices}{limit}]")
    done = f"{100 * array.states.get('completed', 0) / max(1, array.size):.0f}%"
    states, due = in_words(array.states), short(job.due)
    return array.id[:SHORT_ID], name, states, done, "", due, shown(job.user), ""


def in_words(states: Mapping[str, int]) -> str:
    """Numbers of elements by state: "8 running, 90 queued"."""
    return ", ".join(f"{count} {styled(state)}" for state, count in states.items())


def show_array(array: JobArray) -> None:
    """One array, a line for each thing."""
    lines = {
        "array": f"{shown(array.name)} ({array.id})",
        "number": str(array.number),
        "indices": shown(array.indices),
        "at a time": "" if array.at_once is None else f"at most {array.at_once}",
        "elements": f"{array.size}: {in_words(array.states)}",
        "submitted": moment(array.submitted_at),
    }
    for name, line in lines.items():
        if line:
            out().print(f"[bold]{name + ':':14}[/bold] {line}")


def show_job(job: Job) -> None:
    """One job, a line for each thing."""
    done = job.progress
    lines = {
        "job": f"{shown(job.title)} ({job.id})",
        "array": f"{job.array.id}, index {job.array.index}" if job.array else "",
        "state": styled(job.state) + (" (to be held)" if job.hold_wanted else ""),
        "why it waits": why(job),
        "what helps": shown(job.waiting.remedy) if job.waiting else "",
        "expected": _expected(job),
        "run time": shown(job.run_time.words) if job.run_time else "",
        "where": where(job),
        "progress": _progress(job),
        "speed": f"{done.steps_per_s:.3g} steps/s, ready {moment(done.eta)}"
        if done.steps_per_s
        else "",
        "checkpoint": f"at step {done.checkpoint_steps}" if done.checkpoint_steps else "",
        "loss": ""
        if done.first_loss is None or done.last_loss is None
        else f"{done.first_loss:.4g} at first, {done.last_loss:.4g} last",
        "GPUs": "..".join(str(n) for n in sorted({job.gpus_min, job.gpus_max} - {0})),
        "kind": shown(job.kind),
        "cluster, team": f"{shown(job.cluster)}, {shown(job.team)}"
        f" (submitted by {shown(job.user)})",
        "number": str(job.number),
        "due": moment(job.due),
        "begins": moment(job.begin),
        "submitted": moment(job.submitted_at),
        "started": _started(job),
        "ended": moment(job.completed_at),
        "failure": shown(job.failure_reason),
    }  # fmt: skip
    for name, line in lines.items():
        if line:
            out().print(f"[bold]{name + ':':14}[/bold] {line}")


def _progress(job: Job) -> str:
    """Steps of a training job; a batch job reports none."""
    done = job.progress
    if "steps_per_epoch" not in job.spec:
        return ""
    return f"{done.steps_done} of {done.total_steps} steps ({100 * done.fraction:.1f}%)"


def _expected(job: Job) -> str:
    expected = job.waiting.expected if job.waiting else None
    if expected is None:
        why = shown(job.waiting.start_unknown) if job.waiting else ""
        return f"start unknown: {why}" if why else ""
    nodes = shown(", ".join(expected.nodes))
    gpus = f"{expected.gpus} x GPU " if expected.gpus else ""
    place = f", {gpus}on {nodes}" if nodes else ""
    turn = f", place {expected.position} in the queue" if expected.position else ""
    end = f", end {moment(expected.end)}" if expected.end else ""
    between = f"{moment(expected.low)} to {moment(expected.high)}"
    return f"start {moment(expected.start)} ({between}){end}{place}{turn}"


def _started(job: Job) -> str:
    told = job.first_forecast
    if told is None or job.started_at is None:
        return moment(job.started_at)
    way = "later" if told.later_s > 0 else "sooner"
    return f"{moment(job.started_at)}, {abs(told.later_s):.0f} s {way} than first forecast"


def show_nodes(nodes: Sequence[Node]) -> None:
    """Nodes, a line each, and what is wrong with their GPUs."""
    table(
        ("NODE", "CLUSTER", "STATE", "ROLE", "GPUS", "TYPE", "CORES", "MEMORY", "SEEN"),
        (
            (shown(n.name), shown(n.cluster), styled(n.state), n.role, _gpus(n),
             (shown(n.gpu_type) or "-") + (" (emulated)" if n.emulated else ""), f"{n.cores:g}",
             f"{n.memory_gb:.4g} GB", short(n.last_seen_at))
            for n in nodes
        ),
    )  # fmt: skip
    for node in nodes:
        for line in troubles(node):
            out().print(f"{shown(node.name)}: {shown(line)}")


def troubles(node: Node) -> list[str]:
    """Lines on the GPUs of a node that are unhealthy, in other trouble, or missing."""
    lines = []
    if node.gpu_trouble:
        lines.append(f"GPUs may be missing: {node.gpu_trouble}")
    for device in node.devices:
        if not device.healthy:
            lines.append(f"GPU {device.uuid} is unhealthy: {device.trouble or 'takes no work'}")
        elif device.trouble:
            lines.append(f"GPU {device.uuid}: {device.trouble}")
    return lines


def held(placement: Placement) -> str:
    """The GPUs of a placement, and its units where there are several."""
    gpus = f"{placement.gpus} x {shown(placement.gpu_type)}" if placement.gpus else "no GPUs"
    return f"{placement.units} units, {gpus}" if placement.units > 1 else gpus


def where(job: Job) -> str:
    """The nodes and GPUs of a job."""
    return ", ".join(
        f"{shown(p.node)} ({held(p)}{', profile run' if p.purpose == 'profiling' else ''})"
        for p in job.placement
    )


def why(job: Job) -> str:
    """Reason for a job's wait."""
    return shown(job.waiting.reason) if job.waiting else ""


def _why_and_how_long(job: Job) -> str:
    """Reason for a job's wait, and the interval of its run time if that is unknown."""
    parts = [why(job)]
    if job.run_time is not None and job.run_time.low_s is not None:
        parts.append(f"Runs {shown(job.run_time.words)}.")
    return " ".join(part for part in parts if part)


def styled(state: str) -> str:
    """A state in its colour."""
    style = STATE_STYLES.get(state)
    return f"[{style}]{state}[/{style}]" if style else state


def moment(value: datetime | None) -> str:
    """A time, to the minute, in the reader's zone."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M") if value else ""


def short(value: datetime | None) -> str:
    """A time for a table: of day today, else with its date."""
    if value is None:
        return ""
    local = value.astimezone()
    today = local.date() == datetime.now(UTC).astimezone().date()
    return f"{local:%H:%M}" if today else f"{local:%Y-%m-%d %H:%M}"


def _gpus(node: Node) -> str:
    held = sum(bool(d.held_slots) for d in node.devices)
    ill = sum(not d.healthy for d in node.devices)
    used = f"{held}/{len(node.devices)} in use"
    return f"{used}, {ill} unhealthy" if ill else used


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_HARMLESS = {
    **_PICTURES,
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys((ord(mark) for mark in _DIRECTIONS), 0xFFFD),
    **dict.fromkeys((0x2028, 0x2029), ord("\n")),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}


def harmless(text: str) -> str:
    """The text with nothing in it that a terminal obeys, but for ends of lines and tabs."""
    return text.replace("\r\n", "\n").translate(_HARMLESS)


def shown(text: str) -> str:
    """The same on one line, and nothing in it that rich reads as markup."""
    return escape(harmless(text).replace("\n", " ⏎ ").replace("\t", " "))
