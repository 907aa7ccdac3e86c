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
"""Seconds between two looks at a simulation that is followed."""

FIGURES = {
    "running": "jobs with GPUs",
    "waiting": "waiting jobs",
    "gpus": "GPUs in use",
    "cost_per_h": "energy cost per hour",
    "energy_cost": "energy cost of jobs with GPUs, to their ends",
    "tardiness_cost": "lateness of jobs with GPUs",
    "energy_cost_waiting": "energy cost of waiting jobs, at least",
    "tardiness_cost_waiting": "lateness of waiting jobs, at least",
}
"""Figures of a decision that `what-if` compares, in words."""

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
        simulation = client.simulate(document)
        if wait or report is not None:
            simulation = _follow(client, simulation)
        if report is not None and simulation.state == "done":
            _write(report, client.simulation_file(simulation.id, "report.html"))
        _show(context, client, simulation, report, as_json)
    if simulation.state in ("failed", "cancelled"):
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
    # 1. Ask the server.
    with exit_on_error():
        values = parse_settings(parameters or [])
    with connected(context) as client:
        answer = client.what_if(cluster, policy, values)
    if shown_as_json(context, as_json, answer):
        return
    if answer["failure"]:
        err().print(f"[yellow]It could not decide:[/yellow] {shown(str(answer['failure']))}")

    # 2. The figures of the current decision beside those of the policy.
    current = answer["current"]
    proposed = answer["proposed"]
    rows = []
    for name, description in FIGURES.items():
        rows.append((description, _figure(current[name]), _figure(proposed[name])))
    table(("", "NOW", shown(policy).upper()), rows)

    # 3. The jobs whose placement would change.
    changes = []
    for difference in answer["differences"]:
        before = shown(difference["before"])
        after = shown(difference["after"])
        changes.append((difference["change"], shown(difference["name"]), before, after))
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
        simulations = list(client.simulations(limit=limit, state=state, mine=mine))
    if shown_as_json(context, as_json, simulations):
        return
    rows = []
    for simulation in simulations:
        row = (
            simulation.id[:SHORT_ID],
            shown(simulation.name),
            styled(simulation.state),
            f"{100 * simulation.progress:.0f}%",
            shown(simulation.user),
            short(simulation.created_at),
        )
        rows.append(row)
    table(("ID", "NAME", "STATE", "DONE", "USER", "ASKED FOR"), rows)


@simulation_app.command("cancel")
def simulation_cancel(context: typer.Context, simulation: SimulationId) -> None:
    """Stop a simulation for good."""
    with connected(context) as client:
        cancelled = client.cancel_simulation(_id(client, simulation))
    out().print(f"{shown(cancelled.name)} is {cancelled.state}")


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
    """Print the progress of a simulation until it is over; return it as it is then."""
    last_line = ""
    while True:
        simulation = client.simulation(simulation.id)
        if simulation.state in SIMULATED:
            return simulation
        line = f"{simulation.state} {100 * simulation.progress:.0f}% {simulation.message}"
        if line != last_line:
            err().print(line, markup=False)
        last_line = line
        time.sleep(WATCH_S)


def _show(
    context: typer.Context,
    client: Client,
    simulation: Simulation,
    report: Path | None,
    as_json: bool,
) -> None:
    """Print the state of a simulation, its page's address, and the file of its `report`."""
    if shown_as_json(context, as_json, simulation):
        return
    name = f"{shown(simulation.name)} ({simulation.id})"
    address = f"{client.url}/simulations/{simulation.id}/"
    out().print(f"{name} is {styled(simulation.state)}: {address}")
    if simulation.state == "failed":
        err().print(simulation.message, style="red", markup=False)
    if report is not None and simulation.state == "done":
        out().print(f"The report is in {report}")


def _write(path: Path, data: bytes) -> None:
    """Write a file; end the program if that fails."""
    try:
        path.write_bytes(data)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


def _figure(value: float | None) -> str:
    """Return a figure with four digits; a dash if it is unknown."""
    return "-" if value is None else f"{value:.4g}"


def _id(client: Client, text: str) -> str:
    """Return the whole id of the one simulation whose id is this text or begins with it."""
    if len(text) == len("00000000-0000-0000-0000-000000000000"):
        return text
    ids = [one.id for one in client.simulations() if one.id.startswith(text)]
    if len(ids) != 1:
        count = len(ids) or "no"
        fail(f"{count} simulations begin with {text}; `loadmaster simulation list` lists them")
    return ids[0]
