"""Commands about kinds: known speeds of jobs, and measuring them anew."""

from typing import Any

import typer
from typer import Argument

from loadmaster.cli.output import USAGE, Json, connected, fail, out, shown, shown_as_json, table
from loadmaster.client import Client

kind_app = typer.Typer(no_args_is_help=True, help="Speeds of jobs, by kind.")


@kind_app.command("list")
def kind_list(context: typer.Context, as_json: Json = False) -> None:
    """List kinds with their speed on each GPU type, and the source of each number."""
    with connected(context) as client:
        kinds = list(client.kinds())
    if shown_as_json(context, as_json, kinds):
        return
    rows = []
    for kind in kinds:
        name = shown(_name(kind))
        for profile in kind["profiles"]:
            rows.append((name, *_speed(profile)))
        if not kind["profiles"]:
            rows.append((name, "0 x -", "unknown", "nothing is known"))
    table(("KIND", "GPUS", "STEPS/S", "SOURCE"), rows)


@kind_app.command("forget")
def kind_forget(
    context: typer.Context,
    name: str = Argument(..., help="The kind's name or id.", metavar="KIND"),
    as_json: Json = False,
) -> None:
    """Measure a kind again (operators). Its numbers stay as estimates until then."""
    with connected(context) as client:
        kind = client.forget_kind(int(_kind(client, name)["id"]))
    if not shown_as_json(context, as_json, kind):
        text = "will be measured anew; its numbers stay as estimates until then"
        out().print(f"{shown(_name(kind))} {text}")


def _speed(profile: dict[str, Any]) -> tuple[str, str, str]:
    """Return the GPUs of a kind's profile, its steps per second, and their source."""
    gpus = f"{profile['gpus']} x {shown(profile['gpu_type'])}"
    speed = "unknown"
    if profile["steps_per_s"] is not None:
        speed = f"{profile['steps_per_s']:.3g}"
    source = "published" if profile.get("published") else profile["source"]
    return gpus, speed, source


def _name(kind: dict[str, Any]) -> str:
    """Return the name of a kind; one without a name is called by its digest."""
    return str(kind["name"] or kind["digest"][:12])


def _kind(client: Client, name: str) -> dict[str, Any]:
    """Return the one kind with this name or id; end the program if there is not just one."""
    namesakes = []
    for kind in client.kinds():
        if name in (str(kind["id"]), kind["name"], kind["digest"][:12]):
            namesakes.append(kind)
    if len(namesakes) > 1:
        text = f"several kinds are called {name}; take the id, as in `loadmaster kind list --json`"
        fail(text, USAGE)
    if not namesakes:
        fail(f"there is no kind {name}; `loadmaster kind list` lists them")
    return namesakes[0]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(kind_app, name="kind")
