"""Commands about jobs."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from loadmaster.cli.output import (
    FAILURE,
    USAGE,
    Json,
    complain,
    connected,
    err,
    exit_on_error,
    fail,
    harmless,
    held,
    in_words,
    out,
    show_array,
    show_job,
    show_jobs,
    shown,
    shown_as_json,
    table,
    warn,
)
from loadmaster.cli.references import job_id, target
from loadmaster.cli.sbatch import OPTION, SubmitCommand
from loadmaster.client import ENDED, ApiError, Client
from loadmaster.client.job_file import parse_settings, read_job_file
from loadmaster.client.results import Job, StartNow, Submission, SubmissionForecast
from loadmaster.slurm.scripts.submission import read_sbatch, sbatch_job

JobId = Annotated[
    str, Argument(help="The job's name, number, or its id or the beginning of it.", metavar="JOB")
]

Target = Annotated[
    str,
    Argument(
        help="A job, an array or an element (ARRAY_3), by name, number, id or its beginning.",
        metavar="JOB",
    ),
]

Settings = Annotated[
    list[str] | None,
    Option("--set", help="name=value or name.key=value, as YAML; replaces the value of the file."),
]
WATCH_S = 1.0
"""Seconds between two looks at a job that is followed."""


def submit(
    context: typer.Context,
    job_files: list[Path] | None = Argument(
        None,
        help="A job as YAML, or several; docs/jobs.md explains the fields.",
        metavar="JOB_FILE...",
    ),
    sbatch: Path | None = Option(
        None,
        metavar="[SCRIPT] [OPTIONS] [ARGUMENTS]",
        help="A script for Slurm (-: standard input), with options of sbatch and of the script.",
    ),
    settings: Settings = None,
    array: str | None = Option(
        None, help="A job for each index, such as 0-99:2 or 1,3,5-9; %10: at most 10 at a time."
    ),
    key: str | None = Option(
        None,
        help=(
            "Idempotency key: the same key and job are submitted once. Several files: KEY-1,"
            " KEY-2 ..."
        ),
    ),
    watch: bool = Option(False, "--watch", "-w", help="Follow it to its end; exits 1 if it fails."),
    as_json: Json = False,
) -> None:
    """Submit a job, or several in one call; or a script with `#SBATCH` lines."""
    # 1. Either files or a script.
    job_files = job_files or []
    if bool(job_files) == (sbatch is not None):
        fail("name a job file, or a script by --sbatch", USAGE)
    if watch and len(job_files) > 1:
        text = "submit the files without it, and watch with loadmaster jobs"
        fail(f"--watch follows one job; {text}", USAGE)

    # 2. Read them. What a script says itself counts more than --set and --array.
    is_test = False
    overrides = {} if array is None else {"array": array}
    descriptions: list[dict[str, Any]] = []
    with exit_on_error():
        for path in job_files:
            descriptions.append({**read_job_file(path, settings or []), **overrides})
        if sbatch is not None:
            script_job, script_options = sbatch_job(read_sbatch(context.meta[OPTION]))
            watch = watch or "wait" in script_options
            is_test = "test-only" in script_options
            descriptions = [{**parse_settings(settings or []), **overrides, **script_job}]

    with connected(context) as client:
        # 3. Several jobs in one call, or only the forecast of one.
        if is_test:
            _show_forecast(context, client.forecast(descriptions[0]), as_json)
            return
        if len(descriptions) > 1:
            keys = None
            if key:
                keys = [f"{key}-{number}" for number in range(1, len(descriptions) + 1)]
            results = client.submit_many(descriptions, idempotency_keys=keys)
            _show_submissions(context, job_files, results, as_json)
            return

        # 4. One job or array, which can be followed to its end.
        submission = client.submit(descriptions[0], idempotency_key=key)
        _show_submission(context, submission, as_json, numbered=sbatch is not None)
        if watch and submission.job.array:
            _watch_array(client, submission.id)
        elif watch:
            _watch(client, submission.id)


def clone(
    context: typer.Context, job: JobId, settings: Settings = None, as_json: Json = False
) -> None:
    """Submit a job's description again, with some fields replaced."""
    with exit_on_error():
        overrides = parse_settings(settings or [])
    with connected(context) as client:
        _show_submission(context, client.clone(job_id(client, job), **overrides), as_json)


def jobs(
    context: typer.Context,
    state: list[str] | None = Option(None, help="Only in this state; may be repeated."),
    team: str | None = Option(None),
    cluster: str | None = Option(None),
    mine: bool = Option(False, "--mine", help="Only your own jobs."),
    everything: bool = Option(False, "--all", "-a", help="Also jobs that are over."),
    search: str | None = Option(None, help="Part of the name or kind, or the beginning of an id."),
    array: str | None = Option(None, help="All elements of this array, instead of one row."),
    limit: int = Option(50, min=1),
    as_json: Json = False,
) -> None:
    """List jobs, newest first; an array is one row."""
    with connected(context) as client:
        # Without --all, a search or another filter by which jobs that are over may be meant, only
        # those that are not over.
        is_about_all = bool(everything or state or search or array)
        listed = client.jobs(
            limit=limit,
            active=None if is_about_all else True,
            fold=array is None,
            team=team,
            cluster=cluster,
            search=search,
            state=state or None,
            mine=mine or None,
            array=target(client, array).id if array else None,
        )
        matching = list(listed)
    if shown_as_json(context, as_json, matching):
        return
    if matching:
        show_jobs(matching)
    elif not is_about_all:
        err().print("No job runs or waits; --all also lists those that are over.")
    else:
        err().print("No job matches.")


