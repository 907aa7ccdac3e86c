"""Calls of NVML by the functions' names, with failures in NVML's own words.

A call may fail at any time for any GPU, and older versions lack functions. A failure says that this
GPU does not tell the value, that this GPU is broken, or something else.
"""

from pathlib import Path
from typing import Any

UNAVAILABLE = ("not supported", "function not found", "insufficient permissions", "no data")
UNAVAILABLE_CODES = (3, 4, 13, 21, 25, 26)
"""Words and codes of failures that say that a GPU or its driver does not tell a value.

NVML_ERROR_NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, ARGUMENT_VERSION_MISMATCH,
DEPRECATED.
"""

BROKEN = ("lost", "fallen off", "reset required", "requires reset", "needs a reset")
BROKEN_CODES = (15, 16)
"""Words and codes of failures that say that the GPU is broken: NVML_ERROR_GPU_IS_LOST,
RESET_REQUIRED."""

NO_DRIVER = ("library not found", "driver not loaded", "driver is not loaded")
NO_DRIVER_CODES = (9, 12)
"""Words and codes of a machine without a driver: NVML_ERROR_DRIVER_NOT_LOADED,
LIBRARY_NOT_FOUND."""

LONGEST_WORDS = 150

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"
"""Beginning of the PCI class of displays and 3D controllers."""


class NvmlError(Exception):
    """A failed call of NVML; the text is NVML's own.

    `is_unavailable`: the GPU does not tell the value; `is_broken`: the GPU is lost or needs a
    reset; `is_no_driver`: NVML found no driver.
    """

    def __init__(self, words: str, code: int | None = None) -> None:
        super().__init__(words)
        self.code = code
        self.is_unavailable = self._is(UNAVAILABLE_CODES, UNAVAILABLE)
        self.is_broken = self._is(BROKEN_CODES, BROKEN)
        self.is_no_driver = self._is(NO_DRIVER_CODES, NO_DRIVER)

    def _is(self, codes: tuple[int, ...], words: tuple[str, ...]) -> bool:
        """Compare the code; words only for a binding that gives no codes."""
        if self.code is not None:
            return self.code in codes
        text = str(self).lower()
        return any(word in text for word in words)

    @classmethod
    def of(cls, error: Exception) -> "NvmlError":
        """Describe an exception that a call of NVML raised; pynvml's have a code as `value`."""
        words = printable(str(error)) or type(error).__name__
        code = getattr(error, "value", None)
        if not isinstance(code, int):
            code = None
        return cls(words, code)


class Nvml:
    """Calls of an NVML binding (pynvml), by the functions' names."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what the function of that name answers. Raises NvmlError."""
        function = getattr(self.library, name, None)
        if function is None:
            raise NvmlError(f"{name}: function not found in this version of pynvml")
        try:
            return function(*arguments)
        except Exception as error:  # of any type: a binding's own errors must not end the agent
            raise NvmlError.of(error) from error

    def read(self, name: str, *arguments: Any) -> Any | None:
        """Return what the function answers, None if it fails; NvmlError if the GPU is broken."""
        try:
            return self.call(name, *arguments)
        except NvmlError as failure:
            if failure.is_broken:
                raise
            return None

    def text(self, name: str, *arguments: Any) -> str:
        """Return the printable text that the function answers. Raises NvmlError."""
        answer = self.call(name, *arguments)
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
        line = printable(text)
        if not line:
            raise NvmlError(f"{name} answers with an empty text")
        return line

    def number(self, name: str, *arguments: Any) -> float | None:
        """Return the number that the function answers, None if it fails or answers otherwise.

        Raises NvmlError if the GPU is broken.
        """
        answer = self.read(name, *arguments)
        return float(answer) if isinstance(answer, (int, float)) else None


def printable(text: str) -> str:
    """Return the text on one line, without control characters, cut to LONGEST_WORDS."""
    line = " ".join(text.split())
    kept = [character if character.isprintable() else "?" for character in line]
    return "".join(kept)[:LONGEST_WORDS]


def has_nvidia_hardware(devices: Path = PCI_DEVICES) -> bool:
    """Return True if a display device of NVIDIA is on the machine's PCI bus."""
    for device in devices.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:  # it went from the bus meanwhile
            continue
        if vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASS):
            return True
    return False
