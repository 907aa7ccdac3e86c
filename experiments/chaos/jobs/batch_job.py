"""The batch job that runs for CHAOS_RUN_S seconds and ends by itself, with a journal."""

import os
import sys
import time
from pathlib import Path

from experiments.chaos.jobs.job import JOURNALS
from loadmaster.demo.journals import JobJournal

RUN_S = "CHAOS_RUN_S"


def main() -> int:
    """Run as a launch of an agent."""
    with JobJournal.of_this_launch(Path(os.environ[JOURNALS])):
        time.sleep(float(os.environ[RUN_S]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
