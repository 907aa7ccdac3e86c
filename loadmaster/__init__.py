"""What runs outside the server: the client, the command line, the agent and the training library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.client import Client

__all__ = ["Client", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`loadmaster.Client` is imported when it is first asked for: training scripts and agents do without it."""
    if name == "Client":
        from loadmaster.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
