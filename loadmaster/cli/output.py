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
from loadmaster.features import KERNEL_LIMITS
from loadmaster.slurm.options.reading import ScriptError
from loadmaster.strict_yaml import DocumentError

Json = Annotated[bool, Option("--json", help="Answer in JSON.")]

FAILURE = 1
USAGE = 2
"""Exit codes: of a command that failed, and of one that was called with bad input."""

SHORT_ID = 8
"""Digits of a job's id that are shown, and that commands take."""

STATE_STYLES = {
    **dict.fromkeys(("running", "completed", "done"), "green"),
    **dict.fromkeys(("failed", "lost"), "red"),
    **dict.fromkeys(("cancelled", "held"), "yellow"),
}
"""Colour of each state; others have none."""


@dataclass
class Options:
    """Options given before the command."""

    url: str = ""
    token: str = ""
    json: bool = False
    transport: httpx.BaseTransport | None = field(default=None, repr=False)


class _Harmless(Console):
    """Console that replaces control characters in the texts that it prints."""

    def print(self, *objects: Any, **options: Any) -> None:
        harmless_objects = []
        for item in objects:
            harmless_objects.append(harmless(item) if isinstance(item, str) else item)
        super().print(*harmless_objects, **options)


def out() -> Console:
    """Return a new console for answers, on what `sys.stdout` is now."""
    return _Harmless(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Return a new console for errors and remarks, on what `sys.stderr` is now."""
    return _Harmless(file=sys.stderr, highlight=False, soft_wrap=True)


@contextmanager
def connected(context: typer.Context) -> Iterator[Client]:
    """Yield a client, with the account that options, environment or login name.

    Errors of its calls end the program with a message.
    """
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
    """Print the messages of an error by field; `where` goes before each."""
    console = err()
    if not error.fields:
        console.print(f"[red]{shown(where) or 'Error: '}[/red]{shown(error.detail)}")
    for name, messages in error.fields.items():
        for message in messages:
            console.print(f"[red]{shown(where)}{shown(name)}:[/red] {shown(message)}")


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """Print an error and exit with this code."""
    err().print(f"[red]Error:[/red] {shown(message)}")
    raise typer.Exit(code)


def warn(messages: Iterable[str]) -> None:
    """Print warnings, which stop nothing."""
    for message in messages:
        err().print(f"[yellow]Warning:[/yellow] {shown(message)}")


def wants_json(context: typer.Context, as_json: bool) -> bool:
    """Return True if a program reads the answer, by the command's option or the one before it."""
    return as_json or context.ensure_object(Options).json


def show_json(value: Any) -> None:
    """Print a value as one JSON document."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, default=str) + "\n")


def shown_as_json(context: typer.Context, as_json: bool, value: Any) -> bool:
    """Print the value as JSON if a program reads the answer; return True if so."""
    if not wants_json(context, as_json):
        return False
    show_json(value)
    return True


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without borders."""
    printed = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        printed.add_column(heading, overflow="fold")
    for row in rows:
        printed.add_row(*(harmless(str(cell)) for cell in row))
    out().print(printed)


def show_jobs(jobs: Iterable[Job]) -> None:
    """Print a table of jobs; an array whose elements are folded is one row."""
    rows = []
    for job in jobs:
        if job.array and job.array.states:
            rows.append(_array_row(job, job.array))
        else:
            rows.append(_row(job))
    table(("ID", "NAME", "STATE", "DONE", "WHERE", "DUE", "USER", "WHY IT WAITS"), rows)


def _row(job: Job) -> tuple[str, ...]:
    """Return the row of a job in the table of jobs."""
    return (
        job.id[:SHORT_ID],
        shown(job.title),
        styled(job.state),
        f"{100 * job.progress.fraction:.0f}%",
        where(job),
        short(job.due),
        shown(job.user),
        _why_and_how_long(job),
    )


def _array_row(job: Job, array: Element) -> tuple[str, ...]:
    """Return the row of an array, of which `job` is an element, in the table of jobs."""
    limit = "" if array.at_once is None else f"%{array.at_once}"
    completed = array.states.get("completed", 0)
    return (
        array.id[:SHORT_ID],
        shown(f"{job.name}[{array.indices}{limit}]"),
        in_words(array.states),
        f"{100 * completed / max(1, array.size):.0f}%",
        "",
        short(job.due),
        shown(job.user),
        "",
    )


def in_words(states: Mapping[str, int]) -> str:
    """Return the numbers of elements by state: "8 running, 90 queued"."""
    return ", ".join(f"{count} {styled(state)}" for state, count in states.items())


def show_array(array: JobArray) -> None:
    """Print the properties of an array, one a line."""
    at_once = "" if array.at_once is None else f"at most {array.at_once}"
    _print_properties(
        {
            "array": f"{shown(array.name)} ({array.id})",
            "number": str(array.number),
            "indices": shown(array.indices),
            "at a time": at_once,
            "elements": f"{array.size}: {in_words(array.states)}",
            "submitted": moment(array.submitted_at),
        }
    )


def show_job(job: Job) -> None:
    """Print the properties of a job, one a line."""
    array = f"{job.array.id}, index {job.array.index}" if job.array else ""
    hold = " (to be held)" if job.hold_wanted else ""
    remedy = shown(job.waiting.remedy) if job.waiting else ""
    run_time = shown(job.run_time.words) if job.run_time else ""
    gpus = sorted({job.gpus_min, job.gpus_max} - {0})
    owner = f"{shown(job.cluster)}, {shown(job.team)} (submitted by {shown(job.user)})"
    _print_properties(
        {
            "job": f"{shown(job.title)} ({job.id})",
            "array": array,
            "state": styled(job.state) + hold,
            "why it waits": why(job),
            "what helps": remedy,
            "expected": _expected_start(job),
            "run time": run_time,
            "where": where(job),
            **_progress(job),
            "GPUs": "..".join(map(str, gpus)),
            "kind": shown(job.kind),
            "cluster, team": owner,
            "number": str(job.number),
            "due": moment(job.due),
            "begins": moment(job.begin),
            "submitted": moment(job.submitted_at),
            "started": _started(job),
            "ended": moment(job.completed_at),
            "failure": shown(job.failure_reason),
        }
    )


def _print_properties(properties: Mapping[str, str]) -> None:
    """Print the values that are not empty, each on a line after its name."""
    for name, value in properties.items():
        if value:
            out().print(f"[bold]{name + ':':14}[/bold] {value}")


def _progress(job: Job) -> dict[str, str]:
    """Return the properties of a job that tell of its progress; a batch job reports no steps."""
    progress = job.progress
    steps = ""
    if "steps_per_epoch" in job.spec:
        percent = f"{100 * progress.fraction:.1f}%"
        steps = f"{progress.steps_done} of {progress.total_steps} steps ({percent})"
    speed = ""
    if progress.steps_per_s:
        speed = f"{progress.steps_per_s:.3g} steps/s, ready {moment(progress.eta)}"
    checkpoint = ""
    if progress.checkpoint_steps:
        checkpoint = f"at step {progress.checkpoint_steps}"
    loss = ""
    if progress.first_loss is not None and progress.last_loss is not None:
        loss = f"{progress.first_loss:.4g} at first, {progress.last_loss:.4g} last"
    return {"progress": steps, "speed": speed, "checkpoint": checkpoint, "loss": loss}


def _expected_start(job: Job) -> str:
    """Return the forecast of a waiting job's start, or why there is none; "" for other jobs."""
    # 1. No forecast.
    if job.waiting is None:
        return ""
    forecast = job.waiting.expected
    if forecast is None:
        problem = shown(job.waiting.start_unknown)
        return f"start unknown: {problem}" if problem else ""

    # 2. When it starts and ends, where, and its place in the queue.
    earliest = moment(forecast.low)
    latest = moment(forecast.high)
    text = f"start {moment(forecast.start)} ({earliest} to {latest})"
    if forecast.end:
        text += f", end {moment(forecast.end)}"
    if forecast.nodes:
        gpus = f"{forecast.gpus} x GPU " if forecast.gpus else ""
        text += f", {gpus}on {shown(', '.join(forecast.nodes))}"
    if forecast.position:
        text += f", place {forecast.position} in the queue"
    return text


def _started(job: Job) -> str:
    """Return the start of a job, and by how much its first forecast differed."""
    forecast = job.first_forecast
    if forecast is None or job.started_at is None:
        return moment(job.started_at)
    direction = "later" if forecast.later_s > 0 else "sooner"
    seconds = f"{abs(forecast.later_s):.0f} s"
    return f"{moment(job.started_at)}, {seconds} {direction} than first forecast"


def show_nodes(nodes: Sequence[Node]) -> None:
    """Print a table of nodes, then the troubles of their GPUs."""
    headings = ("NODE", "CLUSTER", "STATE", "ROLE", "GPUS", "TYPE", "CORES", "MEMORY", "SEEN")
    table(headings, map(_node_row, nodes))
    for node in nodes:
        for line in troubles(node):
            out().print(f"{shown(node.name)}: {shown(line)}")
    for line in unlimited(nodes):
        out().print(shown(line))


def _node_row(node: Node) -> tuple[str, ...]:
    """Return the row of a node in the table of nodes."""
    # 1. Its GPUs.
    held_gpus = sum(device.held_slots > 0 for device in node.devices)
    unhealthy_gpus = sum(not device.healthy for device in node.devices)
    gpus = f"{held_gpus}/{len(node.devices)} in use"
    if unhealthy_gpus:
        gpus += f", {unhealthy_gpus} unhealthy"
    gpu_type = shown(node.gpu_type) or "-"
    if node.emulated:
        gpu_type += " (emulated)"

    # 2. The row.
    return (
        shown(node.name),
        shown(node.cluster),
        styled(node.state),
        node.role,
        gpus,
        gpu_type,
        f"{node.cores:g}",
        f"{node.memory_gb:.4g} GB",
        short(node.last_seen_at),
    )


def troubles(node: Node) -> list[str]:
    """Return lines on the GPUs of a node that are unhealthy, in other trouble, or missing."""
    lines = []
    if node.gpu_trouble:
        lines.append(f"GPUs may be missing: {node.gpu_trouble}")
    for device in node.devices:
        if not device.healthy:
            lines.append(f"GPU {device.uuid} is unhealthy: {device.trouble or 'takes no work'}")
        elif device.trouble:
            lines.append(f"GPU {device.uuid}: {device.trouble}")
    return lines


def unlimited(nodes: Sequence[Node]) -> list[str]:
    """Return a line for each resource of jobs that the kernel does not limit on some nodes."""
    lines = []
    for resource in KERNEL_LIMITS:
        names = []
        for node in nodes:
            if node.limits is not None and resource not in node.limits:
                names.append(node.name)
        if names:
            lines.append(f"the kernel does not limit jobs' {resource} on {', '.join(names)}")
    return lines


def held(placement: Placement) -> str:
    """Return the GPUs of a placement, and its units if there are several."""
    gpus = "no GPUs"
    if placement.gpus:
        gpus = f"{placement.gpus} x {shown(placement.gpu_type)}"
    if placement.units > 1:
        return f"{placement.units} units, {gpus}"
    return gpus


def where(job: Job) -> str:
    """Return the nodes and GPUs of a job."""
    places = []
    for placement in job.placement:
        purpose = ", profile run" if placement.purpose == "profiling" else ""
        places.append(f"{shown(placement.node)} ({held(placement)}{purpose})")
    return ", ".join(places)


def why(job: Job) -> str:
    """Return the reason for a job's wait; "" if it does not wait."""
    return shown(job.waiting.reason) if job.waiting else ""


def _why_and_how_long(job: Job) -> str:
    """Return the reason for a job's wait, and the interval of its run time if it is unknown."""
    parts = [why(job)]
    if job.run_time is not None and job.run_time.low_s is not None:
        parts.append(f"Runs {shown(job.run_time.words)}.")
    return " ".join(part for part in parts if part)


def styled(state: str) -> str:
    """Return a state with the markup of its colour."""
    style = STATE_STYLES.get(state)
    return f"[{style}]{state}[/{style}]" if style else state


def moment(value: datetime | None) -> str:
    """Return a time, to the minute, in the reader's zone; "" for None."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M") if value else ""


def short(value: datetime | None) -> str:
    """Return a time for a table: the time of day if it is today, else with its date."""
    if value is None:
        return ""
    local = value.astimezone()
    today = local.date() == datetime.now(UTC).astimezone().date()
    return f"{local:%H:%M}" if today else f"{local:%Y-%m-%d %H:%M}"


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: dataclasses become objects, times become texts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


_UNKNOWN = 0xFFFD
"""Unicode's replacement character, which shows that a character was left out."""

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
"""Pictures of control characters, but for ends of lines and tabs."""

_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks that change the direction of the text after them."""

_HARMLESS = {
    **_PICTURES,
    0x7F: 0x2421,  # DEL, which has a picture too
    **dict.fromkeys(range(0x80, 0xA0), _UNKNOWN),  # control characters of 8 bits
    **dict.fromkeys(map(ord, _DIRECTIONS), _UNKNOWN),
    **dict.fromkeys((0x2028, 0x2029), ord("\n")),  # separators of lines and paragraphs
    **dict.fromkeys(range(0xD800, 0xE000), _UNKNOWN),  # surrogates, which no file can hold
}
"""Replacements of characters that a terminal obeys, by code point."""


def harmless(text: str) -> str:
    """Replace all characters in a text that a terminal obeys, but for ends of lines and tabs."""
    return text.replace("\r\n", "\n").translate(_HARMLESS)


def shown(text: str) -> str:
    """Return a text as one harmless line, without anything that rich reads as markup."""
    return escape(harmless(text).replace("\n", " ⏎ ").replace("\t", " "))
