"""Everything outside the server: client, command line, agent, training library."""

from typing import TYPE_CHECKING

from loadmaster.version import __version__

if TYPE_CHECKING:
    from loadmaster.client import Client, LoadmasterError

__all__ = ["Client", "LoadmasterError", "__version__"]


def __getattr__(name: str) -> object:
    """Import `loadmaster.Client` and its error on first use only."""
    if name in ("Client", "LoadmasterError"):
        from loadmaster import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
