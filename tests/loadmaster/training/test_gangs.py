"""The ranks of a gang agree on their last step, whoever wants to end and however far each is; and
fall together.
"""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.training.gangs import gang_of
from loadmaster.training.gangs.agreement import Agreement, FailureHandler, Gang, GangBroken
from loadmaster.training.gangs.connection import (
    AuthenticationError,
    Connection,
    Credentials,
    is_free,
    join_address,
    parse_address,
)
from loadmaster.training.run_folder import JobEnvironment, JobEnvironmentError
from tests.builders_gangs import GANG_TOKEN, LostError, Threads, free_port


def wants(rank: int, step: int, reason: str = "preempt") -> Callable[[int, int], str | None]:
    """A wish of one rank from a step on."""
    return lambda r, s: reason if r == rank and s >= step else None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(2, 4), data=st.data())
def test_ranks_in_lockstep_end_on_the_same_step_and_none_waits_for_one_that_has_left(
    size: int, data: st.DataObject
) -> None:
    rank, step, begin = (
        data.draw(st.integers(0, size - 1)),
        data.draw(st.integers(0, 12)),
        data.draw(st.integers(0, 5)),
    )
    together = threading.Barrier(size)
    gang = Threads(size, lambda *_: together.wait(20.0), wants(rank, begin + step), begin=begin)
    ended = gang.run()
    (last,) = {end.step for end in ended}
    assert {end.why for end in ended} == {"preempt"}
    assert last >= begin + step
    assert rank or last <= begin + step + 1, "what rank 0 wants needs no time to reach it"


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(2, 4), seed=st.integers(0, 10_000))
def test_ranks_that_run_freely_all_go_on_to_the_step_of_the_furthest(size: int, seed: int) -> None:
    rolls = [random.Random(seed + rank) for rank in range(size)]
    gang = Threads(
        size,
        lambda rank, _: time.sleep(rolls[rank].uniform(0.0, 0.004)),
        wants(rolls[0].randrange(size), 5),
    )
    ended = gang.run()
    assert len({end.step for end in ended}) == 1
    assert {end.why for end in ended} == {"preempt"}


def test_several_ranks_that_want_to_end_at_once_are_of_one_mind() -> None:
    together = threading.Barrier(3)
    reasons = ("preempt", "SIGTERM", "stop")
    gang = Threads(
        3, lambda *_: together.wait(20.0), lambda rank, step: reasons[rank] if step >= 3 else None
    )
    ended = gang.run()
    assert len({end.step for end in ended}) == 1
    assert {end.why for end in ended} in [{why} for why in reasons]


def test_a_job_that_is_done_ends_on_all_ranks_with_what_the_lead_has_saved() -> None:
    ended = Threads(3, total=20).run()
    assert [(end.step, end.why, end.fell) for end in ended] == [(20, "", [])] * 3


def test_that_its_term_is_over_is_for_rank_0_to_say() -> None:
    together = threading.Barrier(2)
    gang = Threads(2, lambda *_: together.wait(20.0), wants(1, 2, "term"), total=10)
    assert [(end.step, end.why) for end in gang.run()] == [(10, ""), (10, "")]
    together.reset()
    gang = Threads(2, lambda *_: together.wait(20.0), wants(0, 2, "term"), total=10)
    assert {end.why for end in gang.run()} == {"term"}


def test_a_rank_that_is_lost_ends_the_others_with_its_name() -> None:
    def train(rank: int, step: int) -> None:
        if (rank, step) == (1, 5):
            gang.gangs[1]._line.close()  # type: ignore[attr-defined]  # a member's own
            raise LostError
        time.sleep(0.005)

    gang = Threads(3, train)
    ended = gang.run()
    for rank in (0, 2):
        assert ended[rank].why == "broken: rank 1 was lost before its gang had ended"
        assert ended[rank].fell == ["rank 1 was lost before its gang had ended"]


def test_a_lead_that_is_lost_ends_the_others() -> None:
    def train(rank: int, step: int) -> None:
        if (rank, step) == (0, 5):
            gang.gangs[0]._disconnect()  # type: ignore[attr-defined]  # a member's own
            raise LostError
        time.sleep(0.005)

    gang = Threads(3, train)
    ended = gang.run()
    assert [ended[rank].why for rank in (1, 2)] == [
        "broken: rank 0 was lost before its gang had ended"
    ] * 2


def test_a_rank_that_waits_for_a_lost_one_is_ended_by_force() -> None:
    released = threading.Event()

    def train(rank: int, step: int) -> None:
        if step == 3 and rank == 1:
            gang.gangs[1]._line.close()  # type: ignore[attr-defined]  # a member's own
            raise LostError
        if step == 3:
            released.wait(20.0)

    gang = Threads(2, train, stuck_s=0.1)
    with gang.running():
        while not gang.ended[0].forced:
            time.sleep(0.01)
        released.set()
    assert gang.ended[0].forced == [77]
    assert gang.ended[0].fell == ["rank 1 was lost before its gang had ended"]


