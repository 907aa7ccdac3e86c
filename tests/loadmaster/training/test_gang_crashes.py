"""Which rank is to blame when processes end: the one that was lost, the one that crashed, or
none.
"""

import sys
from collections.abc import Iterator

import pytest

from loadmaster.training.gangs.agreement import Agreement
from tests.builders_gang_sites import Site
from tests.builders_training import until


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    for connection in site.connections:
        connection.close()


def crash(agreement: Agreement, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter does at the end of a process whose training has raised an error."""
    monkeypatch.setattr(sys, "last_value", ValueError("no such label"), raising=False)
    agreement._at_exit()


def test_a_rank_that_crashes_by_itself_hangs_up_before_the_framework_does_and_is_no_fallen_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, connection = site.led({"begin": None})
    crash(member._agreement, monkeypatch)
    assert connection.receive() is None
    lead, (other,) = site.met_by(2)
    crash(lead._agreement, monkeypatch)
    assert other.receive() is None
    assert (site.told, site.forced) == ([], [])


def test_a_rank_that_crashes_because_another_one_was_lost_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, (member,) = site.met_by(2)
    member.close()
    until(lambda: lead.is_ending, "word of the loss")
    crash(lead._agreement, monkeypatch)
    assert site.told == ["rank 1 was lost before its gang had ended"]


@pytest.mark.parametrize("willingly", [True, False])
def test_a_crash_right_before_word_of_a_loss_is_fallen_and_one_after_an_early_end_the_ranks_own(
    site: Site, monkeypatch: pytest.MonkeyPatch, willingly: bool
) -> None:
    """The training's error ends the loop before the listening thread has its turn."""
    lead, (member,) = site.met_by(2)
    lead.leave()
    if willingly:
        member.send(goodbye=True)
    member.close()
    until(lambda: lead._gone, "the end of the connection")
    crash(lead._agreement, monkeypatch)
    assert site.told == ([] if willingly else ["rank 1 was lost before its gang had ended"])


@pytest.mark.parametrize("willingly", [True, False])
def test_the_same_of_a_lead(site: Site, monkeypatch: pytest.MonkeyPatch, willingly: bool) -> None:
    member, connection = site.led({"begin": None})
    member.leave()
    if willingly:
        connection.send(goodbye=True)
    connection.close()
    until(lambda: member._is_disconnected, "the end of the connection")
    crash(member._agreement, monkeypatch)
    assert site.told == ([] if willingly else ["rank 0 was lost before its gang had ended"])


def test_a_process_that_ends_without_a_crash_says_goodbye(site: Site) -> None:
    member, connection = site.led({"begin": None})
    member._agreement._at_exit()
    assert [connection.receive(), connection.receive()] == [{"goodbye": True}, None]
    lead, (other,) = site.met_by(2)
    lead._agreement._at_exit()
    assert [other.receive(), other.receive()] == [{"goodbye": True}, None]
