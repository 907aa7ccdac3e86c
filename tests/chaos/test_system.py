"""Times for which a node is out of the server's reach, and since when the server is whole."""

import time
from math import inf
from pathlib import Path

import pytest

from experiments.chaos.parts import Part
from experiments.chaos.system import IMPORTS_S, Site, Span, System, merged

CLOCKWORK = {"lease_s": 5.0, "grace_s": 8.0, "margin_s": 1.0}


def a_system(folder: Path, **away: list[Span]) -> System:
    system = System(Site(folder, 1, CLOCKWORK, 1))
    for name, spans in away.items():
        name = name.replace("_", "-")
        system.parts[name] = Part(name, [], {}, folder / name, away=spans)
    return system


def test_absences_that_leave_no_time_for_a_heartbeat_are_one() -> None:
    assert merged([(10, 12), (1, 3), (2, 4), (13, 20)]) == [(1, 4), (10, 20)]


@pytest.mark.parametrize(
    ("agent", "web", "lost"),
    [([(0, 15)], [], 1), ([(0, 13)], [], 0), ([(0, 8)], [(7, 15)], 1), ([], [(0, 15)], 1)],
)
def test_a_node_is_lost_with_reason_if_its_agent_did_not_reach_the_server_for_long(
    tmp_path: Path, agent: list[Span], web: list[Span], lost: int
) -> None:
    system = a_system(tmp_path, agent_0=agent, web=web)
    assert bool(system.lost_unduly({"agent-0": 1})) == (not lost)
    assert "declared lost 2 times" in system.lost_unduly({"agent-0": 2})[0]


def test_rounds_can_be_held_since_the_last_program_is_at_work_that_they_need(
    tmp_path: Path,
) -> None:
    system = a_system(tmp_path)
    for name, began_s in (("beat", 1.0), ("worker-0", 2.0), ("worker-1", 9.0), ("web", 20.0)):
        part = Part(name, ["sleep", "60"], {}, tmp_path / name)
        system.parts[name] = part
        part.start()
        part.at_work_s = began_s
    assert system.whole_since_s() == 2.0 + IMPORTS_S, "one worker is enough"
    system.parts["worker-0"].kill(60.0)
    assert system.whole_since_s() == 9.0 + IMPORTS_S
    system.note_full()
    assert system.whole_since_s() == inf
    system.note_room()
    assert 9.0 + IMPORTS_S < system.whole_since_s() <= time.monotonic()
    for part in system.parts.values():
        part.kill(60.0)
    assert system.whole_since_s() == inf
