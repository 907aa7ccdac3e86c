"""Wall clocks of programs, moved by a library that is built with cc and loaded before others."""

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from loadmaster.training.run_folder import boot_s

SOURCE = Path(__file__).with_name("wall_clock.c")
_FORM = struct.Struct("=3d")


class ClockError(Exception):
    """The library cannot be built; the message has what the compiler said."""


@dataclass(frozen=True, slots=True)
class WallClocks:
    """Clocks in a folder, by the name of their program; all of them true at first."""

    folder: Path

    @property
    def library(self) -> Path:
        """The library, to be preloaded."""
        return self.folder / "wall_clock.so"

    def build(self) -> None:
        """Compile the library. Raises ClockError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self.library), str(SOURCE), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ClockError(f"clock jumps need a C compiler (cc): {error}") from error
        if done.returncode:
            raise ClockError(f"the wall clocks cannot be built:\n{done.stderr}")

    def environment(self, name: str) -> dict[str, str]:
        """Variables that give a program the clock of that name."""
        path = self._path(name)
        if not path.exists():
            path.write_bytes(_FORM.pack(0.0, 0.0, 0.0))
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(path)}

    def move(self, name: str, seconds: float, drift: float = 0.0) -> None:
        """Set a clock so many seconds ahead, drifting by a fraction of the time from now on."""
        with self._path(name).open("r+b") as file:
            file.write(_FORM.pack(seconds, drift, boot_s()))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.clock"
