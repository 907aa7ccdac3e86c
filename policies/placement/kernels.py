"""Hot loops, compiled by numba if enabled (NUMBA_DISABLE_JIT=1 runs them uncompiled).

Kernels use only arithmetic that rounds the same way in both: no transcendental functions, no
fast-math, random numbers from integers of their own.
"""

import os
import tempfile
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def cache_folder() -> Path | None:
    """Return the folder of compiled kernels if the package is read-only; None for numba's default.

    Compiled code is loaded from there, so nobody else may be able to write to it.
    """
    if os.environ.get("NUMBA_CACHE_DIR") or os.access(Path(__file__).parent, os.W_OK):
        return None
    for folder in (
        Path.home() / ".cache" / "loadmaster" / "kernels",
        Path(tempfile.gettempdir()) / f"loadmaster-kernels-{os.getuid()}",
    ):
        if _is_private(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="loadmaster-kernels-"))


def _is_private(folder: Path) -> bool:
    """Return True if a folder, made if it is missing, is a real one that only we can write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    is_ours = status.st_uid == os.getuid()
    others_may_write = bool(status.st_mode & 0o022)
    is_usable = not folder.is_symlink() and os.access(folder, os.W_OK)
    return is_ours and not others_may_write and is_usable


class Uncompiled:
    """Kernel that is compiled at its first call: numba takes 70 MB, and web calls none."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        update_wrapper(self, kernel)
        self._kernel = kernel
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        return self.compiled()(*args)

    def compiled(self) -> Callable[..., Any]:
        """Return numba's function, after those of the kernels that this one calls."""
        if self._compiled is None:
            self._compiled = _numba().njit(cache=True)(self._kernel)
            # A compiled kernel can call compiled ones only: put them into its module.
            module_globals = self._kernel.__globals__
            for name in self._kernel.__code__.co_names:
                called = module_globals.get(name)
                if isinstance(called, Uncompiled):
                    module_globals[name] = called.compiled()
        return self._compiled


@cache
def _numba() -> Any:
    """Return the module numba, imported at the first kernel."""
    import numba

    folder = cache_folder()
    if folder is not None:
        vars(numba.config)["CACHE_DIR"] = str(folder)  # numba reads it when a kernel is declared
    return numba


def compiled(kernel: Kernel) -> Kernel:
    """Compile at the first call and keep the result on disk."""
    return cast(Kernel, Uncompiled(kernel))
