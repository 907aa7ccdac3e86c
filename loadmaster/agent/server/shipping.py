"""Uploads of runs: logs by offset, progress and use in batches, in bounded memory."""

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

SHIPPED = (*STREAMS, "progress")
PIECE = 256 * 1024
LIVE_EVERY = 10
"""Calls after which a piece of output that is written faster than it is sent goes to readers."""

KEPT_SAMPLES = 120
SEQ_GAP = 100
LAST_WORDS = 2000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shipment:
    """Upload state of a run's streams; the server takes no more of `closed` ones.

    Of a long stream it keeps `head` and `tail` bytes; a tail of 0: all of it.
    """

    masker: Masker
    head: int = 0
    tail: int = 0
    turns: int = 0
    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHIPPED, 0))
    seq: int = 0
    usage: deque[UsageSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    closed: set[str] = field(default_factory=set)

    def next_piece(self, stream: str, size: int, *, ended: bool) -> tuple[int, int]:
        """Begin and length of the next piece of a stream of `size` bytes; (_, 0): none now.

        What would be thrown away is not sent, but for a glimpse now and then while the run lives.
        """
        offset = self.offsets[stream]
        if not self.tail or size - max(offset, self.head) <= self.tail:
            return offset, PIECE
        if offset < self.head:
            return offset, min(PIECE, self.head - offset)
        self.turns += 1
        return size - self.tail, PIECE if ended or self.turns % LIVE_EVERY == 0 else 0

    def may_be_freed(self, begin: int, size: int) -> bool:
        """Return True if the guard may have freed bytes at `begin` of a stream of `size` bytes."""
        return bool(self.tail) and begin >= self.head and size - begin > self.tail + MARGIN // 2

    def note(self) -> str:
        return json.dumps({"offsets": self.offsets, "seq": self.seq})


class Shipper:
    """Uploads for all runs. TryAgain passes through; the next call continues."""

    def __init__(self, client: AgentClient, runtime: Runtime) -> None:
        self._client, self._runtime = client, runtime
        self._shipments: dict[RunId, _Shipment] = {}

    def note_usage(self, run: RunId, sample: UsageSample) -> None:
        """Keep a sample for the next batch; the oldest go when the server stays away."""
        self._shipment(run).usage.append(sample)

    def ship(self, run: RunId, epoch: int, *, ended: bool = False) -> bool:
        """Send at most one piece per stream; True if all is sent. `ended`: no more comes.

        A stream that cannot be read just now does not keep the others; its OSError comes last.
        """
        shipment, errors = self._shipment(run), list[OSError]()
        before = shipment.note()
        sends = [partial(self._ship_log, run, shipment, name, epoch, ended) for name in STREAMS]
        done = True
        try:
            for send in (*sends, partial(self._ship_metrics, run, shipment, epoch)):
                try:
                    done &= send()
                except OSError as error:
                    errors.append(error)
        finally:
            if shipment.note() != before:
                self._runtime.note(run, shipment.note())
        if errors:
            raise errors[0]
        return done

    def last_words(self, run: RunId) -> str:
        """The last lines of stderr, masked, for a reason."""
        limit = LAST_WORDS + self._shipment(run).masker.reach
        start = max(0, self._runtime.size(run, "stderr") - limit)
        raw = self._runtime.read(run, "stderr", start, limit)
        lines = self.mask(run, raw.decode(errors="replace")).replace("\x00", "").splitlines()
        return " | ".join(line.strip() for line in lines[-5:] if line.strip())[-LAST_WORDS:]

    def mask(self, run: RunId, text: str) -> str:
        """A text without the run's secrets."""
        return self._shipment(run).masker.text(text)

    def forget(self, run: RunId) -> None:
        self._shipments.pop(run, None)

    def _shipment(self, run: RunId) -> _Shipment:
        if run not in self._shipments:
            spec = self._runtime.spec(run)
            shipment = _Shipment(Masker(secrets_of(spec) if spec else ()))
            if spec:
                shipment.head, shipment.tail = spec.log_head_bytes, spec.log_tail_bytes
            _recall(shipment, self._runtime.note(run, None))
            self._shipments[run] = shipment
        return self._shipments[run]

    def _ship_log(
        self, run: RunId, shipment: _Shipment, stream: str, epoch: int, ended: bool
    ) -> bool:
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
        """The next masked bytes; what may be the first part of a secret waits for its rest."""
        lead = min(offset, masker.reach)
        raw = self._runtime.read(run, stream, offset - lead, lead + limit + masker.reach)
        masked = masker.piece(raw)[lead : lead + limit]
        is_last = ended and len(raw) <= lead + limit
        held = 0 if is_last or len(raw) > lead + len(masked) else masker.held_back(raw[lead:])
        return masked[: len(masked) - held]

    def _reposition(self, run: RunId, shipment: _Shipment, stream: str, refusal: Conflict) -> None:
        if refusal.code == ErrorCode.STALE_EPOCH:
            raise refusal
        expected, size = refusal.expected, self._runtime.size(run, stream)
        offset = shipment.offsets[stream]
        if isinstance(expected, int) and 0 <= expected <= size and expected != offset:
            shipment.offsets[stream] = expected
        else:
            _close(run, shipment, stream, refusal)

    def _ship_metrics(self, run: RunId, shipment: _Shipment, epoch: int) -> bool:
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
    logger.warning("%s: the server takes no more of %s: %s", run.name, stream, refusal)
    shipment.closed.add(stream)


def _recall(shipment: _Shipment, note: str) -> None:
    """Continue an earlier agent's uploads; batch numbers skip some unrecorded ones."""
    try:
        data = json.loads(note)
        shipment.offsets.update(
            {stream: int(data["offsets"][stream]) for stream in shipment.offsets}
        )
        shipment.seq = int(data["seq"]) + SEQ_GAP
    except (ValueError, KeyError, TypeError):
        return
