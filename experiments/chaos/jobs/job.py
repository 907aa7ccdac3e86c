"""The job that chaos runs: steps that only count, with a journal of its own in CHAOS_JOURNALS.

With CHAOS_SAVE_S a checkpoint takes so many seconds, so that the job needs most of its grace to
leave. Of a gang only rank 0 journals steps: the others do the same ones.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from loadmaster import training
from loadmaster.demo.journals import JobJournal
from loadmaster.training.checkpoints import MANIFEST, Manifest

JOURNALS = "CHAOS_JOURNALS"
SAVE_S = "CHAOS_SAVE_S"
EVERY = "LOADMASTER_CHECKPOINT_EVERY_S"
EVERY_S = 0.7
SLOW_EVERY_S = 6.0
BATCHES = 1 << 40


class Counting:
    """Training whose whole state is the number of steps done."""

    def __init__(self, journal: JobJournal, checkpoints: Path, save_s: float, rank: int) -> None:
        self._journal = journal
        self._manifest = checkpoints / MANIFEST
        self._save_s = save_s
        self._leads = rank == 0
        self._done = 0
        self._saved = 0
        self._has_begun = False

    def run(self) -> None:
        """Do the job's steps, or those that this launch gets to do."""
        try:
            for _ in training.steps(range(BATCHES), save=self._save, load=self._load):
                self._note_saved()
                self._note_beginning()
                self._done += 1
                if self._leads:
                    self._journal.step(self._done)
        finally:
            self._note_saved()

    def _save(self, path: Path) -> None:
        time.sleep(self._save_s)
        path.write_text(str(self._done))

    def _load(self, path: Path) -> None:
        self._done = int(path.read_text())
        self._note_beginning()

    def _note_beginning(self) -> None:
        """Journal once after how many steps this launch goes on; 0 without a checkpoint."""
        if not self._has_begun and self._leads:
            self._journal.resumed(self._done)
        self._has_begun = True

    def _note_saved(self) -> None:
        """Journal a checkpoint once the manifest names it: only then does it count."""
        with contextlib.suppress(FileNotFoundError):
            newest = Manifest.from_json(self._manifest.read_bytes()).checkpoints[-1:]
            if self._leads and newest and newest[0].position.step > self._saved:
                self._saved = newest[0].position.step
                self._journal.saved(self._saved)


def main() -> int:
    """Run as a launch of an agent."""
    save_s = float(os.environ.get(SAVE_S, "0"))
    os.environ[EVERY] = f"{SLOW_EVERY_S if save_s else EVERY_S:g}"
    checkpoints = Path(os.environ["LOADMASTER_CHECKPOINT_DIR"])
    rank = int(os.environ.get("LOADMASTER_RANK", "0"))
    with JobJournal.of_this_launch(Path(os.environ[JOURNALS])) as journal:
        Counting(journal, checkpoints, save_s, rank).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
