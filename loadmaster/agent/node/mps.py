"""NVIDIA's Multi-Process Service: jobs that share a GPU run side by side instead of by turns.

The daemon is the one that CUDA_MPS_PIPE_DIRECTORY names, or the agent's own, which outlives it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from loadmaster.files import private_folder

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PART = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ANSWER_S = 5.0
"""Time for the daemon to answer or to start: the agent waits for it."""

logger = logging.getLogger(__name__)


class Mps:
    """The machine's MPS daemon: `control` starts and asks it; its pipes lie in `state_dir`."""

    def __init__(
        self, control: Path, state_dir: Path, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._control, self._folder = control, state_dir / "mps"
        self._given = environ.get(PIPES, "")
        self._pipes = self._given or str(self._folder / "pipe")
        self._complained = False

    @classmethod
    def found(cls, state_dir: Path, environ: Mapping[str, str] = os.environ) -> Mps | None:
        """The service, if this machine has its control program."""
        control = shutil.which(CONTROL, path=environ.get("PATH"))
        return cls(Path(control), state_dir, environ) if control else None

    def environment(self, share: float) -> dict[str, str]:
        """Variables for a share of a GPU under MPS; none for a whole GPU or without it."""
        if share >= 1.0 or not self._runs():
            return {}
        return {PIPES: self._pipes, PART: str(max(1, round(100 * share)))}

    def _runs(self) -> bool:
        """Return True if the daemon answers; the agent's own is started where it does not."""
        runs = self._answers() or (not self._given and self._start())
        if not runs and not self._complained:
            text = "the MPS daemon at %s does not answer; jobs share GPUs without it, by turns"
            logger.warning(text, self._pipes)
        self._complained = not runs
        return runs

    def _start(self) -> bool:
        for name in ("", "pipe", "log"):
            private_folder(self._folder / name)
        return self._call(["-d"]) and self._answers()

    def _answers(self) -> bool:
        return Path(self._pipes).is_dir() and self._call([], "get_server_list\n")

    def _call(self, arguments: list[str], text: str = "") -> bool:
        environment = {**os.environ, PIPES: self._pipes, LOGS: str(self._folder / "log")}
        try:
            done = subprocess.run(
                [str(self._control), *arguments],
                input=text,
                env=environment,
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            logger.debug("%s: %s", self._control, error)
            return False
        return done.returncode == 0
