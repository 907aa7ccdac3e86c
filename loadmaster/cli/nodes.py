"""Commands about clusters and nodes; all but looking is for operators."""

import sys
from collections.abc import Iterable
from time import sleep
from typing import Annotated, Any

import typer
from typer import Argument, Option

from loadmaster.cli.output import (
    USAGE,
    Json,
    connected,
    exit_on_error,
    fail,
    out,
    show_nodes,
    shown,
    shown_as_json,
    table,
    wants_json,
)
from loadmaster.client import Client
from loadmaster.client.job_file import parse_settings
from loadmaster.client.results import CostSum, Node
from loadmaster.protocol import MOST_SLOTS

NodeName = Annotated[str, Argument(help="The node's name or id.", metavar="NODE")]
InCluster = Annotated[str | None, Option(help="Its cluster; may be left out if there is only one.")]
DRAIN_LOOK_S = 2.0
"""Seconds between two looks at a node that is drained."""

policy_app = typer.Typer(no_args_is_help=True, help="Policies, which decide where jobs run.")
secret_app = typer.Typer(no_args_is_help=True, help="Secrets of a team, for jobs' environments.")


def nodes(context: typer.Context, cluster: InCluster = None, as_json: Json = False) -> None:
    """List nodes."""
    with connected(context) as client:
        its_nodes = list(client.nodes(cluster=cluster))
    if not shown_as_json(context, as_json, its_nodes):
        show_nodes(its_nodes)


def cordon(
    context: typer.Context,
    node: NodeName,
    cluster: InCluster = None,
    reason: str = Option(""),
    as_json: Json = False,
) -> None:
    """Give a node no new jobs; running jobs continue."""
    with connected(context) as client:
        _show_node(context, client.cordon(_node(client, node, cluster).id, reason), as_json)


def uncordon(
    context: typer.Context, node: NodeName, cluster: InCluster = None, as_json: Json = False
) -> None:
    """Give a node new jobs again."""
    with connected(context) as client:
        _show_node(context, client.uncordon(_node(client, node, cluster).id), as_json)


def drain(
    context: typer.Context,
    node: NodeName,
    cluster: InCluster = None,
    until: str | None = Option(
        None, help="Time until which running jobs may go on (ISO 8601); default: move them now."
    ),
    reason: str = Option(""),
    wait: bool = Option(False, "--wait", help="Wait until the node is empty."),
    as_json: Json = False,
) -> None:
    """Move running jobs away from a node and give it no new ones."""
    with connected(context) as client:
        drained = client.drain(_node(client, node, cluster).id, until=until, reason=reason)
        if wait:
            drained = _wait_until_empty(client, drained)
        _show_node(context, drained, as_json)
        if wait and not wants_json(context, as_json):
            out().print(f"{shown(drained.name)} is empty")


def role(
    context: typer.Context,
    node: NodeName,
    new_role: str = Argument(..., help="production, profiling or both.", metavar="ROLE"),
    cluster: InCluster = None,
    as_json: Json = False,
) -> None:
    """Set the role of a node."""
    with connected(context) as client:
        _show_node(context, client.set_role(_node(client, node, cluster).id, new_role), as_json)


def slots(
    context: typer.Context,
    node: NodeName,
    number: int = Argument(
        ..., help="Most jobs on one GPU; 1: no sharing.", metavar="SLOTS", min=1, max=MOST_SLOTS
    ),
    gpu: list[str] | None = Option(None, help="Only the GPU with this uuid; may be repeated."),
    cluster: InCluster = None,
    as_json: Json = False,
) -> None:
    """Set how many jobs may share each GPU of a node."""
    with connected(context) as client:
        changed = client.set_slots(_node(client, node, cluster).id, number, gpu or ())
    if not shown_as_json(context, as_json, changed):
        rows = []
        for device in changed.devices:
            rows.append((shown(device.uuid), device.slots, device.held_slots))
        table(("GPU", "SLOTS", "HELD"), rows)


def reschedule(context: typer.Context, cluster: InCluster = None) -> None:
    """Ask for a round now."""
    with connected(context) as client:
        name = _cluster(client, cluster)
        client.reschedule(name)
    out().print(f"A round of {name} is requested")


def enrol_token(
    context: typer.Context,
    cluster: InCluster = None,
    new_role: str = Option("production", "--role", help="production, profiling or both."),
    valid_h: float = Option(24.0, help="Hours until it expires."),
    node: str = Option("", help="Node whose machine is gone; the new machine takes its place."),
    as_json: Json = False,
) -> None:
    """Make a token that enrols one machine. It is shown only now."""
    with connected(context) as client:
        # A node whose place the machine takes names the cluster too.
        if node:
            cluster = _node(client, node, cluster).cluster
        cluster = _cluster(client, cluster)
        token = client.enrolment_token(cluster, role=new_role, valid_h=valid_h, node=node)
    if not shown_as_json(context, as_json, {"token": token}):
        sys.stdout.write(token + "\n")


@policy_app.command("list")
def policy_list(context: typer.Context, as_json: Json = False) -> None:
    """List the policies to choose from."""
    with connected(context) as client:
        policies = client.policies()
    if shown_as_json(context, as_json, policies):
        return
    rows = []
    for policy in policies:
        parameters: Iterable[str] = ()
        if policy.parameters:
            parameters = policy.parameters.get("properties", ())
        rows.append((policy.name, policy.error or policy.summary, ", ".join(parameters)))
    table(("NAME", "WHAT IT DOES", "PARAMETERS"), rows)


