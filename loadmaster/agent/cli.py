"""`loadmaster agent`: the command that runs on every node."""

from pathlib import Path

import typer
from typer import Option

from loadmaster.agent import logs
from loadmaster.agent.config import ConfigError, read_config
from loadmaster.agent.start import EXIT_CONFIG, serve

DOCKER_HELP = (
    "An option of the docker runtime, NAME=VALUE, as often as needed: user, pull, mounts, network,"
    " pids, shm_gb, read_only, limit_cores, host. In LOADMASTER_DOCKER semicolons separate them."
)

agent_app = typer.Typer(
    add_completion=False,
    subcommand_metavar="",  # it has no commands of its own
    help="Run this machine as a node: pull the server's decisions and run their jobs.",
    epilog=(
        "All but --config and the flags may stand in the environment: LOADMASTER_SERVER for"
        " --server, and so on; LOADMASTER_NODE_NAME for --name."
    ),
)


@agent_app.callback(invoke_without_command=True)
def agent(
    *,
    context: typer.Context,
    server: str | None = Option(None, help="The server's address."),
    token: str | None = Option(None, help="Enrolment token, needed once; safer in --token-file."),
    token_file: Path | None = Option(None, help="File with the enrolment token."),
    state_dir: Path | None = Option(None, help="The agent's own folder, kept between starts."),
    name: str | None = Option(None, help="The node's name; the host's by default."),
    rack: str | None = Option(None, help="The rack it stands in."),
    emulate: Path | None = Option(None, help="YAML file of emulated GPUs."),
    checkpoints: Path | None = Option(None, help="Folder of checkpoints that all nodes share."),
    runtime: str | None = Option(None, help="How jobs are run: process or docker."),
    docker: list[str] | None = Option(None, help=DOCKER_HELP),
    address: str | None = Option(None, help="Where other nodes reach this one, for gangs."),
    gpu_type: str | None = Option(
        None, help="Offer the GPUs of this type alone, of a machine with several; MIG's too."
    ),
    slots_per_gpu: int | None = Option(
        None, help="Jobs that may share each GPU until an operator says so; 1 by default."
    ),
    mps: bool | None = Option(None, help="Let jobs share GPUs by NVIDIA's MPS (by default)."),
    isolation: str | None = Option(
        None, help="Of processes: auto (as the machine can), or none: all teams share the node."
    ),
    users: str | None = Option(
        None, help="As root: users of the teams, FIRST-LAST; 2000300000-2000399999 by default."
    ),
    mounts: str | None = Option(
        None, help="Folders that isolated processes see: /data,/scratch:rw, say."
    ),
    processes: int | None = Option(
        None, help="Most processes and threads of a job that runs as processes; 16384 by default."
    ),
    ca: str | None = Option(None, help="File of certificate authorities."),
    insecure: bool | None = Option(None, "--insecure", help="Accept any certificate; for trials."),
    stop_jobs_on_exit: bool | None = Option(
        None,
        "--stop-jobs-on-exit",
        help="Pre-empt the jobs before leaving; else they go on until adopted.",
    ),
    config: Path | None = Option(None, help="YAML file with any of these settings."),
    log_format: str | None = Option(None, help="Lines on stderr: text (console) or json."),
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
