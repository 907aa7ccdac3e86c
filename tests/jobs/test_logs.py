"""A job's log is one text, whatever its launches were: nothing lost, nothing twice."""

import base64
import gzip
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters.models import Node
from controlplane.execution.services.logs import append_log
from jobs.lifecycle import JobState
from jobs.logs import STREAMS, BadCursor, LogPiece, read_log
from jobs.models import Assignment, Job, LogChunk
from jobs.pages.job_page import log_tail
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_node
from tests.builders_jobs import a_placement, output

pytestmark = pytest.mark.django_db
RUNNING, PREEMPTED, SUCCEEDED = (
    AssignmentState.RUNNING,
    AssignmentState.PREEMPTED,
    AssignmentState.SUCCEEDED,
)

PIECES = st.tuples(
    st.sampled_from(STREAMS), st.text("ab€\n", min_size=1), st.sampled_from((1, 10, 3_000))
)
"""Stream, text, and how often it is repeated."""


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def job(node: Node) -> Job:
    return a_job(node.cluster, state=JobState.RUNNING)


def over(job: Job) -> None:
    job.state = JobState.COMPLETED
    job.save()


def read_all(job: Job, limit: int) -> str:
    texts, piece = [], LogPiece("", "", False)
    for _ in range(1000):
        piece = read_log(job, cursor=piece.cursor, limit=limit)
        texts.append(piece.text)
        if piece.done:
            return "".join(texts)
    raise AssertionError("the log has no end")


def test_a_job_that_never_ran_has_an_empty_log_that_is_done_once_it_is_over(job: Job) -> None:
    assert read_log(job) == LogPiece("", "", False)
    over(job)
    assert read_log(job).done


def test_a_log_goes_on_where_the_last_piece_ended(job: Job, node: Node) -> None:
    assignment = a_placement(job, node)
    output(assignment, b"one\n", b"two\n")
    first = read_log(job)
    assert (first.text, first.done) == ("one\ntwo\n", False)
    assert read_log(job, cursor=first.cursor).text == ""
    output(assignment, b"three\n")
    assert read_log(job, cursor=first.cursor).text == "three\n"


@pytest.mark.parametrize("limit", [16, 17, 50, 65_536])
def test_launches_follow_each_other_in_order_and_to_the_last_byte(
    job: Job, node: Node, limit: int
) -> None:
    texts = [f"launch {n}: " + "äöü€😀" * 20 + "\n" for n in range(3)]
    for text in texts:
        assignment = a_placement(job, node, PREEMPTED, ended_ago_s=60)
        data = text.encode()
        output(assignment, data[:7], data[7:31], data[31:])
    over(job)
    assert read_all(job, limit) == "".join(texts)


@settings(max_examples=30)
@given(data=st.data())
def test_what_agents_ship_in_any_pieces_is_read_in_any_pieces_from_anywhere(data: Any) -> None:
    job = a_job(a_cluster(), state=JobState.RUNNING)
    node = a_node(job.cluster)
    held = a_placement(job, node, SUCCEEDED, ended_ago_s=60)
    sent = dict.fromkeys(STREAMS, b"")
    for stream, text, times in data.draw(st.lists(PIECES, max_size=20)):
        piece, offset = times * text.encode(), len(sent[stream])
        digest, body = hashlib.sha256(piece).hexdigest(), gzip.compress(piece)
        append_log(node, held.pk, stream, offset, node.epoch, held.fence, body, digest)
        sent[stream] += piece
    over(job)
    assert read_all(job, data.draw(st.integers(1_000, 100_000))) == sent["stdout"].decode()
    begin = data.draw(st.integers(0, len(sent["stdout"])))
    read = read_log(job, offset=begin, limit=10**6).text
    assert read == sent["stdout"][begin:].decode(errors="replace")


def test_a_piece_ends_after_twenty_launches_without_output_and_the_next_goes_on(
    job: Job, node: Node, django_assert_max_num_queries: Any
) -> None:
    fence = 45
    Assignment.objects.bulk_create(
        Assignment(job=job, node=node, fence=n, state=PREEMPTED, ended_at=job.submitted_at)
        for n in range(1, fence)
    )
    Job.objects.filter(pk=job.pk).update(fence=fence)
    job.refresh_from_db()
    first, last = job.assignments.get(fence=1), a_placement(job, node, SUCCEEDED, ended_ago_s=60)
    output(first, b"one\n")
    output(last, b"two\n")
    over(job)
    with django_assert_max_num_queries(44):
        pieces = [read_log(job)]
    while not pieces[-1].done:
        pieces.append(read_log(job, cursor=pieces[-1].cursor))
    assert [piece.text for piece in pieces] == ["one\n", "", "two\n"]


def test_a_piece_ends_at_its_limit_however_many_launches_follow(job: Job, node: Node) -> None:
    for _ in range(3):
        output(a_placement(job, node, PREEMPTED, ended_ago_s=60), 20 * b"a")
    assert read_log(job, limit=20).text == 20 * "a"


