"""Rank 0: accepts the members and agrees with them on the last step."""

import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Collection
from dataclasses import asdict

from loadmaster.training.checkpoints import Checkpoint
from loadmaster.training.gangs.agreement import (
    FailureHandler,
    GangRank,
    Leaving,
    LeftEarlyError,
    start_timer,
)
from loadmaster.training.gangs.connection import (
    AuthenticationError,
    Connection,
    Credentials,
    Message,
    parse_address,
)

MEET_S = 600.0
"""Time for all ranks to connect, after pulling images and reading data."""

PART_S = 60.0
"""Time the lead waits, its checkpoint saved, for ranks in their last step."""

ANSWER_S = 60.0
"""Time for a rank's receiving thread to answer, however long its steps are."""

GOODBYE_S = 2.0
"""Time for the members to hang up at the end."""

LOOK_S = 0.1
"""Time between two looks at the reasons for leaving."""

MOST_UNPROVEN = 64
"""Connections that may be in the handshake at once."""


class Lead(GangRank):
    """Rank 0 of a gang; listens from the beginning. OSError if its port is taken."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        on_failure: FailureHandler,
        meet_s: float = MEET_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        super().__init__(0, on_failure)
        self._credentials = credentials
        self._meet_s = meet_s
        self._answer_s = answer_s
        self._members: dict[int, Connection] = {}
        self._gone: set[int] = set()
        """Ranks whose connection has ended."""
        self._willing: set[int] = set()
        """Ranks that have said goodbye."""
        self._bound: dict[int, int] = {}
        """Step up to which each rank has promised to go."""
        self._arrived: dict[int, int] = {}
        """Last step of each rank that has done all of its steps."""
        self._reason: str | None = None
        """Reason of the agreement on the last step, once it has begun."""
        self._is_decided = False
        self._is_closed = False
        self._unproven = threading.BoundedSemaphore(MOST_UNPROVEN)
        self._server = _listen(*parse_address(address))
        self._agreement.say_goodbye = self._say_goodbye
        os.register_at_fork(after_in_child=self._drop)
        threading.Thread(target=self._accept, name="gang", daemon=True).start()

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        try:
            self._wait_for_all(leaving, time.monotonic() + self._meet_s)
        except BaseException:
            self._disconnect()
            raise
        self._send_to_all(begin=asdict(newest) if newest else None)
        return newest

    def _wait_for_all(self, leaving: Leaving, until_s: float) -> None:
        """Wait until all members are connected; raise what ends the launch before that."""
        with self._changed:
            while len(self._members) < self._credentials.size - 1 and not self._agreement.broken:
                reason = leaving()
                if reason:
                    raise LeftEarlyError(reason)
                if time.monotonic() > until_s:
                    missing = self._others({0, *self._members})
                    text = f"{missing} did not come within {self._meet_s:.0f} s"
                    raise self._agreement.fallen(text)
                self._changed.wait(LOOK_S)
            if self._agreement.broken:
                raise self._agreement.fallen()

    def _others(self, ranks: Collection[int]) -> str:
        """Return the names of all ranks but these."""
        others = [rank for rank in range(self._credentials.size) if rank not in ranks]
        return ", ".join(f"rank {rank}" for rank in others)

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        if reason:
            self._ask(reason)
        return self._agreement.pass_boundary(done)

    def part(self, done: int, saved: int | None) -> int | None:
        """Tell the members what is saved, and wait for their last steps."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._agreement.broken or len(self._arrived) == len(self._members), PART_S
            )
            self._agreement.leave()
        self._send_to_all(parted=True, saved=saved)
        with self._changed:
            self._changed.wait_for(lambda: len(self._gone) == len(self._members), GOODBYE_S)
        self._disconnect()
        return saved

    def _ask(self, reason: str) -> None:
        """Begin the agreement, once: ask all ranks for their promised steps."""
        with self._changed:
            if self._reason is None:
                self._reason = reason
                self._bound = {**self._arrived, 0: self._agreement.promise()}
                self._send_to_all(ask=True)
                self._decide()
                if not self._is_decided:
                    start_timer(self._answer_s, self._give_up_asking)

    def _decide(self) -> None:
        """Settle the last step once all ranks have answered: the farthest that one has promised."""
        all_answered = len(self._bound) == self._credentials.size
        if self._reason is not None and all_answered and not self._is_decided:
            self._is_decided = True
            last = max(self._bound.values())
            self._agreement.settle(last, self._reason)
            self._send_to_all(last=last, reason=self._reason)

    def _give_up_asking(self) -> None:
        """Give up a frozen rank, which keeps its connection but does not answer."""
        with self._changed:
            if not self._is_decided:
                silent = self._others(self._bound)
                self._break_off(f"{silent} did not answer within {self._answer_s:g} s")

    def _receive(self, rank: int, message: Message) -> None:
        """Carry out a message of a member."""
        with self._changed:
            match message:
                case {"wish": str(reason)}:
                    self._ask(reason)
                case {"bound": int(step)}:
                    self._bound[rank] = step
                    self._decide()
                case {"arrived": int(step)}:
                    self._arrived[rank] = step
                    self._bound.setdefault(rank, step)  # asked or not, it goes no further
                    self._decide()
                    self._changed.notify_all()
                case {"goodbye": True}:
                    self._willing.add(rank)

    def _lose(self, rank: int) -> None:
        """Note the end of a member's connection; one before its last step breaks the gang."""
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()
            if rank not in self._arrived and not self._is_closed:  # else this rank hung up
                text = f"rank {rank} was lost before its gang had ended"
                self._break_off(text, willingly=rank in self._willing)

    def _break_off(self, reason: str, *, willingly: bool = False) -> None:
        self._agreement.break_off(reason, willingly=willingly)
        self._send_to_all(lost=reason, willingly=willingly)

    def _send_to_all(self, **message: object) -> None:
        for connection in list(self._members.values()):
            connection.send(**message)

    def _accept(self) -> None:
        """Accept connections until this rank closes, each with a thread of its own."""
        while not self._is_closed:
            try:
                sock, _ = self._server.accept()
            except OSError:  # closed, or the client has gone, or too many open files
                time.sleep(LOOK_S)
                continue
            if self._unproven.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(sock,), name="gang", daemon=True).start()
            else:
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        """Receive the messages of a member from its handshake to the end of its connection."""
        with (
            contextlib.closing(Connection(sock)) as connection,
            contextlib.suppress(AuthenticationError, OSError),
        ):
            rank = self._admit(connection)
            try:
                while (message := connection.receive()) is not None:
                    self._receive(rank, message)
            finally:
                self._lose(rank)

    def _admit(self, connection: Connection) -> int:
        """Return the rank of a new member; raise AuthenticationError for a connection of others."""
        try:
            rank = connection.admit(self._credentials)
        finally:
            self._unproven.release()
        with self._changed:
            if rank in self._members or self._is_closed:
                raise AuthenticationError(f"rank {rank} is there already, or comes too late")
            self._members[rank] = connection
            self._changed.notify_all()
        return rank

    def _disconnect(self) -> None:
        with self._changed:
            self._is_closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._server.close()
        for connection in list(self._members.values()):
            connection.close()

    def _say_goodbye(self, crashed: bool) -> None:
        if not crashed:
            self._send_to_all(goodbye=True)
        self._disconnect()

    def _drop(self) -> None:
        """Leave the connections to the parent, in a forked process."""
        with contextlib.suppress(OSError):
            os.close(self._server.detach())
        for connection in self._members.values():
            connection.drop()


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the published address if it is this machine's own, else on all."""
    family = _family_of_own(host)
    if family:
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _family_of_own(host: str) -> socket.AddressFamily | None:
    """Address family of an IP address of this machine; None if it is not its own."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return None
    return family
