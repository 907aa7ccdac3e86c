"""Boot clocks that a test sets, and what machines with such clocks have seen."""

from dataclasses import dataclass

from controlplane.web.storage.watch import Watch


@dataclass
class Machine:
    """A machine whose boot clock is set by hand; all its processes share `watch`."""

    name: str = "a"
    now_s: float = 1000.0

    @property
    def watch(self) -> Watch:
        return Watch(lambda: self.now_s, lambda: self.name)

    def after(self, seconds: float) -> Watch:
        """Let so many seconds go by."""
        self.now_s += seconds
        return self.watch
