"""Jumps of clocks and their skew are told, and silence is counted anew after a jump."""

from dataclasses import asdict, replace
from typing import cast

import pytest
from django.core.cache import cache
from django.test import Client

from controlplane.execution.services import heartbeats
from controlplane.execution.services.agent_clocks import AgentClocks
from controlplane.operations import clocks
from controlplane.operations.clocks import WallClock, note_jump
from controlplane.operations.prometheus import StateCollector, exposition
from controlplane.web.storage.watch import boot_s, machine, sign_age_s
from tests.builders_agents import a_heartbeat, a_node_with_agent, heartbeat
from tests.builders_clocks import Machine


class Hand:
    """Wall and boot clock of a process, set by hand."""

    def __init__(self) -> None:
        self.wall_s, self.here = 2e9, Machine()
        self.clock = WallClock(lambda: self.wall_s, lambda: self.here.now_s)

    def after(self, seconds: float, jump_s: float = 0.0) -> bool:
        self.here.now_s += seconds
        self.wall_s += seconds + jump_s
        return note_jump(self.clock, self.here.watch)


@pytest.mark.parametrize("jump_s", [-3600.0, -60.0, -2.5, 2.5, 60.0, 3600.0])
def test_a_jump_is_noticed_once_and_counts_silence_anew(jump_s: float) -> None:
    hand = Hand()
    hand.here.watch.still_s({"node": "1"})
    assert not hand.after(2)
    assert hand.here.watch.still_s({"node": "1"}) == {"node": 2.0}
    assert hand.after(2, jump_s)
    assert hand.here.watch.still_s({"node": "1"}) == {"node": 0.0}
    assert not hand.after(2)
    assert hand.here.watch.still_s({"node": "1"}) == {"node": 2.0}
    found = clocks.jumps()
    assert found is not None
    assert (found.number, round(found.last_s, 3)) == (1, jump_s)


def test_a_drift_of_a_twentieth_and_a_slow_correction_are_no_jumps() -> None:
    hand = Hand()
    hand.after(2)
    assert not any(hand.after(seconds, 0.05 * seconds) for seconds in (2, 60, 600))
    assert not any(hand.after(2, 1.9) for _ in range(10))


def test_a_jump_that_another_process_of_the_machine_has_noted_counts_once() -> None:
    hand, other = Hand(), Hand()
    hand.after(2), other.after(2)
    assert hand.after(2, 60.0)
    found = clocks.jumps()
    assert found is not None
    cache.set(clocks.KEY, asdict(replace(found, process=found.process + 1)))
    assert not other.after(2, 60.0)
    assert hand.after(2, 60.0) is False, "as near to that one as if it were the same"
    cache.set(clocks.KEY, asdict(replace(found, machine="elsewhere")))
    assert hand.after(2, 60.0)


@pytest.mark.django_db
def test_ready_and_metrics_tell_of_jumps_and_skew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, node = Hand(), a_node_with_agent()
    hand.after(2)
    hand.after(2, -60.0)
    monkeypatch.setattr(heartbeats, "AGENT_CLOCKS", AgentClocks())
    monkeypatch.setattr("controlplane.execution.services.agent_clocks.EVERY_S", 0.0)
    heartbeat(node.pk, replace(a_heartbeat(), sent_at_s=0.0))
    told = client.get("/readyz").json()["clocks"]
    assert (told["jumps"], told["last_jump_s"]) == (1, -60.0)
    least_s, most_s = told["agents_skew_s"]
    assert least_s == most_s < -1e9
    text = exposition([StateCollector()]).decode()
    assert "loadmaster_clock_jumps_total 1.0" in text
    assert 'loadmaster_agents_clock_skew_seconds{end="least"} -1' in text


def test_a_sign_of_this_machine_has_its_age_by_the_boot_clock_alone() -> None:
    at_s = boot_s()
    age_s = cast(float, sign_age_s("beat", [machine(), at_s - 5]))
    assert 5.0 <= age_s < 65.0
    assert sign_age_s("beat", ["elsewhere", 1e12]) == 0.0, "as long as this machine has seen it"
    assert sign_age_s("beat", 2e9) is None, "of an older version"
