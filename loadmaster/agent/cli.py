"""`loadmaster agent`: the command that runs on every node."""

from pathlib import Path

import typer
from typer import Option

from loadmaster.agent import logs
from loadmaster.agent.config import ConfigError, read_config
from loadmaster.agent.start import EXIT_CONFIG, serve

DOCKER_HELP = (
    "An option of the docker runtime, NAME=VALUE; may be repeated: user, pull, mounts, network,"
    " pids, shm_gb, read_only, limit_cores, host. LOADMASTER_DOCKER separates them by semicolons."
)

agent_app = typer.Typer(
    add_completion=False,
    subcommand_metavar="",  # it has no commands of its own
    help="Run this machine as a node: pull the server's decisions and run their jobs.",
    epilog=(
        "All options except --config and the flags can be set in the environment:"
        " LOADMASTER_SERVER for --server, and so on; LOADMASTER_NODE_NAME for --name."
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
    name: str | None = Option(None, help="The node's name (default: the host's name)."),
    rack: str | None = Option(None, help="The rack of the node."),
    emulate: Path | None = Option(None, help="YAML file of emulated GPUs."),
    checkpoints: Path | None = Option(None, help="Folder of checkpoints that all nodes share."),
    runtime: str | None = Option(None, help="Runtime of jobs: process or docker."),
    docker: list[str] | None = Option(None, help=DOCKER_HELP),
    address: str | None = Option(None, help="Address where other nodes reach this one, for gangs."),
    gpu_type: str | None = Option(
        None, help="Offer only GPUs of this type, also a MIG type; for machines with several types."
    ),
    slots_per_gpu: int | None = Option(
        None, help="Jobs that may share each GPU until an operator changes it (default: 1)."
    ),
    mps: bool | None = Option(None, help="Let jobs share GPUs by NVIDIA MPS (default: yes)."),
    isolation: str | None = Option(
        None, help="Isolation of processes: auto (the best available), or none (all teams share)."
    ),
    users: str | None = Option(
        None, help="As root: user ids for teams, FIRST-LAST (default: 2000300000-2000399999)."
    ),
    mounts: str | None = Option(
        None, help="Folders that isolated processes see, such as /data,/scratch:rw."
    ),
    processes: int | None = Option(
        None, help="Most processes and threads of a job, without a container (default: 16384)."
    ),
    cgroups: str | None = Option(
        None,
        help="Limits that the kernel sets jobs without a container: some of"
        " memory,processes,cores (default: all), or none.",
    ),
    ca: str | None = Option(None, help="File of certificate authorities."),
    insecure: bool | None = Option(
        None, "--insecure", help="Accept any certificate; for tests only."
    ),
    stop_jobs_on_exit: bool | None = Option(
        None,
        "--stop-jobs-on-exit",
        help="Pre-empt the jobs before leaving; else they run on until adopted.",
    ),
    config: Path | None = Option(None, help="YAML file with any of these settings."),
    log_format: str | None = Option(None, help="Form of the log on stderr: text or json."),
    verbose: bool = Option(False, "--verbose", help="Log more."),
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
