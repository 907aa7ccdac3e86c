"""Uploads of runs: logs by offset, progress and use in batches, in bounded memory."""

import json
import logging
from collections import deque
from dataclasses import dataclass, field

from loadmaster.agent.logs import Masker, secrets_of
from loadmaster.agent.outcome import read_samples
from loadmaster.agent.runtimes.base import STREAMS, RunId, Runtime
from loadmaster.agent.server.client import AgentClient, Conflict, Refused
from loadmaster.protocol import ErrorCode
from loadmaster.samples import MetricsBatch, UsageSample

SHIPPED = (*STREAMS, "progress")
PIECE = 256 * 1024
KEPT_SAMPLES = 120
SEQ_GAP = 100
LAST_WORDS = 2000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shipment:
    """Upload state of a run's streams; the server takes no more of `closed` ones."""

    masker: Masker
    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHIPPED, 0))
    seq: int = 0
    usage: deque[UsageSample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    closed: set[str] = field(default_factory=set)

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
        """Send at most one piece per stream; True if all is sent. `ended`: no more comes."""
        shipment = self._shipment(run)
        before = shipment.note()
        try:
            done = [self._ship_log(run, shipment, stream, epoch, ended) for stream in STREAMS]
            done.append(self._ship_metrics(run, shipment, epoch))
        finally:
            if shipment.note() != before:
                self._runtime.note(run, shipment.note())
        return all(done)

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
            _recall(shipment, self._runtime.note(run, None))
            self._shipments[run] = shipment
        return self._shipments[run]

    def _ship_log(
        self, run: RunId, shipment: _Shipment, stream: str, epoch: int, ended: bool
    ) -> bool:
        offset = shipment.offsets[stream]
        if stream in shipment.closed or self._runtime.size(run, stream) <= offset:
            return True
        piece = self._piece(run, shipment.masker, stream, offset, ended)
        if not piece:
            return True
        try:
            shipment.offsets[stream] = self._client.send_log(
                run.assignment, stream, offset, piece, fence=run.fence, epoch=epoch
            )
        except Conflict as refusal:
            self._reposition(run, shipment, stream, refusal)
        except Refused as refusal:
            _close(run, shipment, stream, refusal)
        is_sent = shipment.offsets[stream] >= self._runtime.size(run, stream)
        return is_sent or stream in shipment.closed

    def _piece(self, run: RunId, masker: Masker, stream: str, offset: int, ended: bool) -> bytes:
        """The next masked bytes; what may be the first part of a secret waits for its rest."""
        lead = min(offset, masker.reach)
        raw = self._runtime.read(run, stream, offset - lead, lead + PIECE + masker.reach)
        masked = masker.piece(raw)[lead : lead + PIECE]
        is_last = ended and len(raw) <= lead + PIECE
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