@policy_app.command("show")
def policy_show(context: typer.Context, cluster: InCluster = None, as_json: Json = False) -> None:
    """Show a cluster's policy and parameters."""
    with connected(context) as client:
        _show_policy(context, client.cluster(_cluster(client, cluster)), as_json)


@policy_app.command("set")
def policy_set(
    context: typer.Context,
    name: str = Argument(..., help="Name of the policy.", metavar="POLICY"),
    parameters: list[str] | None = Argument(None, help="name=value; others take defaults."),
    cluster: InCluster = None,
    as_json: Json = False,
) -> None:
    """Choose a cluster's policy and parameters; the next round uses them."""
    with exit_on_error():
        values = parse_settings(parameters or [])
    with connected(context) as client:
        its_name = _cluster(client, cluster)
        changed = client.set_cluster(its_name, policy=name, policy_parameters=values)
        _show_policy(context, changed, as_json)


@secret_app.command("list")
def secret_list(context: typer.Context, team: str, as_json: Json = False) -> None:
    """List the names of a team's secrets."""
    with connected(context) as client:
        names = client.secrets(team)
    if not shown_as_json(context, as_json, names):
        out().print("\n".join(names) or "none")


@secret_app.command("set")
def secret_set(context: typer.Context, team: str, name: str) -> None:
    """Create or replace a secret; its value is asked for or read from stdin."""
    if sys.stdin.isatty():
        value = typer.prompt("Value", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    with connected(context) as client:
        client.set_secret(team, name, value)
    out().print(f"Secret {name} of {team} is set")


@secret_app.command("delete")
def secret_delete(context: typer.Context, team: str, name: str) -> None:
    """Remove a secret."""
    with connected(context) as client:
        client.delete_secret(team, name)
    out().print(f"Secret {name} of {team} is deleted")


def costs(
    context: typer.Context,
    by: str = Option("team", help="Sum by hour, day, node, team or job."),
    period: str | None = Option(None, help="today, 24h, 7d, 30d, month or last-month (7d)."),
    since: str | None = Option(
        None, "--from", help="Instead of a period: the first day or a time (ISO 8601)."
    ),
    until: str | None = Option(None, "--to", help="The last day or a time."),
    cluster: InCluster = None,
    as_json: Json = False,
) -> None:
    """Show energy and cost, billed and predicted."""
    with connected(context) as client:
        bill = client.costs(
            by=by, cluster=_cluster(client, cluster), period=period, since=since, until=until
        )
    if shown_as_json(context, as_json, bill):
        return
    money = (f"COST ({bill.currency})", "PREDICTED")
    energy = ("KWH", "GPUS MEASURED", "MODELLED", "GPU HOURS")
    rows = [_cost_row(costs_of_one) for costs_of_one in (*bill.rows, bill.total)]
    table((by.upper(), *money, *energy), rows)
    if bill.more:
        out().print("There are more rows: the page Costs has all of them as CSV.")


def _cost_row(costs: CostSum) -> tuple[str, ...]:
    """Return the row of an hour, day, node, team or job in the table of costs, or of their sum."""
    predicted = "" if costs.predicted_cost is None else f"{costs.predicted_cost:.4f}"
    return (
        shown(costs.name),
        f"{costs.cost:.4f}",
        predicted,
        f"{costs.kwh:.3f}",
        f"{costs.measured_kwh:.3f}",
        f"{costs.modelled_kwh:.3f}",
        f"{costs.gpu_h:.3f}",
    )


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (nodes, cordon, uncordon, drain, role, slots, reschedule, costs):
        app.command()(command)
    app.command("enrol-token")(enrol_token)
    app.add_typer(policy_app, name="policy")
    app.add_typer(secret_app, name="secret")


def _node(client: Client, name: str, cluster: str | None) -> Node:
    """Return the one node with this name or id; end the program if there is not just one."""
    namesakes = [node for node in client.nodes(cluster=cluster) if name in (node.name, node.id)]
    if len(namesakes) > 1:
        clusters = ", ".join(node.cluster for node in namesakes)
        fail(f"there is a node {name} in {clusters}; add --cluster", USAGE)
    if not namesakes:
        fail(f"there is no node {name}; `loadmaster nodes` lists them")
    return namesakes[0]


def _wait_until_empty(client: Client, node: Node) -> Node:
    """Wait until no job holds a GPU of a node, and return the node as it is then."""
    while True:
        node = _node(client, node.id, None)
        if not any(device.held_slots for device in node.devices):
            return node
        sleep(DRAIN_LOOK_S)


def _cluster(client: Client, name: str | None) -> str:
    """Return the name of the cluster: the given one, else that of the only one there is."""
    if name:
        return name
    names = [str(cluster["name"]) for cluster in client.clusters()]
    if len(names) != 1:
        fail(f"name the cluster with --cluster: {', '.join(names) or 'there is none yet'}", USAGE)
    return names[0]


def _show_node(context: typer.Context, node: Node, as_json: bool) -> None:
    """Print the state and role of a node."""
    if not shown_as_json(context, as_json, node):
        out().print(f"{shown(node.name)} is {node.state}, for {node.role}")


def _show_policy(context: typer.Context, cluster: dict[str, Any], as_json: bool) -> None:
    """Print the policy of a cluster, its parameters, period and seed."""
    fields = ("name", "policy", "policy_parameters", "seed", "period_s")
    if shown_as_json(context, as_json, {field: cluster[field] for field in fields}):
        return
    settings = [f"{name}={value}" for name, value in cluster["policy_parameters"].items()]
    policy = f"{cluster['policy']} ({', '.join(settings) or 'defaults'})"
    out().print(
        f"{cluster['name']}: {policy}, every {cluster['period_s']:g} s, seed {cluster['seed']}"
    )
