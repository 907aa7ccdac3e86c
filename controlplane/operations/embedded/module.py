"""`python -m controlplane.operations.embedded.module NAME ARGUMENTS...` runs `python -m NAME`.

A full disk does not end it: output into its log is lost instead.
"""

import runpy
import sys

from loadmaster.outputs import lose_what_finds_no_room


def main() -> None:
    lose_what_finds_no_room()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
