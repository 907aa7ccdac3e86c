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
        found = list(client.kinds())
    if shown_as_json(context, as_json, found):
        return
    rows = [
        (
            shown(_name(kind)),
            f"{p['gpus']} x {shown(p['gpu_type'])}",
            "unknown" if p["steps_per_s"] is None else f"{p['steps_per_s']:.3g}",
            "published" if p.get("published") else p["source"],
        )
        for kind in found
        for p in kind["profiles"]
        or [{"gpus": 0, "gpu_type": "-", "steps_per_s": None, "source": "nothing is known"}]
    ]
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


def _name(kind: dict[str, Any]) -> str:
    return str(kind["name"] or kind["digest"][:12])


def _kind(client: Client, name: str) -> dict[str, Any]:
    found = [k for k in client.kinds() if name in (str(k["id"]), k["name"], k["digest"][:12])]
    if len(found) > 1:
        text = f"several kinds are called {name}; take the id, as in `loadmaster kind list --json`"
        fail(text, USAGE)
    if not found:
        fail(f"there is no kind {name}; `loadmaster kind list` lists them")
    return found[0]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(kind_app, name="kind")
