"""Commands about simulations."""

import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from loadmaster.cli.output import (
    FAILURE,
    SHORT_ID,
    Json,
    connected,
    err,
    exit_on_error,
    fail,
    out,
    short,
    shown,
    shown_as_json,
    styled,
    table,
)
from loadmaster.client import Client
from loadmaster.client.job_file import parse_settings
from loadmaster.client.results import Simulation
from loadmaster.client.simulations import SIMULATED, read_study_file

WATCH_S = 1.0
simulation_app = typer.Typer(no_args_is_help=True, help="Simulations of policies on a cluster.")
SimulationId = Annotated[
    str, Argument(help="The simulation's id, or the beginning of it.", metavar="SIMULATION")
]


def simulate(
    context: typer.Context,
    study: Path = Argument(
        ..., help="A study as YAML or JSON; docs/simulator.md explains the fields.", metavar="FILE"
    ),
    wait: bool = Option(False, "--wait", "-w", help="Follow it to its end; exits 1 if it fails."),
    report: Path | None = Option(
        None, help="Wait for the end, and write the report into this file."
    ),
    as_json: Json = False,
) -> None:
    """Compare policies on a simulated cluster."""
    with exit_on_error():
        document = read_study_file(study)
    with connected(context) as client:
        found = client.simulate(document)
        if wait or report is not None:
            found = _follow(client, found)
        if report is not None and found.state == "done":
            _write(report, client.simulation_file(found.id, "report.html"))
        _show(context, client, found, report, as_json)
    if found.state in ("failed", "cancelled"):
        raise typer.Exit(FAILURE)


def what_if(
    context: typer.Context,
    cluster: str = Argument(..., metavar="CLUSTER"),
    policy: str = Argument(..., metavar="POLICY"),
    parameters: list[str] | None = Option(
        None, "--set", help="name=value of a parameter; may be repeated."
    ),
    as_json: Json = False,
) -> None:
    """Show what a policy would decide about the live queue now, changing nothing."""
    with exit_on_error():
        chosen = parse_settings(parameters or [])
    with connected(context) as client:
        found = client.what_if(cluster, policy, chosen)
    if shown_as_json(context, as_json, found):
        return
    if found["failure"]:
        err().print(f"[yellow]It could not decide:[/yellow] {shown(str(found['failure']))}")
    now, then = found["current"], found["proposed"]
    words = {
        "running": "jobs with GPUs", "waiting": "waiting jobs", "gpus": "GPUs in use",
        "cost_per_h": "energy cost per hour",
        "energy_cost": "energy cost of jobs with GPUs, to their ends",
        "tardiness_cost": "lateness of jobs with GPUs",
        "energy_cost_waiting": "energy cost of waiting jobs, at least",
        "tardiness_cost_waiting": "lateness of waiting jobs, at least",
    }  # fmt: skip
    table(
        ("", "NOW", shown(policy).upper()),
        [(text, _figure(now[name]), _figure(then[name])) for name, text in words.items()],
    )
    changes = [
        (d["change"], shown(d["name"]), shown(d["before"]), shown(d["after"]))
        for d in found["differences"]
    ]
    if changes:
        table(("CHANGE", "JOB", "FROM", "TO"), changes)
    else:
        out().print("It would leave everything as it is.")


@simulation_app.command("list")
def simulation_list(
    context: typer.Context,
    state: str | None = Option(None, help="Only simulations in this state."),
    mine: bool = Option(False, "--mine", help="Only your own simulations."),
    limit: int = Option(50, min=1),
    as_json: Json = False,
) -> None:
    """List simulations, newest first."""
    with connected(context) as client:
        found = list(client.simulations(limit=limit, state=state, mine=mine))
    if shown_as_json(context, as_json, found):
        return
    rows = []
    for s in found:
        done = (styled(s.state), f"{100 * s.progress:.0f}%")
        rows.append((s.id[:SHORT_ID], shown(s.name), *done, shown(s.user), short(s.created_at)))
    table(("ID", "NAME", "STATE", "DONE", "USER", "ASKED FOR"), rows)


@simulation_app.command("cancel")
def simulation_cancel(context: typer.Context, simulation: SimulationId) -> None:
    """Stop a simulation for good."""
    with connected(context) as client:
        found = client.cancel_simulation(_id(client, simulation))
    out().print(f"{shown(found.name)} is {found.state}")


@simulation_app.command("delete")
def simulation_delete(context: typer.Context, simulation: SimulationId) -> None:
    """Delete a simulation and its results."""
    with connected(context) as client:
        client.delete_simulation(_id(client, simulation))
    out().print("Removed")


@simulation_app.command("report")
def simulation_report(
    context: typer.Context,
    simulation: SimulationId,
    report: Path = Argument(Path("report.html"), metavar="PATH"),
) -> None:
    """Write a simulation's report into a file."""
    with connected(context) as client:
        _write(report, client.simulation_file(_id(client, simulation), "report.html"))
    out().print(f"The report is in {report}")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(simulate)
    app.command("what-if")(what_if)
    app.add_typer(simulation_app, name="simulation")


def _follow(client: Client, simulation: Simulation) -> Simulation:
    """Tell how far it is until it is over."""
    before = ""
    while (found := client.simulation(simulation.id)).state not in SIMULATED:
        line = f"{found.state} {100 * found.progress:.0f}% {found.message}"
        if line != before:
            err().print(line, markup=False)
        before = line
        time.sleep(WATCH_S)
    return found


def _show(
    context: typer.Context, client: Client, found: Simulation, report: Path | None, as_json: bool
) -> None:
    if shown_as_json(context, as_json, found):
        return
    address = f"{client.url}/simulations/{found.id}/"
    out().print(f"{shown(found.name)} ({found.id}) is {styled(found.state)}: {address}")
    if found.state == "failed":
        err().print(found.message, style="red", markup=False)
    if report is not None and found.state == "done":
        out().print(f"The report is in {report}")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _id(client: Client, text: str) -> str:
    """The whole id of the simulation whose id is this or begins so."""
    if len(text) == len("00000000-0000-0000-0000-000000000000"):
        return text
    found = [s.id for s in client.simulations() if s.id.startswith(text)]
    if len(found) != 1:
        count = len(found) or "no"
        fail(f"{count} simulations begin with {text}; `loadmaster simulation list` lists them")
    return found[0]