def test_what_becomes_of_others_does_not_matter_to_a_rank_that_has_parted() -> None:
    told: list[str] = []
    agreement = Agreement(
        FailureHandler(told.append, lambda code: told.append(str(code)), 0.0, 0.0)
    )
    agreement.leave()
    agreement.break_off("rank 1 was lost")
    time.sleep(0.05)
    assert (agreement.broken, told) == (None, [])


def test_a_stranger_is_turned_away_and_does_not_keep_the_gang_from_meeting() -> None:
    gang = Threads(2, total=3)
    lead = gang.rank(0)
    for stranger in (
        Credentials("another token", 2, 1),
        Credentials(GANG_TOKEN, 2, 7),
        Credentials(GANG_TOKEN, 3, 1),
    ):
        connection = Connection(socket.create_connection(parse_address(gang.address)))
        with (
            contextlib.closing(connection),
            pytest.raises(AuthenticationError, match="another launch's"),
        ):
            connection.authenticate(stranger, 1)
    with gang.running([1]):
        lead.meet(lambda: None, None)
        lead.part(3, 3)
    assert gang.ended[1].step == 3


def test_a_connection_that_says_nothing_does_not_keep_the_gang_from_meeting() -> None:
    gang = Threads(2, total=3)
    lead = gang.rank(0)
    with socket.create_connection(parse_address(gang.address)):
        with gang.running([1]):
            lead.meet(lambda: None, None)
            lead.part(3, 3)
        assert gang.ended[1].step == 3


def test_a_second_process_that_says_it_is_the_same_rank_is_turned_away() -> None:
    gang = Threads(2, total=3)
    lead = gang.rank(0)
    with gang.running([1]):
        lead.meet(lambda: None, None)
        connection = Connection(socket.create_connection(parse_address(gang.address)))
        connection.authenticate(Credentials("the token of the launch", 2, 1), 1)
        assert connection.receive() is None
        connection.close()
        lead.part(3, 3)
    assert gang.ended[1].step == 3


def test_the_lead_proves_who_it_is_too() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    connection = Connection(socket.create_connection(server.getsockname()))
    impostor = Connection(server.accept()[0])
    impostor.send(nonce="1")
    impostor.send(proof="guessed")
    with pytest.raises(AuthenticationError, match="not this launch's rank 0"):
        connection.authenticate(Credentials("token", 2, 1), 1)
    for each in (connection, impostor, server):
        each.close()


def test_a_rank_that_is_told_to_leave_before_its_gang_has_met_leaves() -> None:
    gang = Threads(2, leaving=lambda rank: "cancel")
    gang.run([1])
    assert gang.ended[1].why == "early: cancel"
    gang.run([0])
    assert gang.ended[0].why == "early: cancel"


def test_a_gang_whose_ranks_do_not_come_says_which() -> None:
    gang = Threads(3, meet_s=0.2)
    assert gang.run([0])[0].why == "broken: rank 1, rank 2 did not come within 0 s"
    assert "rank 0 was not met at 127.0.0.1" in gang.run([1])[1].why


def test_a_launch_of_one_rank_asks_nobody() -> None:
    gang = gang_of(JobEnvironment(), str)
    assert type(gang) is Gang
    assert (gang.leads, gang.pass_boundary(3, "preempt"), gang.pass_boundary(3, None)) == (
        True,
        "preempt",
        None,
    )
    assert not Gang(1).leads


@pytest.mark.parametrize(
    ("address", "token", "word"),
    [
        ("127.0.0.1", "t", "LOADMASTER_GANG: an address"),
        ("127.0.0.1:1", "", "LOADMASTER_GANG_TOKEN"),
    ],
)
def test_an_address_or_a_token_that_is_none_is_named(address: str, token: str, word: str) -> None:
    with pytest.raises(JobEnvironmentError, match=word):
        gang_of(JobEnvironment(world_size=2, gang=address, gang_token=token), str)


def test_a_lead_whose_port_is_taken_falls_and_says_so() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = join_address(*server.getsockname())
        with pytest.raises(GangBroken, match="cannot listen"):
            gang_of(JobEnvironment(world_size=2, gang=address, gang_token="t"), told.append)
    assert len(told) == 1


def test_addresses_are_read_as_they_are_written() -> None:
    assert parse_address(join_address("fe80::1", 29400)) == ("fe80::1", 29400)
    assert parse_address("lm-a-1:29400") == ("lm-a-1", 29400)
    for wrong in ("29400", "host:", "host:x"):
        with pytest.raises(ValueError, match="host:port"):
            parse_address(wrong)


def test_a_port_is_free_unless_something_listens_on_it() -> None:
    assert is_free(free_port())
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])
