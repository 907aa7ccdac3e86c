"""Commands about your API tokens."""

from datetime import datetime

import typer
from typer import Argument

from loadmaster.cli.output import Json, connected, out, shown, shown_as_json, table

token_app = typer.Typer(no_args_is_help=True, help="Your API tokens.")


@token_app.command("list")
def token_list(context: typer.Context, as_json: Json = False) -> None:
    """List your tokens: scope, end and last use."""
    with connected(context) as client:
        tokens = client.tokens()
    if shown_as_json(context, as_json, tokens):
        return
    rows = []
    for token in tokens:
        moments = map(_moment, (token.created, token.expiry, token.last_used_at))
        rows.append((shown(token.id), token.scope, *moments))
    table(("TOKEN", "SCOPE", "CREATED", "ENDS", "LAST USED"), rows)


@token_app.command("revoke")
def token_revoke(
    context: typer.Context, token: str = Argument(..., help="Id of the token (see `token list`).")
) -> None:
    """End a token."""
    with connected(context) as client:
        client.revoke(token)
    out().print(f"Token {shown(token)} has ended")


def _moment(moment: datetime | None) -> str:
    """Return a time as the server gives it, to the minute; a dash for none."""
    return f"{moment:%Y-%m-%d %H:%M}" if moment else "-"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(token_app, name="token")
