"""`loadmaster agent`: the command that runs on every node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.agent import logs
from loadmaster.agent.config import ConfigError, read_config
from loadmaster.agent.start import EXIT_CONFIG, serve

agent_app = typer.Typer(
    add_completion=False,
    subcommand_metavar="",  # it has no commands of its own
    help="Run this machine as a node: pull the server's decisions and run their jobs.",
)


@agent_app.callback(invoke_without_command=True)
def agent(
    *,
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="The server's address (LOADMASTER_SERVER).")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Enrolment token, needed once (LOADMASTER_TOKEN; others can see arguments)."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the enrolment token (LOADMASTER_TOKEN_FILE).")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the agent's own, kept between starts (LOADMASTER_STATE_DIR)."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The node's name; the host's by default (LOADMASTER_NODE_NAME)."),
    ] = None,
    rack: Annotated[
        str | None, typer.Option(help="The rack it stands in (LOADMASTER_RACK).")
    ] = None,
    emulate: Annotated[
        Path | None, typer.Option(help="YAML file of emulated GPUs (LOADMASTER_EMULATE).")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            help=(
                "The folder of checkpoints that all nodes share, as this node sees it"
                " (LOADMASTER_CHECKPOINTS)."
            )
        ),
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="How jobs are run: process or docker (LOADMASTER_RUNTIME).")
    ] = None,
    docker: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "An option of the docker runtime, NAME=VALUE, as often as needed: user, pull,"
                " mounts, network, pids, shm_gb, "
                "read_only, limit_cores, host (LOADMASTER_DOCKER, separated by semicolons)."
            )
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help=(
                "Where other nodes reach this one, for gangs over several; found out by default"
                " (LOADMASTER_ADDRESS)."
            )
        ),
    ] = None,
    slots_per_gpu: Annotated[
        int | None,
        typer.Option(
            help=(
                "Jobs that may share each GPU, until an operator says so"
                " (LOADMASTER_SLOTS_PER_GPU); 1 by default."
            )
        ),
    ] = None,
    mps: Annotated[
        bool | None,
        typer.Option(
            "--mps/--no-mps",
            help=(
                "Let processes that share a GPU go through NVIDIA's MPS where it is there (they"
                " do)."
            ),
        ),
    ] = None,
    ca: Annotated[
        str | None, typer.Option(help="File of certificate authorities (LOADMASTER_CA).")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Accept any certificate: for trials only.")
    ] = None,
    stop_jobs_on_exit: Annotated[
        bool | None,
        typer.Option(
            "--stop-jobs-on-exit",
            help="Pre-empt the jobs before leaving; else they go on until adopted.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these settings.")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            help="console or json: lines of text or of JSON on stderr (LOADMASTER_LOG_FORMAT)."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell more.")] = False,
) -> None:
    """Run this machine as a node until SIGTERM or Ctrl-C."""
    given = {name: value for name, value in context.params.items() if name != "verbose"}
    try:
        settings = read_config(given)
    except ConfigError as error:
        typer.echo(f"loadmaster agent: {error}", err=True)
        raise typer.Exit(EXIT_CONFIG) from error
    logs.set_up(settings.log_format, verbose=verbose)
    raise typer.Exit(serve(settings))
