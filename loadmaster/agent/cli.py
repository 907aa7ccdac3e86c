"""`loadmaster agent`: the command that runs on every node."""

from pathlib import Path

import typer
from typer import Option

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
    server: str | None = Option(None, help="The server's address (LOADMASTER_SERVER)."),
    token: str | None = Option(
        None, help="Enrolment token, needed once (LOADMASTER_TOKEN; others can see arguments)."
    ),
    token_file: Path | None = Option(
        None, help="File with the enrolment token (LOADMASTER_TOKEN_FILE)."
    ),
    state_dir: Path | None = Option(
        None, help="Folder of the agent's own, kept between starts (LOADMASTER_STATE_DIR)."
    ),
    name: str | None = Option(
        None, help="The node's name; the host's by default (LOADMASTER_NODE_NAME)."
    ),
    rack: str | None = Option(None, help="The rack it stands in (LOADMASTER_RACK)."),
    emulate: Path | None = Option(None, help="YAML file of emulated GPUs (LOADMASTER_EMULATE)."),
    checkpoints: Path | None = Option(
        None,
        help=(
            "The folder of checkpoints that all nodes share, as this node sees it"
            " (LOADMASTER_CHECKPOINTS)."
        ),
    ),
    runtime: str | None = Option(
        None, help="How jobs are run: process or docker (LOADMASTER_RUNTIME)."
    ),
    docker: list[str] | None = Option(
        None,
        help=(
            "An option of the docker runtime, NAME=VALUE, as often as needed: user, pull,"
            " mounts, network, pids, shm_gb, "
            "read_only, limit_cores, host (LOADMASTER_DOCKER, separated by semicolons)."
        ),
    ),
    address: str | None = Option(
        None,
        help=(
            "Where other nodes reach this one, for gangs over several; found out by default"
            " (LOADMASTER_ADDRESS)."
        ),
    ),
    slots_per_gpu: int | None = Option(
        None,
        help=(
            "Jobs that may share each GPU, until an operator says so"
            " (LOADMASTER_SLOTS_PER_GPU); 1 by default."
        ),
    ),
    mps: bool | None = Option(
        None,
        "--mps/--no-mps",
        help=(
            "Let processes that share a GPU go through NVIDIA's MPS where it is there (they do)."
        ),
    ),
    ca: str | None = Option(None, help="File of certificate authorities (LOADMASTER_CA)."),
    insecure: bool | None = Option(
        None, "--insecure", help="Accept any certificate: for trials only."
    ),
    stop_jobs_on_exit: bool | None = Option(
        None,
        "--stop-jobs-on-exit",
        help="Pre-empt the jobs before leaving; else they go on until adopted.",
    ),
    config: Path | None = Option(None, help="YAML file with any of these settings."),
    log_format: str | None = Option(
        None, help="console or json: lines of text or of JSON on stderr (LOADMASTER_LOG_FORMAT)."
    ),
    verbose: bool = Option(False, "--verbose", help="Tell more."),
) -> None:
    """Run this machine as a node until SIGTERM or Ctrl-C."""
    given = {name: value for name, value in context.params.items() if name != "verbose"}
    given["docker"] = docker or None
    try:
        settings = read_config(given)
    except ConfigError as error:
        typer.echo(f"loadmaster agent: {error}", err=True)
        raise typer.Exit(EXIT_CONFIG) from error
    logs.set_up(settings.log_format, verbose=verbose)
    raise typer.Exit(serve(settings))
