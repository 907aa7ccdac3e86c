"""What a rank does when another one freezes, speaks half a word, leaves in the wrong moment or says
what nobody understands.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadmaster.training.gangs import agreement as agreement_module
from loadmaster.training.gangs import connection as connection_module
from loadmaster.training.gangs.agreement import Agreement, GangBroken
from loadmaster.training.gangs.connection import (
    AuthenticationError,
    Connection,
    Credentials,
    parse_address,
)
from tests.builders_gang_sites import Site, ending
from tests.builders_gangs import GANG_TOKEN, free_port
from tests.builders_training import until


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    for connection in site.connections:
        connection.close()


def test_a_rank_that_has_arrived_and_dies_before_it_answers_keeps_nobody_waiting(
    site: Site,
) -> None:
    lead, (first, second) = site.met_by(3)
    lead.begin(7)
    why = ending(lead, 7, "preempt")
    assert [first.receive(), second.receive()] == [{"ask": True}] * 2
    first.send(arrived=5)
    first.close()
    second.send(bound=6)
    assert second.receive() == {"last": 7, "reason": "preempt"}
    assert why() == "preempt"


def test_the_last_step_is_told_once_whatever_is_said_afterwards(site: Site) -> None:
    lead, (member,) = site.met_by(2)
    why = ending(lead, 3, "preempt")
    assert member.receive() == {"ask": True}
    member.send(bound=4)
    assert member.receive() == {"last": 4, "reason": "preempt"}
    member.send(bound=9)
    member.send(arrived=4)
    assert why() is None
    assert lead.pass_boundary(4, None) == "preempt"
    assert lead.part(4, 4) == 4
    assert member.receive() == {"parted": True, "saved": 4}


def test_a_rank_that_is_frozen_and_answers_nothing_is_not_waited_for_for_ever(site: Site) -> None:
    lead, (frozen, member) = site.met_by(3, answer_s=0.1)
    why = ending(lead, 3, "preempt")
    member.send(bound=3)
    with pytest.raises(GangBroken, match=r"rank 1 did not answer within 0\.1 s"):
        why()
    assert member.receive() == {"ask": True}
    assert member.receive() == {"lost": "rank 1 did not answer within 0.1 s", "willingly": False}
    assert site.told == ["rank 1 did not answer within 0.1 s"]
    assert frozen.receive() == {"ask": True}


def test_a_rank_that_answered_in_time_is_not_said_to_be_silent(site: Site) -> None:
    lead, (member,) = site.met_by(2)
    member.send(wish="SIGTERM")
    assert member.receive() == {"ask": True}
    member.send(bound=2)
    assert member.receive() == {"last": 2, "reason": "SIGTERM"}
    lead._give_up_asking()
    assert lead.pass_boundary(2, None) == "SIGTERM"
    assert not site.told


@pytest.mark.parametrize(
    "nonsense",
    [
        {"begin": "nonsense"},
        {"begin": {"file": "x", "position": {}, "other": 1}},
        {"begin": {"file": "x"}},
    ],
)
def test_a_lead_that_says_what_cannot_be_understood_breaks_the_gang_and_leaves_nobody_waiting(
    site: Site, nonsense: dict[str, Any]
) -> None:
    with pytest.raises(GangBroken, match="does not understand"):
        site.led(nonsense)


def test_a_line_that_ends_in_the_middle_of_a_word_is_a_lost_rank(site: Site) -> None:
    member, connection = site.led({"begin": None}, {"ask": True})
    until(lambda: member.is_ending, "the question")
    why = ending(member, 2)
    connection._socket.sendall(b'{"last": 3, "reason')
    connection.close()
    with pytest.raises(GangBroken, match="rank 0 was lost"):
        why()


def test_words_that_come_in_pieces_are_heard_whole(site: Site) -> None:
    member, connection = site.led({"begin": None}, {"ask": True})
    until(lambda: member.is_ending, "the question")
    why = ending(member, 3)
    for piece in (b'{"la', b'st": 3, "rea', b'son": "preempt"}', b"\n"):
        connection._socket.sendall(piece)
        time.sleep(0.01)
    assert why() == "preempt"


def test_a_member_whose_lead_has_parted_before_it_could_decide_goes_on_and_ends_when_it_is_told(
    site: Site,
) -> None:
    member, connection = site.led({"begin": None}, {"ask": True}, {"parted": True, "saved": 8})
    until(lambda: member._has_parted, "the goodbye")
    connection.close()
    assert ending(member, 2)() is None
    assert ending(member, 3, "preempt")() == "preempt"
    assert member.part(3, None) == 8
    assert not site.told


def test_a_member_that_had_given_up_the_greeting_may_come_again(site: Site) -> None:
    """The proof came too late for it: it was never there, so nothing is lost."""
    lead = site.lead(2)
    hasty = Connection(socket.create_connection(parse_address(site.address)))
    nonce = hasty.receive()
    assert nonce is not None
    credentials = Credentials(GANG_TOKEN, 2, 1)
    hasty.send(rank=1, nonce="n", proof=credentials.proof("member", 1, f"{nonce['nonce']} n"))
    assert set(hasty.receive() or {}) == {"proof"}
    hasty.close()
    site.played_member(1, 2).send(arrived=0)
    lead.meet(lambda: None, None)
    assert not site.told
    assert lead.part(0, None) is None


def test_who_says_a_byte_now_and_then_is_turned_away_in_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.3)
    lead = site.lead(2)
    dripping = socket.create_connection(parse_address(site.address), 20.0)
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.02):
            try:
                dripping.sendall(b" ")
            except OSError:
                return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    said = b""
    while b"refused" not in said:
        piece = dripping.recv(1024)
        assert piece, "closed without a word"
        said += piece
    ended.set()
    thread.join(20.0)
    dripping.close()
    lead._disconnect()


def test_a_greeting_that_never_ends_is_not_kept(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(socket.create_connection(server.getsockname()))
        theirs, _ = server.accept()
    theirs.sendall(b"x" * 5000)
    with pytest.raises(AuthenticationError):
        connection.authenticate(Credentials(GANG_TOKEN, 2, 1), 1)
    connection.close()
    theirs.close()


def test_a_connection_that_is_gone_before_it_is_taken_does_not_end_the_meeting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = (
        socket.socket.accept,
        [ConnectionAbortedError(), OSError(24, "too many open files")],
    )

    def accept(self: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    lead, _ = site.met_by(2)
    assert not failures
    lead._disconnect()


def test_a_lead_that_hangs_up_blames_no_other_rank(site: Site) -> None:
    for _ in range(20):
        lead, members = site.met_by(4)
        lead._disconnect()
        assert [connection.receive() for connection in members] == [None] * 3
        site.address = f"127.0.0.1:{free_port()}"
    assert not site.told


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_that_is_saving_is_not_ended_by_force_until_it_has_saved_and_could_leave(
    site: Site, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    due: list[Callable[[], object]] = []
    monkeypatch.setattr(
        agreement_module, "start_timer", lambda after_s, function: due.append(function)
    )
    agreement = Agreement(site.on_failure())
    with agreement.saving():
        agreement.break_off("rank 1 was lost")
        thread = threading.Thread(target=due.pop(), daemon=True)
        thread.start()
        changed: Any = agreement.changed  # its waiters are in no stub
        until(lambda: changed._waiters, "the one who ends it to wait")
        assert not site.forced
    thread.join(30.0)
    assert (site.forced, site.told, len(due)) == ([], [], 1)
    if leaves:
        with pytest.raises(GangBroken):
            agreement.pass_boundary(4)
        agreement.leave()
    due.pop()()
    assert (site.forced, site.told) == ([] if leaves else [77], ["rank 1 was lost"])
