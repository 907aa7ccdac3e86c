"""The command line: `loadmaster submit job.yaml --watch`. Needs neither Django nor a GPU.

Exit codes: 0 done, 1 refused or failed, 2 something was written wrongly.
"""

import sys
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import typer
from typer import Argument, Option

import loadmaster
from loadmaster.cli import jobs as cli_jobs
from loadmaster.cli import kinds as cli_kinds
from loadmaster.cli import nodes as cli_nodes
from loadmaster.cli import simulations as cli_simulations
from loadmaster.cli import tokens as cli_tokens
from loadmaster.cli.output import (
    FAILURE,
    USAGE,
    Json,
    Options,
    connected,
    exit_on_error,
    fail,
    out,
    show_json,
    shown_as_json,
    table,
)
from loadmaster.client import (
    AuthenticationError,
    Client,
    LoadmasterError,
    PermissionDeniedError,
)
from loadmaster.client.account import Account, config_file, read_account, write_account

app = typer.Typer(
    name="loadmaster",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Submit jobs, follow them, and operate the cluster.",
)
cli_jobs.register(app)
cli_nodes.register(app)
cli_kinds.register(app)
cli_simulations.register(app)
cli_tokens.register(app)


@app.callback()
def _options(
    context: typer.Context,
    url: str = Option("", envvar="LOADMASTER_URL", help="Address of the server."),
    token: str = Option(
        "", envvar="LOADMASTER_TOKEN", help="API token; safer in the environment than here."
    ),
    as_json: Json = False,
) -> None:
    """Options of every command."""
    known = context.obj if isinstance(context.obj, Options) else Options()
    context.obj = Options(
        url or known.url, token or known.token, as_json or known.json, known.transport
    )


@app.command()
def version() -> None:
    """Print the version."""
    out().print(loadmaster.__version__)


@app.command()
def login(
    context: typer.Context,
    url: str = Argument("", help="The server, such as https://loadmaster.example."),
    username: str = Option(
        "", "--username", "--user", "-u", help="Name of the account; asked for if left out."
    ),
    valid_h: float | None = Option(
        None, help="Hours until the token expires (default: the server's setting, 90 days)."
    ),
    scope: str = Option(
        "operate", help="Rights of the token: read, submit, or operate (everything)."
    ),
) -> None:
    """Log in and keep a token (readable by you only). Asks for the password or reads stdin.

    A one-time password is changed: a new one is asked for, or read from the next line.
    """
    # 1. Server, name and password.
    options = context.ensure_object(Options)
    account = read_account()
    server = url or options.url or (account.url if account else "")
    if not server:
        fail("name the server: loadmaster login https://your.server", USAGE)
    name = username or typer.prompt("User")
    password = _password("Password")

    # 2. A token for them. A one-time password is refused until the user chooses another one.
    with exit_on_error(), Client(server, transport=options.transport) as client:
        try:
            token = client.login(name, password, valid_h=valid_h, scope=scope)
        except AuthenticationError as error:
            fail(error.detail)
        except PermissionDeniedError as error:
            if error.code != "one_time_password":
                raise
            out().print("The password was given to you for one login: choose your own.")
            chosen = _password("New password", twice=True)
            token = client.login(name, password, valid_h=valid_h, scope=scope, new_password=chosen)

    # 3. Keep it for the next commands.
    path = write_account(Account(server, token.token))
    out().print(f"Logged in to {server} as {name}; the token is in {path}")


def _password(words: str, *, twice: bool = False) -> str:
    """Ask for a password on the terminal, or read the next line of standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt(words, hide_input=True, confirmation_prompt=twice))
    return sys.stdin.readline().rstrip("\n")


@app.command()
def logout(context: typer.Context) -> None:
    """Revoke the token and forget it."""
    with connected(context) as client:
        client.logout()
    config_file().unlink(missing_ok=True)
    out().print("Logged out")


@app.command()
def whoami(context: typer.Context, as_json: Json = False) -> None:
    """Show your name, your teams, and your roles in them."""
    with connected(context) as client:
        user = client.whoami()
    if shown_as_json(context, as_json, user):
        return
    name = user.username
    if user.operator:
        name += " (operator)"
    teams = []
    for team in user.teams:
        teams.append(f"{team} ({user.roles[team]})" if team in user.roles else team)
    out().print(f"{name}; teams: {', '.join(teams) or 'none'}")


@app.command("check-report")
def check_report(
    report: Path = Argument(..., help="A report that the demo wrote."),
    as_json: Json = False,
) -> None:
    """Check a demo's report: exit 0 only if its promises hold. Missed timings only warn."""
    from loadmaster.demo.report import ReportError, check_timing  # only this command needs it
    from loadmaster.demo.report import check_report as check

    try:
        failures = check(report)
        warnings = check_timing(report)
    except ReportError as error:
        fail(str(error), USAGE)
    if as_json:
        show_json({"holds": not failures, "failures": failures, "warnings": warnings})
    else:
        for failure in failures:
            out().print(f"[red]broken promise:[/red] {failure}")
        for warning in warnings:
            out().print(f"[yellow]warning:[/yellow] {warning}")
        if not failures:
            out().print("The report passes all checks.")
    if failures:
        raise typer.Exit(FAILURE)


@app.command("check-journals")
def check_journals(
    folder: Path = Argument(..., help="Folder with the jobs' journals and submitted.json."),
    as_json: Json = False,
) -> None:
    """Check jobs' journals: exit 0 only if nothing was lost or ran twice at once."""
    from loadmaster.demo.journal_checks import JournalsError  # only this command needs it
    from loadmaster.demo.journal_checks import check_journals as check

    try:
        result = check(folder)
    except JournalsError as error:
        fail(str(error), USAGE)
    if as_json:
        show_json({"holds": result.holds, **asdict(result)})
    else:
        faults = (result.lost, result.overlaps, result.held_twice)
        row = (result.jobs, result.launches, result.steps, *map(len, faults))
        table(("JOBS", "LAUNCHES", "STEPS", "LOST", "OVERLAPS", "HELD TWICE"), [row])
        for text in chain(*faults):
            out().print(text, style="red", markup=False)
    if not result.holds:
        raise typer.Exit(FAILURE)


def main() -> None:
    """Run the command of the command line; load the agent's only if it may be meant."""
    if {"agent", "--help"} & set(sys.argv[1:]) or len(sys.argv) == 1:
        from loadmaster.agent.cli import agent_app  # heavier than a laptop's commands need

        app.add_typer(agent_app, name="agent")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has enough. An error would go there too.
        sys.stderr.close()
        sys.exit(0)
    except LoadmasterError as error:
        sys.exit(f"Error: {error}")
