"""What runs outside the server: the client, the command line, the agent and the training
library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.client import Client, LoadmasterError

__all__ = ["Client", "LoadmasterError", "__version__"]

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """`loadmaster.Client` and its error are imported when first asked for: training scripts and
    agents do without them.
    """
    if name in ("Client", "LoadmasterError"):
        from loadmaster import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
