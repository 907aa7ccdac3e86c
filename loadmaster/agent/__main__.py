"""`python -m loadmaster.agent`: the same as `loadmaster agent`."""

import sys
from collections.abc import Sequence

from loadmaster.agent.cli import agent_app


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent with these arguments (by default the process's); its exit status."""
    result = agent_app(
        args=list(argv) if argv is not None else None,
        prog_name="loadmaster agent",
        standalone_mode=False,
    )
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
