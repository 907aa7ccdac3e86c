"""Long output: the guard keeps its head and tail on the disk, the agent sends no more than that,
and the server has both to the byte.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.execution.services.logs import gap_line
from jobs.models import LogChunk
from loadmaster.agent.guarding.guard_output import FREED_AT_ONCE, MARGIN, Output
from loadmaster.agent.logs import Masker
from loadmaster.agent.server.shipping import LIVE_EVERY, PIECE_BYTES, _Shipment
from loadmaster.protocol import AssignmentState
from tests.builders import a_job
from tests.builders_agent import python, until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state
from tests.builders_agents import an_offer
from tests.builders_jobs import kept_output

MB = 1_000_000


def a_flood(size: int) -> tuple[str, ...]:
    """A command that prints that many bytes, in numbered lines of 100."""
    return python(
        "import sys\n"
        f"for first in range(0, {size // 100}, 1000):\n"
        "    lines = (f'{n:099d}\\n' for n in range(first, first + 1000))\n"
        "    sys.stdout.write(''.join(lines))\n"
    )


def flood(begin: int, end: int) -> bytes:
    """The bytes from `begin` to `end` of what a flood prints."""
    lines = range(begin // 100, -(-end // 100))
    text = b"".join(b"%099d\n" % number for number in lines)
    return text[begin % 100 :][: end - begin]


def test_the_file_of_a_flood_holds_little_room_and_its_ends_to_the_byte(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", head=MB, tail=3 * MB)
    with os.fdopen(os.dup(output.sink), "wb") as sink:
        output.begin()
        for begin in range(0, 60 * MB, MB):
            sink.write(flood(begin, begin + MB))
    output.end()
    path = tmp_path / "log"
    assert path.stat().st_size == 60 * MB
    assert path.stat().st_blocks * 512 <= 4 * MB + MARGIN + FREED_AT_ONCE + 2 * 65536
    content = path.read_bytes()
    assert content[:MB] == flood(0, MB)
    assert content[-3 * MB :] == flood(57 * MB, 60 * MB)


@given(
    head=st.integers(0, 3 * PIECE_BYTES),
    tail=st.integers(1, 5 * PIECE_BYTES),
    growth=st.lists(st.integers(0, 10 * PIECE_BYTES), max_size=60),
)
def test_whatever_a_job_writes_head_and_tail_are_sent_and_little_else(
    head: int, tail: int, growth: list[int]
) -> None:
    shipment, size, sent = _Shipment(Masker(()), head, tail), 0, set[tuple[int, int]]()

    def send(*, ended: bool) -> None:
        begin, length = shipment.next_piece("stdout", size, ended=ended)
        end = min(size, begin + length)
        assert begin >= shipment.offsets["stdout"], "what is sent is never sent again"
        if length and end > begin:
            shipment.offsets["stdout"] = end
            sent.add((begin, end))

    for more in growth:
        size += more
        send(ended=False)
    while shipment.offsets["stdout"] < size:
        send(ended=True)
    wanted = {*range(0, min(head, size), 1000), *range(max(0, size - tail), size, 1000)}
    assert all(any(begin <= at < end for begin, end in sent) for at in wanted)
    glimpses = (len(growth) // LIVE_EVERY + 1) * PIECE_BYTES
    assert sum(end - begin for begin, end in sent) <= size
    if all(more > tail + PIECE_BYTES for more in growth):
        assert sum(end - begin for begin, end in sent) <= head + 2 * tail + glimpses


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NodeSite]:
    cluster = a_site_cluster()
    cluster.log_head_mb, cluster.log_tail_mb = 1.0, 2.0
    cluster.save()
    site = NodeSite(cluster, tmp_path)
    yield site
    site.leave()


@pytest.mark.django_db
def test_of_a_flood_the_server_has_the_clusters_head_and_tail_with_the_gap_marked(
    site: NodeSite,
) -> None:
    command = list(a_flood(40 * MB))
    held = an_offer(site.node, a_job(site.cluster, command=command, total_steps=1))
    until(lambda: is_state(held, AssignmentState.SUCCEEDED) and site.agent.is_idle, site.agent)
    chunks = LogChunk.objects.filter(assignment=held, stream="stdout").order_by("offset")
    kept = kept_output(held)
    gap = [chunk for chunk in chunks if len(chunk.content) != chunk.size]
    left_out = sum(chunk.size for chunk in gap)
    head, _, rest = kept.partition(gap_line(left_out))
    assert head[:MB] == flood(0, MB)
    assert rest[-2 * MB :] == flood(38 * MB, 40 * MB)
    assert len(head) + left_out + len(rest) == 40 * MB
    assert len(kept) < 6 * MB
    assert len(gap) == 1
