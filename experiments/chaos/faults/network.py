"""Networks for agents: a bridge, a namespace and a link each. Needs root and iproute2."""

from __future__ import annotations

import contextlib
import subprocess
from types import TracebackType

PREFIX = "lmch"


class NetworkError(Exception):
    """The networks cannot be made; the message has what `ip` or `iptables` said."""


class Network:
    """A bridge at `host` with `agents` namespaces; use as a context manager. Names and addresses
    are made from `number`.

    What a killed run of the same number has left is removed first.
    """

    def __init__(self, agents: int, number: int) -> None:
        self._agents = agents
        self._bridge = f"{PREFIX}{number}"
        self._net = f"10.{200 + number // 250 % 50}.{number % 250}"
        self.host = f"{self._net}.1"
        """The address at which agents find the server."""

    def prefix(self, number: int) -> tuple[str, ...]:
        """Prefix that makes a command run in the agent's namespace."""
        return ("ip", "netns", "exec", self._namespace(number))

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        self._remove()
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "address", "add", f"{self.host}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        _run(*self._forwarding("-I"))
        for number in range(self._agents):
            space, outside, inside = self._namespace(number), self._outside(number), "eth0"
            _run("ip", "netns", "add", space)
            _run(
                "ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space
            )
            _run("ip", "link", "set", outside, "master", self._bridge, "up")
            _run(
                "ip", "-n", space, "address", "add", f"{self._net}.{10 + number}/24", "dev", inside
            )
            _run("ip", "-n", space, "link", "set", inside, "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def _forwarding(self, change: str) -> tuple[str, ...]:
        """Command that lets ranks of a gang reach each other where others, as Docker, forbid it."""
        way = ("-i", self._bridge, "-o", self._bridge)
        return ("iptables", "-w", change, "FORWARD", *way, "-j", "ACCEPT")

    def _remove(self) -> None:
        with contextlib.suppress(NetworkError):
            _run(*self._forwarding("-D"))
        with contextlib.suppress(NetworkError):
            _run("ip", "link", "delete", self._bridge)
        for number in range(self._agents):
            with contextlib.suppress(NetworkError):
                _run("ip", "link", "delete", self._outside(number))
            with contextlib.suppress(NetworkError):
                _run("ip", "netns", "delete", self._namespace(number))

    def cut(self, number: int, how: str) -> None:
        """Cut an agent's link: `down`, `drop-both`, `drop-out` (to the server), `drop-in`."""
        if how == "down":
            _run("ip", "link", "set", self._outside(number), "down")
            return
        chains = {"drop-both": ("INPUT", "OUTPUT"), "drop-out": ("OUTPUT",), "drop-in": ("INPUT",)}[
            how
        ]
        for chain in chains:
            _run(
                *self.prefix(number),
                "iptables",
                "-w",
                "-A",
                chain,
                "-i" if chain == "INPUT" else "-o",
                "eth0",
                "-j",
                "DROP",
            )

    def mend(self, number: int) -> None:
        """Put the link back, however it was cut."""
        _run("ip", "link", "set", self._outside(number), "up")
        _run(*self.prefix(number), "iptables", "-w", "-F")

    def _namespace(self, number: int) -> str:
        return f"{self._bridge}-{number}"

    def _outside(self, number: int) -> str:
        return f"{self._bridge}v{number}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(
            f"{' '.join(command)}: {done.stderr.strip()} (partitions need root, iproute2 and"
            " iptables)"
        )
