"""The batch job that outlives its walltime: it lives until its guard ends it, and keeps a journal.

With CHAOS_STUBBORN it ignores SIGTERM, so that it lives through the grace as well.
"""

import os
import signal
import sys
import time
from pathlib import Path

from experiments.chaos.jobs.batch_job import STUBBORN
from experiments.chaos.jobs.job import JOURNALS
from loadmaster.demo.journals import JobJournal


def main() -> int:
    """Run as a launch of an agent; never return."""
    if os.environ.get(STUBBORN):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with JobJournal.of_this_launch(Path(os.environ[JOURNALS])):
        while True:
            time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