def test_a_reader_stays_with_a_launch_that_still_runs(job: Job, node: Node) -> None:
    output(a_placement(job, node, PREEMPTED, ended_ago_s=60), b"old ")
    assignment = a_placement(job, node)
    piece = read_log(job)
    output(assignment, b"new")
    assert (piece.text, read_log(job, cursor=piece.cursor).text) == ("old ", "new")


def test_a_character_that_is_not_whole_yet_waits_for_its_rest(job: Job, node: Node) -> None:
    assignment = a_placement(job, node)
    euro = "€".encode()
    output(assignment, b"5 ", euro[:2])
    piece = read_log(job)
    assert piece.text == "5 "
    output(assignment, euro[2:])
    assert read_log(job, cursor=piece.cursor).text == "€"


def test_bytes_that_are_no_text_are_replaced_and_end(job: Job, node: Node) -> None:
    output(a_placement(job, node, SUCCEEDED, ended_ago_s=60), b"a\xff\xfe b \xe2\x82")
    over(job)
    assert read_log(job) == LogPiece("a�� b �", read_log(job).cursor, True)


def test_a_log_is_not_done_while_the_agent_may_still_deliver(job: Job, node: Node) -> None:
    assignment = a_placement(job, node, SUCCEEDED, ended_ago_s=0)
    over(job)
    assert not read_log(job).done
    assignment.ended_at = None
    assignment.save()
    assert read_log(job).done


def test_output_too_long_to_be_kept_is_skipped_after_its_mark(job: Job, node: Node) -> None:
    assignment = a_placement(job, node, SUCCEEDED, ended_ago_s=60)
    output(assignment, b"kept ")
    LogChunk.objects.create(
        assignment=assignment, stream="stdout", offset=5, size=100, data=b"ke[cut]"
    )
    LogChunk.objects.create(assignment=assignment, stream="stdout", offset=105, size=50, data=b"")
    output(a_placement(job, node, SUCCEEDED, ended_ago_s=50), b" next")
    over(job)
    assert read_all(job, 65_536) == "kept ke[cut] next"


def test_the_page_says_how_much_of_a_long_output_is_left_out(job: Job, node: Node) -> None:
    assignment = a_placement(job, node)
    output(assignment, b"begin\n")
    assert log_tail(job) == [{"stream": "stdout", "text": "begin\n"}]
    LogChunk.objects.create(
        assignment=assignment, stream="stdout", offset=6, size=5_000_000, data=b"[mark]\n"
    )
    first = log_tail(job)[0]["text"]
    assert first.startswith("[loadmaster: 5,000,000 bytes of the output are left out")


def test_a_flood_of_output_does_not_hide_the_errors_from_the_page(job: Job, node: Node) -> None:
    assignment = a_placement(job, node)
    output(assignment, b"Traceback\n", stream="stderr")
    for number in range(50):
        output(assignment, b"line\n" * 100 + b"%d\n" % number)
    pieces = log_tail(job)
    assert pieces[0] == {"stream": "stderr", "text": "Traceback\n"}
    shown = "".join(piece["text"] for piece in pieces[1:])
    assert (shown.count("\n"), shown[-3:]) == (300, "49\n")


def test_profile_runs_and_the_other_stream_stay_out(job: Job, node: Node) -> None:
    output(a_placement(job, node, SUCCEEDED, ended_ago_s=60, purpose="profiling"), b"measuring")
    assignment = a_placement(job, node)
    output(assignment, b"out")
    output(assignment, b"err", stream="stderr")
    assert (read_log(job).text, read_log(job, "stderr").text) == ("out", "err")


def test_every_rank_has_a_log_of_its_own(job: Job, node: Node) -> None:
    output(a_placement(job, node, rank=0), b"zero")
    output(a_placement(job, a_node(node.cluster), rank=1), b"one")
    assert (read_log(job).text, read_log(job, rank=1).text) == ("zero", "one")


@pytest.mark.parametrize(
    ("offset", "text"),
    [(0, "0123456789"), (3, "3456789"), (7, "789"), (-2, "89"), (-99, "0123456789"), (99, "")],
)
def test_an_offset_counts_over_all_launches(job: Job, node: Node, offset: int, text: str) -> None:
    for data in (b"0123", b"", b"456", b"789"):
        assignment = a_placement(job, node, PREEMPTED, ended_ago_s=60)
        if data:
            output(assignment, data)
    assert read_log(job, offset=offset).text == text


@pytest.mark.parametrize("cursor", ["x", "////", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "é"])
def test_a_cursor_of_another_log_is_refused(job: Job, node: Node, cursor: str) -> None:
    output(a_placement(job, node), b"x")
    with pytest.raises(BadCursor):
        read_log(job, cursor=cursor)


def test_a_cursor_beyond_all_output_finds_nothing(job: Job, node: Node) -> None:
    assignment = a_placement(job, node)
    output(assignment, b"x")
    for offset in (10**9, -5):
        raw = assignment.pk.bytes + offset.to_bytes(8, "big", signed=True)
        piece = read_log(job, cursor=base64.urlsafe_b64encode(raw).decode())
        assert not piece.done
