"""Uploads of runs: logs piece by piece, progress and use in batches, in bounded memory."""

import json
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from loadmaster.agent.guarding.guard_output import MARGIN
from loadmaster.agent.logs import Masker, secrets_of
from loadmaster.agent.outcome import read_samples
from loadmaster.agent.runtimes.base import STREAMS, RunId, Runtime
from loadmaster.agent.server.client import AgentClient, Conflict, Refused
from loadmaster.protocol import ErrorCode
from loadmaster.samples import MetricsBatch, UsageSample

OFFSETS = (*STREAMS, "progress")
"""Streams of which the next byte to send is noted."""

PIECE_BYTES = 256 * 1024
"""Most bytes of a log that are sent at once."""

LIVE_EVERY = 10
"""The end of a log that is longer than it may be is sent at every so many calls."""

KEPT_SAMPLES = 120
"""Samples of use that are kept while the server does not answer."""

SEQ_GAP = 100
"""Numbers of batches that a new agent skips: the last ones of the former may be unrecorded."""

LAST_WORDS = 2000
"""Most characters of a run's last words."""

LAST_WORDS_LINES = 5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shipment:
    """State of the uploads of a run.

    `masker` covers its secrets. Of a long log the first `head` and the last `tail` bytes are sent;
    with a tail of 0 all are. `calls_in_middle`: calls at which the head was sent, and the tail was
    further on. `offsets`: the next byte to send of each stream. `seq`: number of the last batch of
    samples. `usage`: samples to send. `closed`: streams of which the server takes no more.
    """

    masker: Masker
    head: int = 0
    tail: int = 0
    calls_in_middle: int = 0
    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OFFSETS, 0))
    seq: int = 0
    usage: deque[UsageSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    closed: set[str] = field(default_factory=set)

    def next_piece(self, stream: str, size: int, *, ended: bool) -> tuple[int, int]:
        """Return (begin, length) of the next piece of a stream of `size` bytes; length 0: none now.

        The middle of a long log is not sent. While the run lives, the end of the log so far is sent
        now and then, for those who read along.
        """
        # 1. Short enough to be sent whole from here, or still in its head.
        offset = self.offsets[stream]
        if not self.tail or size - max(offset, self.head) <= self.tail:
            return offset, PIECE_BYTES
        if offset < self.head:
            return offset, min(PIECE_BYTES, self.head - offset)

        # 2. In its middle: skip to the tail, at the run's end or now and then.
        self.calls_in_middle += 1
        if ended or self.calls_in_middle % LIVE_EVERY == 0:
            return size - self.tail, PIECE_BYTES
        return size - self.tail, 0

    def may_be_freed(self, begin: int, size: int) -> bool:
        """Return True if the guard may have freed bytes at `begin` of a stream of `size` bytes.

        It frees up to MARGIN bytes before the tail; half of them are for what is written meanwhile.
        """
        return bool(self.tail) and begin >= self.head and size - begin > self.tail + MARGIN // 2

    def progress(self) -> str:
        """Return the note that a new agent needs to continue the uploads."""
        return json.dumps({"offsets": self.offsets, "seq": self.seq})


class Shipper:
    """Uploads of all runs. TryAgain passes through; the next call continues."""

    def __init__(self, client: AgentClient, runtime: Runtime) -> None:
        self._client = client
        self._runtime = runtime
        self._shipments: dict[RunId, _Shipment] = {}

    def note_usage(self, run: RunId, sample: UsageSample) -> None:
        """Keep a sample for the next batch; the oldest is dropped if there are too many."""
        self._shipment(run).usage.append(sample)

    def ship(self, run: RunId, epoch: int, *, ended: bool = False) -> bool:
        """Send at most one piece of each stream; return True if nothing is left to send.

        `ended`: the run writes no more. A stream that cannot be read just now does not keep the
        others; then the first OSError is raised in the end.
        """
        # 1. Send logs, then progress and use.
        shipment = self._shipment(run)
        before = shipment.progress()
        uploads = [partial(self._ship_log, run, shipment, name, epoch, ended) for name in STREAMS]
        uploads.append(partial(self._ship_metrics, run, shipment, epoch))
        is_done = True
        errors = []
        try:
            for upload in uploads:
                try:
                    is_done = upload() and is_done
                except OSError as error:
                    errors.append(error)

        # 2. Record the progress for a new agent, even if the server fails in between.
        finally:
            if shipment.progress() != before:
                self._runtime.write_note(run, shipment.progress())
        if errors:
            raise errors[0]
        return is_done

    def last_words(self, run: RunId) -> str:
        """Return the last lines of stderr, masked, for the reason of a failure."""
        limit = LAST_WORDS + self._shipment(run).masker.reach
        start = max(0, self._runtime.size(run, "stderr") - limit)
        content = self._runtime.read(run, "stderr", start, limit)
        text = self.mask(run, content.decode(errors="replace")).replace("\x00", "")
        lines = []
        for line in text.splitlines()[-LAST_WORDS_LINES:]:
            if line.strip():
                lines.append(line.strip())
        return " | ".join(lines)[-LAST_WORDS:]

    def mask(self, run: RunId, text: str) -> str:
        """Return a text without the run's secrets."""
        return self._shipment(run).masker.text(text)

    def forget(self, run: RunId) -> None:
        """Forget the uploads of a run."""
        self._shipments.pop(run, None)

    def _shipment(self, run: RunId) -> _Shipment:
        """Return the state of a run's uploads, which a former agent may have begun."""
        if run in self._shipments:
            return self._shipments[run]
        spec = self._runtime.spec(run)
        if spec:
            masker = Masker(secrets_of(spec))
            shipment = _Shipment(masker, spec.log_head_bytes, spec.log_tail_bytes)
        else:
            shipment = _Shipment(Masker(()))
        _continue_from_note(shipment, self._runtime.read_note(run))
        self._shipments[run] = shipment
        return shipment

    def _ship_log(
        self, run: RunId, shipment: _Shipment, stream: str, epoch: int, ended: bool
    ) -> bool:
        """Send the next piece of a log; return True if nothing is left to send."""
        # 1. Read the piece. Bytes that the guard may have freed meanwhile read as zeros.
        offset = shipment.offsets[stream]
        size = self._runtime.size(run, stream)
        if stream in shipment.closed or size <= offset:
            return True
        begin, limit = shipment.next_piece(stream, size, ended=ended)
        if not limit:
            return False
        piece = self._piece(run, shipment.masker, stream, begin, limit, ended)
        if shipment.may_be_freed(begin, self._runtime.size(run, stream)):
            return False
        if not piece:
            return True

        # 2. Send it.
        try:
            shipment.offsets[stream] = self._client.send_log(
                run.assignment,
                stream,
                begin,
                piece,
                fence=run.fence,
                epoch=epoch,
                skipped=begin > offset,
            )
        except Conflict as refusal:
            self._reposition(run, shipment, stream, refusal)
        except Refused as refusal:
            _close(run, shipment, stream, refusal)
        is_sent = shipment.offsets[stream] >= self._runtime.size(run, stream)
        return is_sent or stream in shipment.closed

    def _piece(
        self, run: RunId, masker: Masker, stream: str, offset: int, limit: int, ended: bool
    ) -> bytes:
        """Return up to `limit` bytes of a log from an offset, with secrets masked.

        A secret may begin before the piece or end after it, so bytes around it are read too. Final
        bytes that may begin a secret wait for the rest of it.
        """
        lead = min(offset, masker.reach)
        content = self._runtime.read(run, stream, offset - lead, lead + limit + masker.reach)
        masked = masker.piece(content)[lead : lead + limit]
        is_followed = len(content) > lead + len(masked)
        is_last = ended and len(content) <= lead + limit
        if is_followed or is_last:
            return masked
        return masked[: len(masked) - masker.held_back(content[lead:])]

    def _reposition(self, run: RunId, shipment: _Shipment, stream: str, refusal: Conflict) -> None:
        """Continue a log at the offset that the server expects; close it if that makes no sense."""
        if refusal.code == ErrorCode.STALE_EPOCH:
            raise refusal
        expected = refusal.expected
        size = self._runtime.size(run, stream)
        offset = shipment.offsets[stream]
        if isinstance(expected, int) and 0 <= expected <= size and expected != offset:
            shipment.offsets[stream] = expected
        else:
            _close(run, shipment, stream, refusal)

    def _ship_metrics(self, run: RunId, shipment: _Shipment, epoch: int) -> bool:
        """Send the next samples of progress and use; return True if no progress is left to send."""
        samples, offset = read_samples(self._runtime, run, shipment.offsets["progress"])
        usage = tuple(shipment.usage)
        is_last = offset >= self._runtime.size(run, "progress")
        if (samples or usage) and "metrics" not in shipment.closed:
            shipment.seq += 1
            try:
                self._client.send_metrics(
                    run.assignment, MetricsBatch(epoch, run.fence, shipment.seq, samples, usage)
                )
            except Refused as refusal:
                if refusal.code == ErrorCode.STALE_EPOCH:
                    raise
                _close(run, shipment, "metrics", refusal)
        for _ in usage:
            shipment.usage.popleft()
        shipment.offsets["progress"] = offset
        return is_last or "metrics" in shipment.closed


def _close(run: RunId, shipment: _Shipment, stream: str, refusal: Refused) -> None:
    """Send no more of a stream, after a refusal."""
    logger.warning("%s: the server takes no more of %s: %s", run.name, stream, refusal)
    shipment.closed.add(stream)


def _continue_from_note(shipment: _Shipment, note: str) -> None:
    """Continue a former agent's uploads by its note; begin anew without one that can be read."""
    try:
        data = json.loads(note)
        offsets = {stream: int(data["offsets"][stream]) for stream in OFFSETS}
        shipment.offsets.update(offsets)
        shipment.seq = int(data["seq"]) + SEQ_GAP
    except (ValueError, KeyError, TypeError):
        return
