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
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ANSWER_S = 5.0
"""Seconds for which the agent waits for the daemon to start or to answer."""

logger = logging.getLogger(__name__)


class Mps:
    """The machine's MPS daemon. The program `control` starts it and asks whether it runs.

    Unless the environment names another daemon's pipes, they are below `state_dir`.
    """

    def __init__(
        self, control: Path, state_dir: Path, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._control = control
        self._folder = state_dir / "mps"
        self._operators_pipes = environ.get(PIPES, "")
        self._pipes = self._operators_pipes or str(self._folder / "pipe")
        self._is_failure_logged = False

    @classmethod
    def found(cls, state_dir: Path, environ: Mapping[str, str] = os.environ) -> Mps | None:
        """Return the service, None if this machine lacks its control program."""
        control = shutil.which(CONTROL, path=environ.get("PATH"))
        if not control:
            return None
        return cls(Path(control), state_dir, environ)

    def environment(self, share: float) -> dict[str, str]:
        """Return the variables of a job with a share of a GPU; none for a whole GPU.

        Without a daemon there are none either: then the jobs take turns.
        """
        if share >= 1.0 or not self._runs():
            return {}
        return {PIPES: self._pipes, PERCENTAGE: str(max(1, round(100 * share)))}

    def _runs(self) -> bool:
        """Return True if the daemon answers. The agent's own is started if it does not."""
        is_running = self._answers()
        if not is_running and not self._operators_pipes:
            is_running = self._start()
        if not is_running and not self._is_failure_logged:
            text = "the MPS daemon at %s does not answer; jobs share GPUs without it, by turns"
            logger.warning(text, self._pipes)
        self._is_failure_logged = not is_running
        return is_running

    def _start(self) -> bool:
        """Start the agent's own daemon; return True if it answers."""
        for name in ("", "pipe", "log"):
            private_folder(self._folder / name)
        return self._call(["-d"]) and self._answers()

    def _answers(self) -> bool:
        return Path(self._pipes).is_dir() and self._call([], "get_server_list\n")

    def _call(self, arguments: list[str], text: str = "") -> bool:
        """Run the control program with this input; return True if it succeeds."""
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
