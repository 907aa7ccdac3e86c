"""Output that agents ship: without gaps, and of a long one head and tail, both packed."""

import gzip
import hashlib
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from controlplane.execution.services import logs
from jobs.logs import read_log
from jobs.models import Assignment, LogChunk
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster
from tests.builders_agents import (
    a_node_with_agent,
    a_report,
    a_running_assignment,
)
from tests.builders_jobs import kept_output, output

pytestmark = pytest.mark.django_db
AT_S = 1_700_000_000.0
AN_HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)


def _ship(
    call: Any,
    assignment: Assignment,
    text: bytes,
    offset: Any = 0,
    *,
    stream: str = "stdout",
    **more: Any,
) -> Any:
    body = more.pop("body", gzip.compress(text))
    digest = more.pop("digest", hashlib.sha256(text).hexdigest())
    query = {"offset": offset, "fence": assignment.fence, "epoch": 1, **more.pop("query", {})}
    path = f"assignments/{assignment.pk}/logs/{stream}?" + "&".join(
        f"{k}={v}" for k, v in query.items()
    )
    return call("put", path, body, **{"X-Content-SHA256": digest}, **more)


def test_pieces_of_output_follow_each_other(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    assert _ship(call, assignment, b"epoch 1\n").json() == {"next_offset": 8}
    assert _ship(call, assignment, b"epoch 2\n", 8).json() == {"next_offset": 16}
    assert _ship(call, assignment, b"warning\n", 0, stream="stderr").json() == {"next_offset": 8}
    assert kept_output(assignment) == b"epoch 1\nepoch 2\n"


def test_output_is_kept_as_small_as_it_was_shipped(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    text = b"epoch 1, loss 0.5\n" * 10_000
    _ship(call, assignment, text)
    chunk = LogChunk.objects.get()
    assert len(chunk.data) < len(text) // 50
    assert (chunk.size, chunk.unpacked_size, chunk.content) == (len(text), len(text), text)


def test_output_that_cannot_be_packed_is_kept_plain(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    noise = random.Random(3).randbytes(100_000)  # no secret
    _ship(call, assignment, noise)
    chunk = LogChunk.objects.get()
    assert (bytes(chunk.data), chunk.unpacked_size) == (noise, None)


def test_small_pieces_are_joined_until_they_pack_well(call: Any) -> None:
    assignment, line = a_running_assignment(a_node_with_agent()), b"epoch 1, loss 0.50\n"
    keys = []
    for number in range(20):
        _ship(call, assignment, 50 * line, 50 * number * len(line))
        keys.append(max(LogChunk.objects.values_list("pk", flat=True)))
    assert kept_output(assignment) == 20 * 50 * line
    assert [chunk.size for chunk in LogChunk.objects.order_by("offset")] == [16_150, 2_850]
    assert all(earlier < later for earlier, later in pairwise(keys)), "live pages follow the keys"


def test_pieces_of_both_streams_stay_in_the_order_in_which_they_came(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    _ship(call, assignment, b"one\n")
    _ship(call, assignment, b"error\n", stream="stderr")
    _ship(call, assignment, b"two\n", 4)
    _ship(call, assignment, b"three\n", 8)
    shown = [(chunk.stream, chunk.content) for chunk in LogChunk.objects.order_by("pk")]
    assert shown == [("stdout", b"one\n"), ("stderr", b"error\n"), ("stdout", b"two\nthree\n")]


def test_a_piece_shipped_again_is_refused_after_it_was_joined(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    _ship(call, assignment, b"epoch 1\n")
    _ship(call, assignment, b"epoch 2\n", 8)
    again = _ship(call, assignment, b"epoch 2\n", 8)
    assert (again.status_code, again.json()["error"]["expected"]) == (409, 16)
    assert kept_output(assignment) == b"epoch 1\nepoch 2\n"


def test_a_line_written_before_output_was_packed_is_joined_to_what_follows(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    output(assignment, b"epoch 1\n" * 100)
    _ship(call, assignment, b"epoch 2\n" * 100, 800)
    chunk = LogChunk.objects.get()
    assert chunk.content == b"epoch 1\n" * 100 + b"epoch 2\n" * 100
    assert len(chunk.data) < chunk.size


@pytest.mark.parametrize("offset", [0, 4, 9])
def test_a_piece_that_does_not_follow_is_told_where_to_begin(call: Any, offset: int) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    _ship(call, assignment, b"epoch 1\n")
    answer = _ship(call, assignment, b"epoch 2\n", offset)
    assert answer.status_code == 409
    assert (answer.json()["error"]["code"], answer.json()["error"]["expected"]) == ("offset", 8)
    assert LogChunk.objects.count() == 1


def test_output_may_still_come_after_the_end(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    call(
        "put", f"assignments/{assignment.pk}/state", a_report(assignment, AssignmentState.SUCCEEDED)
    )
    assert _ship(call, assignment, b"bye\n").status_code == 200


@pytest.mark.parametrize(
    ("values", "status", "field"),
    [
        ({"body": b"plain text"}, 400, "body"),
        ({"body": gzip.compress(b"hello" * 1000)[:-10]}, 400, "body"),
        ({"body": gzip.compress(b"hello") + b"more"}, 400, "body"),
        ({"digest": "0" * 64}, 400, "X-Content-SHA256"),
        ({"stream": "stdin"}, 400, "stream"),
        ({"offset": "-1"}, 400, "offset"),
        ({"offset": "9" * 30}, 400, "offset"),
        ({"offset": 2**44 + 1, "query": {"skipped": 1}}, 400, "offset"),
        ({"query": {"fence": ""}}, 400, "fence"),
        ({"query": {"fence": 99}}, 409, None),
        ({"query": {"epoch": 99}}, 409, "epoch"),
        ({"token": "nobody's"}, 401, None),
        ({"version": 7}, 426, None),
    ],
)
def test_a_piece_that_cannot_be_right_is_refused(
    call: Any, values: dict[str, Any], status: int, field: str | None
) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    answer = _ship(call, assignment, b"hello", **values)
    assert (answer.status_code, answer.json()["error"].get("field")) == (status, field)
    assert not LogChunk.objects.exists()


def test_a_small_body_that_unpacks_into_a_huge_one_is_refused(call: Any) -> None:
    text = b"\0" * 50_000_000
    answer = _ship(call, a_running_assignment(a_node_with_agent()), text)
    assert answer.status_code == 413


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Assignment:
    """A running assignment of whose output ten bytes are kept at the begin, and ten at the end."""
    monkeypatch.setattr(logs, "MIN_FREED_BYTES", 5)
    monkeypatch.setattr(logs, "MAX_JOINED_BYTES", 0)
    cluster = a_cluster(log_head_mb=10e-6, log_tail_mb=10e-6)
    return a_running_assignment(a_node_with_agent(cluster=cluster))


def _kept() -> bytes:
    by_offset, by_key = LogChunk.objects.order_by("offset"), LogChunk.objects.order_by("pk")
    assert list(by_offset) == list(by_key), "pages read them in the order of their keys"
    return b"".join(chunk.content for chunk in by_offset)


def test_of_a_long_output_head_and_tail_are_kept_and_the_gap_is_marked(
    call: Any, short: Assignment
) -> None:
    for number in range(20):
        piece = f"line {number:04d}\n".encode()
        assert _ship(call, short, piece, 10 * number).json() == {"next_offset": 10 * number + 10}
    assert _kept() == b"line 0000\n" + logs.gap_line(180) + b"line 0019\n"
    assert LogChunk.objects.count() == 3


def test_what_an_agent_leaves_out_is_marked_and_becomes_one_gap_with_what_is_freed(
    call: Any, short: Assignment
) -> None:
    _ship(call, short, b"0123456789")
    left_out: dict[str, Any] = {"query": {"skipped": 1}}
    assert _ship(call, short, b"abcdefghij", 5000, **left_out).json() == {"next_offset": 5010}
    assert _kept() == b"0123456789" + logs.gap_line(4990) + b"abcdefghij"
    assert _ship(call, short, b"klmnopqrst", 6000, **left_out).status_code == 200
    assert _kept() == b"0123456789" + logs.gap_line(5990) + b"klmnopqrst"
    assert _ship(call, short, b"early", 3000, **left_out).status_code == 409


def test_a_gap_of_a_terabyte_is_written_by_few_statements_and_passed_by_one_read(
    call: Any, short: Assignment, django_assert_max_num_queries: Any
) -> None:
    _ship(call, short, b"0123456789")
    with django_assert_max_num_queries(40):
        _ship(call, short, b"abcdefghij", 2**40, query={"skipped": 1})
    Assignment.objects.filter(pk=short.pk).update(state="succeeded", ended_at=AN_HOUR_AGO)
    gap = read_log(short.job, offset=10)
    assert gap.text == logs.gap_line(2**40 - 10).decode()
    assert read_log(short.job, cursor=gap.cursor).text == "abcdefghij"


def test_a_gap_of_many_gigabytes_is_marked_once(call: Any, short: Assignment) -> None:
    _ship(call, short, b"0123456789")
    _ship(call, short, b"abcdefghij", 7_000_000_010, query={"skipped": 1})
    assert _kept() == b"0123456789" + logs.gap_line(7_000_000_000) + b"abcdefghij"
    assert logs.next_offset(short.pk, "stdout") == 7_000_000_020
    Assignment.objects.filter(pk=short.pk).update(state="succeeded", ended_at=AN_HOUR_AGO)
    text, cursor = "", ""
    for _ in range(100):
        piece = read_log(short.job, cursor=cursor)
        text, cursor = text + piece.text, piece.cursor
    assert text.startswith("0123456789")
    assert text.endswith("abcdefghij"), "what follows the gap"
    assert read_log(short.job, offset=-10).text == "abcdefghij"


def test_output_of_another_nodes_launch_is_refused(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    a_node_with_agent(assignment.node.cluster, token="the other's")
    answer = _ship(call, assignment, b"not mine\n", token="the other's")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stale_assignment")
    assert not LogChunk.objects.exists()
