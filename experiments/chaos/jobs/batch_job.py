"""The batch job that runs for CHAOS_RUN_S seconds and ends by itself, with a journal.

With CHAOS_STUBBORN it ignores SIGTERM.
"""

import os
import signal
import sys
import time
from pathlib import Path

from experiments.chaos.jobs.job import JOURNALS
from loadmaster.demo.journals import JobJournal

RUN_S = "CHAOS_RUN_S"
STUBBORN = "CHAOS_STUBBORN"


def main() -> int:
    """Run as a launch of an agent."""
    if os.environ.get(STUBBORN):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with JobJournal.of_this_launch(Path(os.environ[JOURNALS])):
        time.sleep(float(os.environ[RUN_S]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
