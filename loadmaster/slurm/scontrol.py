"""`scontrol` inside a batch script: lists of nodes."""

import os
import sys
from collections.abc import Sequence

from loadmaster.slurm.nodelists import NodeListError, compress, expand


def main() -> int:
    """Do as the command line says; its exit code."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[:1] == ["show"] and words[1:2] in (["hostnames"], ["hostlist"], ["hostlistsorted"]):
        return _show_list(words[1], words[2:])
    return 1


def _show_list(what: str, words: Sequence[str]) -> int:
    """Print nodes, by default the job's: a line for each, or all as one list."""
    text = words[0] if words else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = expand(text)
    except NodeListError as error:
        print(f"scontrol: error: {error}", file=sys.stderr)
        return 1
    if what == "hostlistsorted":
        names.sort()
    print("\n".join(names) if what == "hostnames" else compress(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