def show(
    context: typer.Context,
    job: Target,
    start_now: bool = Option(
        False, "--start-now", help="Try for 2 s what would start it now; nothing is changed."
    ),
    as_json: Json = False,
) -> None:
    """Show a job: state, reason for waiting, progress, where it is."""
    with connected(context) as client:
        if start_now:
            _show_starts(context, client.start_now(job_id(client, job)), as_json)
            return
        named = target(client, job)
        if named.is_array:
            array = client.array(named.id)
            if not shown_as_json(context, as_json, array):
                show_array(array)
            return
        shown_job = client.job(named.id)
    if not shown_as_json(context, as_json, shown_job):
        show_job(shown_job)


def _show_starts(context: typer.Context, answer: StartNow, as_json: bool) -> None:
    """Print the changes that would start a job now, or that there is none."""
    if shown_as_json(context, as_json, answer):
        return

    # 1. The changes that start it, each with its command. The first one tried is none at all.
    for start in answer.starts:
        if start.command:
            out().print(f"With {shown(start.words)}: {shown(start.effect)}.")
            out().print(f"  {shown(start.command)}")
        else:
            effect = shown(start.effect)
            out().print(f"The next decision starts it without a change: {effect}.")

    # 2. Or what was tried in vain.
    tried = answer.tried[1:]
    if not answer.starts and answer.note:
        out().print(shown(answer.note))
    elif not answer.starts:
        attempts = f"; tried: {shown('; '.join(tried))}" if tried else ""
        out().print(f"No single change would start it now{attempts}.")
    if answer.not_tried:
        err().print(f"Not tried in 2 s: {shown('; '.join(answer.not_tried))}.")


def history(context: typer.Context, job: JobId, as_json: Json = False) -> None:
    """Show everything that happened to a job."""
    with connected(context) as client:
        events = list(client.events(job_id(client, job)))
    if shown_as_json(context, as_json, events):
        return
    rows = []
    for event in events:
        time_of_event = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}" if event.at else ""
        actor = shown(event.actor)
        details = shown(_details(event.data))
        rows.append((time_of_event, event.event, event.to_state, actor, details))
    table(("WHEN", "WHAT", "STATE", "BY", "WHY"), rows)


def logs(
    context: typer.Context,
    job: JobId,
    follow: bool = Option(False, "--follow", "-f", help="Follow the log until the job is over."),
    stderr: bool = Option(False, "--stderr", help="Show the error output instead of the output."),
    tail: int | None = Option(None, min=0, help="Show only the last so many bytes."),
    rank: int = Option(0, min=0, help="Rank of the gang's process."),
    raw: bool = Option(
        False, "--raw", help="Print every byte, also a terminal's escape sequences; for files."
    ),
) -> None:
    """Print a job's log, across its pre-emptions and migrations."""
    stream = "stderr" if stderr else "stdout"
    with connected(context) as client:
        # A log is the job's own text: printed as it is, without rich's reading of brackets.
        for text in client.logs(
            job_id(client, job),
            follow=follow,
            stream=stream,
            offset=None if tail is None else -tail,
            rank=rank,
        ):
            typer.echo(text if raw else harmless(text), nl=False)


def cancel(context: typer.Context, job: Target, as_json: Json = False) -> None:
    """Stop a job for good, or all of an array."""
    _act(context, job, "cancel", as_json)


def hold(context: typer.Context, job: Target, as_json: Json = False) -> None:
    """Keep a job out of the queue; one that runs saves a checkpoint first.

    Of an array, what runs goes on.
    """
    _act(context, job, "hold", as_json)


def release(context: typer.Context, job: Target, as_json: Json = False) -> None:
    """Release a held job, or all held elements of an array, into the queue."""
    _act(context, job, "release", as_json)


def requeue(context: typer.Context, job: Target, as_json: Json = False) -> None:
    """Queue a failed or cancelled job again, or all such elements of an array."""
    _act(context, job, "requeue", as_json)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(cls=SubmitCommand)(submit)
    for command in (jobs, show, history, logs, cancel, hold, release, requeue, clone):
        app.command()(command)


def _details(data: Mapping[str, Any]) -> str:
    """Return the reasons, messages and warnings of an event in one line."""
    texts = []
    for name in ("reason", "why", "message", "warnings"):
        value = data.get(name)
        if isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        if value:
            texts.append(str(value))
    return "; ".join(texts)


