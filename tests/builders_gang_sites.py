"""One real rank in this process, and connections by which a test plays the others."""

import socket
import threading
from collections.abc import Callable
from typing import Any

from loadmaster.training.gangs.agreement import FailureHandler, GangBroken
from loadmaster.training.gangs.connection import Connection, Credentials, parse_address
from loadmaster.training.gangs.lead import Lead
from loadmaster.training.gangs.member import Member
from tests.builders_gangs import GANG_TOKEN, MEET_S, free_port


class Site:
    """One rank that is real, and the ends of connections by which a test plays the others."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.told: list[str] = []
        self.forced: list[int] = []
        self.connections: list[Connection] = []

    def on_failure(self, stuck_s: float = 1000.0) -> FailureHandler:
        return FailureHandler(self.told.append, self.forced.append, stuck_s, 0.1)

    def lead(self, size: int, answer_s: float = 1000.0) -> Lead:
        return Lead(
            self.address, Credentials(GANG_TOKEN, size, 1), self.on_failure(), MEET_S, answer_s
        )

    def played_member(self, rank: int, size: int) -> Connection:
        """A member's end of the connection, introduced."""
        connection = Connection(socket.create_connection(parse_address(self.address)))
        connection.authenticate(Credentials(GANG_TOKEN, size, 1), rank)
        self.connections.append(connection)
        return connection

    def met_by(self, size: int, answer_s: float = 1000.0) -> tuple[Lead, list[Connection]]:
        """A lead that has met members that are played, none of which has said anything yet."""
        lead = self.lead(size, answer_s)
        members = [self.played_member(rank, size) for rank in range(1, size)]
        lead.meet(lambda: None, None)
        assert [connection.receive() for connection in members] == [{"begin": None}] * (size - 1)
        return lead, members

    def led(self, *words: dict[str, Any]) -> tuple[Member, Connection]:
        """A member that has met, or is about to meet, a lead that is played and has said these
        words.
        """
        member = Member(self.address, Credentials(GANG_TOKEN, 2, 1), 1, self.on_failure(), MEET_S)
        with socket.create_server(parse_address(self.address)) as server:
            meeting = Meeting(member)
            connection = Connection(server.accept()[0])
            connection.admit(Credentials(GANG_TOKEN, 2, 1))
        self.connections.append(connection)
        for each in words:
            connection.send(**each)
        meeting.end()
        return member, connection


class Meeting:
    """A member's meeting, in a thread, because the test plays the other side of it; what it raises
    comes out at its end.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._meet, daemon=True)
        self._thread.start()

    def _meet(self) -> None:
        try:
            self._member.meet(lambda: None, None)
        except BaseException as error:
            self._raised.append(error)

    def end(self) -> None:
        self._thread.join(30.0)
        assert not self._thread.is_alive(), "it hangs"
        if self._raised:
            raise self._raised[0]


def ending(rank: Lead | Member, done: int, reason: str | None = None) -> Callable[[], str | None]:
    """The rank at a boundary, in a thread that must come back; call it to learn with what."""
    found: list[str | GangBroken | None] = []

    def pass_it() -> None:
        try:
            found.append(rank.pass_boundary(done, reason))
        except GangBroken as broken:
            found.append(broken)

    thread = threading.Thread(target=pass_it, daemon=True)
    thread.start()

    def result() -> str | None:
        thread.join(30.0)
        assert not thread.is_alive(), "the rank hangs"
        if isinstance(found[0], GangBroken):
            raise found[0]
        return found[0]

    return result
