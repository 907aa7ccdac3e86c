"""Member of a gang: any rank but 0, which follows rank 0, its lead."""

import contextlib
import os
import socket
import threading
import time

from loadmaster.training.checkpoints import Checkpoint
from loadmaster.training.gangs.agreement import FailureHandler, GangRank, Leaving, LeftEarlyError
from loadmaster.training.gangs.connection import (
    AuthenticationError,
    Connection,
    Credentials,
    Message,
    parse_address,
)
from loadmaster.training.gangs.lead import LOOK_S, MEET_S
from loadmaster.training.run_folder import TERM_OVER

CONNECT_S = 5.0
"""Longest time in seconds of an attempt to connect."""

AGAIN_S = 0.2
"""Pause in seconds between two attempts."""

LEAD_LOST = "rank 0 was lost before its gang had ended"


class Member(GangRank):
    """A rank that follows the lead. ValueError for a malformed address."""

    finds = False

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        rank: int,
        on_failure: FailureHandler,
        meet_s: float = MEET_S,
    ) -> None:
        self._where = parse_address(address)
        super().__init__(rank, on_failure)
        self._address = address
        self._credentials = credentials
        self._rank = rank
        self._meet_s = meet_s
        self._agreement.say_goodbye = self._say_goodbye
        self._line: Connection | None = None
        self._has_wished = False
        """True once this rank has asked the lead for an agreement on the last step."""

        # Told by the lead, and set by the receiving thread:
        self._has_begun = False
        self._newest: Checkpoint | None = None
        self._is_willing = False
        """True if the lead has said goodbye: it leaves on purpose."""
        self._has_parted = False
        self._saved: int | None = None
        """Step that the lead has saved at its end."""
        self._is_disconnected = False
        os.register_at_fork(after_in_child=self._drop)

    def heeds(self, reason: str) -> bool:
        """Return False for the end of the term, which rank 0 watches alone."""
        return reason != TERM_OVER

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        until_s = time.monotonic() + self._meet_s
        self._line = self._connect(leaving, until_s)
        threading.Thread(target=self._listen, args=(self._line,), name="gang", daemon=True).start()
        try:
            self._wait_for_the_beginning(leaving, until_s)
        except BaseException:
            self._disconnect()
            raise
        return self._newest

    def _wait_for_the_beginning(self, leaving: Leaving, until_s: float) -> None:
        """Wait until the lead begins; raise what ends the launch before that."""
        with self._changed:
            while not self._has_begun:
                if self._agreement.broken:
                    raise self._agreement.fallen()
                reason = leaving()
                if reason:
                    raise LeftEarlyError(reason)
                if time.monotonic() > until_s:
                    text = f"the gang did not begin within {self._meet_s:.0f} s: a rank is missing"
                    raise self._agreement.fallen(text)
                self._changed.wait(LOOK_S)

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        if reason and self._has_parted:
            return reason  # the lead has saved and left: there is nobody to agree with
        if reason and not self._has_wished:
            self._has_wished = True
            self._send(wish=reason)
        return self._agreement.pass_boundary(done)

    def part(self, done: int, saved: int | None) -> int | None:
        """Wait until the lead has saved; other members do not matter."""
        self._agreement.leave()
        self._send(arrived=done)
        with self._changed:
            self._changed.wait_for(lambda: self._has_parted or self._is_disconnected)
        if not self._has_parted:
            raise self._agreement.fallen(LEAD_LOST)
        self._disconnect()
        return self._saved

    def _connect(self, leaving: Leaving, until_s: float) -> Connection:
        """Connect to the lead, again and again until it listens.

        Raises what ends the launch: a reason for leaving, or that the lead was not met in time.
        """
        refusal: AuthenticationError | None = None
        while True:
            try:
                return self._authenticated()
            except (OSError, AuthenticationError) as error:
                # A refusal explains more than the broken connections after it.
                if isinstance(error, AuthenticationError):
                    refusal = error
                reason = leaving()
                if reason:
                    raise LeftEarlyError(reason) from error
                if time.monotonic() > until_s:
                    text = f"rank 0 was not met at {self._address} within {self._meet_s:.0f} s"
                    raise self._agreement.fallen(f"{text}: {refusal or error}") from error
                time.sleep(AGAIN_S)

    def _authenticated(self) -> Connection:
        """Return a new connection to the lead. Raises OSError or AuthenticationError."""
        connection = Connection(socket.create_connection(self._where, CONNECT_S))
        try:
            connection.authenticate(self._credentials, self._rank)
        except (OSError, AuthenticationError):
            connection.close()
            raise
        return connection

    def _listen(self, connection: Connection) -> None:
        """Receive until the connection ends; the training thread must never wait in vain."""
        problem = LEAD_LOST
        try:
            with contextlib.closing(connection):
                while (message := connection.receive()) is not None:
                    self._receive(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text = "this training library does not understand rank 0; use one version"
            problem = f"{text}: {error!r}"
        finally:
            with self._changed:
                self._is_disconnected = True
                self._changed.notify_all()
                if not self._has_parted:
                    self._agreement.break_off(problem, willingly=self._is_willing)

    def _receive(self, message: Message) -> None:
        """Carry out a message of the lead, and wake the training thread."""
        with self._changed:
            match message:
                case {"begin": begin}:
                    self._newest = Checkpoint.of(begin) if begin else None
                    self._has_begun = True
                case {"ask": True}:
                    self._send(bound=self._agreement.promise())
                case {"last": int(last), "reason": str(reason)}:
                    self._agreement.settle(last, reason)
                case {"lost": str(reason), "willingly": bool(willingly)}:
                    self._agreement.break_off(reason, willingly=willingly)
                case {"goodbye": True}:
                    self._is_willing = True
                case {"parted": True, "saved": saved}:
                    self._has_parted = True
                    self._saved = saved
                    self._agreement.release()
            self._changed.notify_all()

    def _send(self, **message: object) -> None:
        if self._line:
            self._line.send(**message)

    def _disconnect(self) -> None:
        if self._line:
            self._line.close()

    def _say_goodbye(self, crashed: bool) -> None:
        if not crashed:
            self._send(goodbye=True)
        self._disconnect()

    def _drop(self) -> None:
        """Leave the connection to the parent, in a forked process."""
        if self._line:
            self._line.drop()