def _act(context: typer.Context, job: str, verb: str, as_json: bool) -> None:
    """Cancel, hold, release or requeue (`verb`) a job or an array, and print its new state."""
    with connected(context) as client:
        named = target(client, job)
        if named.is_array:
            array = client.act_on_array(named.id, verb)
            if not shown_as_json(context, as_json, array):
                out().print(f"{shown(array.name)}: {array.changed} of {array.size} elements")
            return
        actions = {
            "cancel": client.cancel,
            "hold": client.hold,
            "release": client.release,
            "requeue": client.requeue,
        }
        changed = actions[verb](named.id)
    if not shown_as_json(context, as_json, changed):
        hold = ", to be held" if changed.hold_wanted else ""
        out().print(f"{shown(changed.title)} is {changed.state}{hold}")


def _show_submission(
    context: typer.Context, submission: Submission, as_json: bool, *, numbered: bool = False
) -> None:
    """Print a submission's id, or its number as scripts for Slurm know it."""
    warn(submission.warnings)
    if shown_as_json(context, as_json, _as_object(submission)):
        return
    array = submission.job.array
    elements = f" ({array.size} elements)" if array else ""
    repeated = "" if submission.created else " (it had been submitted before)"
    err().print(f"{shown(submission.job.name)}{elements} is {submission.job.state}{repeated}")
    out().print(str(submission.number) if numbered else submission.id)


def _show_forecast(context: typer.Context, forecast: SubmissionForecast, as_json: bool) -> None:
    """Print when and where a job would start."""
    warn(forecast.warnings)
    if shown_as_json(context, as_json, forecast):
        return

    # 1. Time, nodes and resources in one sentence.
    start = "at an unknown time"
    if forecast.starts_now:
        start = "now"
    elif forecast.start is not None:
        start = f"about {forecast.start.astimezone():%Y-%m-%d %H:%M:%S}"
    nodes = f" on {shown(', '.join(forecast.nodes))}" if forecast.nodes else ""
    gpus = f" and {forecast.gpus} GPUs" if forecast.gpus else ""
    out().print(f"It would start {start}{nodes}, with {forecast.cores:g} cores{gpus}.")

    # 2. Why not sooner, and for how long it would run.
    if forecast.reason:
        out().print(shown(forecast.reason))
    if forecast.run_time is not None:
        out().print(f"Run time: {shown(forecast.run_time.words)}.")


def _show_submissions(
    context: typer.Context,
    files: Sequence[Path],
    outcomes: Sequence[Submission | ApiError],
    as_json: bool,
) -> None:
    """Print the result of each file; exit with 2 if a job was refused.

    JSON is a list in the order of the files.
    """
    outcome_of_file = list(zip(files, outcomes, strict=True))
    rows = [_as_row(path, outcome) for path, outcome in outcome_of_file]
    is_shown = shown_as_json(context, as_json, rows)
    for path, outcome in outcome_of_file:
        if isinstance(outcome, ApiError):
            complain(outcome, where=f"{path}: ")
        elif not is_shown:
            _show_submission(context, outcome, as_json=False)
    if any(isinstance(outcome, ApiError) for outcome in outcomes):
        raise typer.Exit(USAGE)


def _as_row(path: Path, outcome: Submission | ApiError) -> dict[str, Any]:
    """Return the JSON object of a file and its result; all rows have the same keys."""
    if isinstance(outcome, ApiError):
        nothing: dict[str, Any] = {"id": None, "created": False, "warnings": [], "job": None}
        error = {"code": outcome.code, "detail": outcome.detail, "fields": outcome.fields}
        return {"file": str(path), **nothing, "error": error}
    return {"file": str(path), **_as_object(outcome), "error": None}


def _as_object(submission: Submission) -> dict[str, Any]:
    """Return the JSON object of a submission."""
    fields = {"created": submission.created, "warnings": submission.warnings}
    return {"id": submission.id, **fields, "job": submission.job}


def _watch(client: Client, job_id: str) -> None:
    """Print every change of a job until it is over; exit with 1 unless it completed."""
    last_line = ""
    while True:
        job = client.job(job_id)
        line = _progress_line(job)
        if line != last_line:
            err().print(shown(line))
            last_line = line
        if job.state in ENDED:
            break
        time.sleep(WATCH_S)
    if job.state != "completed":
        raise typer.Exit(FAILURE)


def _watch_array(client: Client, array_id: str) -> None:
    """Print every change of the numbers by state until all elements are over.

    Exits with 1 unless all of them completed.
    """
    last_states: Mapping[str, int] = {}
    while True:
        states = client.array(array_id).states
        if states != last_states:
            err().print(in_words(states))
            last_states = states
        if states and states.keys() <= set(ENDED):
            break
        time.sleep(WATCH_S)
    if last_states.keys() != {"completed"}:
        raise typer.Exit(FAILURE)


def _progress_line(job: Job) -> str:
    """Return a job's state and progress, and why it waits, where it runs or why it failed."""
    places = ", ".join(f"{held(placement)} of {placement.node}" for placement in job.placement)
    explanation = places or job.failure_reason
    if job.waiting:
        explanation = job.waiting.reason
    return f"{job.state:10} {100 * job.progress.fraction:3.0f}%  {explanation}".rstrip()
