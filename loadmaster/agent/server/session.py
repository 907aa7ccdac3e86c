"""The agent's session with the server: heartbeats, leases, directives."""

import logging
import random
from collections.abc import Callable, Iterable

from loadmaster import protocol
from loadmaster.agent.clock import Backoff, Clock
from loadmaster.agent.journal import Entry, Journal
from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.server.client import INCURABLE, AgentClient, AgentError, Conflict

logger = logging.getLogger(__name__)

ASK_S = 3.0
"""At most so long before a term ends the server is asked once more whether it is prolonged."""

LEAST_FREE_GB = 0.01
"""Room below which no launch can be prepared, whatever the server's limit."""

DEFAULT_INTERVALS = protocol.Intervals(heartbeat_s=10.0, lease_s=60.0, grace_s=30.0, margin_s=10.0)


def known_assignment(entry: Entry) -> protocol.KnownAssignment:
    """The entry as reported to the server."""
    return protocol.KnownAssignment(entry.assignment, entry.fence, entry.state, entry.run.name)


class ServerSession:
    """Session with heartbeats; keeps leases by the boot clock and the server's newest directives.

    A lease counts from when its renewal was sent, so it never ends later than the server's.
    """

    def __init__(
        self,
        client: AgentClient,
        journal: Journal,
        clock: Clock,
        request: Callable[[], protocol.SessionRequest],
        samples: Callable[[], tuple[protocol.DeviceSample, ...]],
        jitter: random.Random | None = None,
        trouble: Callable[[], str] = str,
        disk_free_gb: Callable[[], float | None] = lambda: None,
        gpu_trouble: Callable[[], str] = str,
    ) -> None:
        self._client, self._journal, self._clock = client, journal, clock
        self._request, self._samples, self._trouble = request, samples, trouble
        self._disk_free_gb = disk_free_gb
        self._gpu_trouble = gpu_trouble
        self._jitter = jitter or random.SystemRandom()
        self._backoff = Backoff(jitter=self._jitter)
        self._seq = 0
        self._next_beat_s = float("-inf")
        self._is_first_beat, self._hurries = True, False
        self._beaten_s = float("-inf")
        self._ask_s = self._jitter.uniform(0.5, 1.0) * ASK_S
        self._server_ahead_s: float | None = None
        self.epoch: int | None = None
        self.former_epoch = 0
        """Epoch of the last session, 0 before the first."""
        self.cursor = 0
        self.intervals = DEFAULT_INTERVALS
        self.leases: dict[RunId, float] = {}
        self._directives: dict[str, protocol.Directive] = {}
        self._unwanted: dict[str, protocol.Directive] = {}

    @property
    def directives(self) -> dict[str, protocol.Directive]:
        """The newest directive per assignment; what the session's start disowned comes first."""
        return self._directives | self._unwanted

    def maintain(self, *, hurried: bool = True) -> bool:
        """Open a session if there is none, and beat if it is time to; True if that was answered.

        Unless `hurried`, what is in a hurry waits, so that one beat serves more of it.
        """
        if self.epoch is None:
            self._open()
        is_due = self._clock.boot_s() >= self._next_beat_s or (hurried and self._hurries)
        return self.epoch is not None and is_due and self._beat()

    def hurry(self) -> None:
        """Send a heartbeat at the next occasion: a first lease is due."""
        if self._backoff.is_due("beat", self._clock.boot_s()):
            self._hurries = True

    def ask_before(self, until_s: float) -> None:
        """Send a heartbeat shortly before a term ends, as a prolongation may be under way."""
        ask_at_s = self.ends_s(until_s) - self._ask_s
        if self._beaten_s < ask_at_s <= self._clock.boot_s():
            self.hurry()

    def ends_s(self, until_s: float) -> float:
        """A server time on this boot clock; by wall clock if the server does not tell its own."""
        ahead_s = self._server_ahead_s
        if ahead_s is None:
            ahead_s = self._clock.wall_s() - self._clock.boot_s()
        return until_s - ahead_s

    def note_time(self, sent_s: float) -> None:
        """Read the server's clock from an answer, counted from the sending: never too late."""
        if self._client.server_time_s is not None:
            self._server_ahead_s = self._client.server_time_s - sent_s

    def lose_session(self) -> None:
        """Another session began; back off, so that two agents do not fight for an identity."""
        if self.epoch is not None:
            self._backoff.failed("session", self._clock.boot_s())
        self.epoch = None

    def receive(self, directives: Iterable[protocol.Directive], cursor: int) -> None:
        """Receive directives that came between heartbeats."""
        self._directives |= {directive.id: directive for directive in directives}
        self.cursor = max(self.cursor, cursor)

    def settle_offer(self, assignment: str) -> None:
        """An offer was taken, or is off."""
        directive = self._directives.get(assignment)
        if directive and directive.action is protocol.DirectiveAction.START:
            del self._directives[assignment]

    def _open(self) -> None:
        now_s = self._clock.boot_s()
        if not self._backoff.is_due("session", now_s):
            return
        try:
            session = self._client.open_session(self._request())
        except INCURABLE:
            raise
        except AgentError as error:
            wait_s = self._backoff.failed("session", now_s)
            logger.warning("no session yet, next try in %.1f s: %s", wait_s, error)
            return
        logger.info("session of epoch %s", session.epoch)
        self.epoch = self.former_epoch = session.epoch
        self._seq, self.intervals = 0, session.intervals
        self._backoff.cap_s = max(0.1, min(10.0, session.intervals.heartbeat_s))
        self._next_beat_s, self._is_first_beat = float("-inf"), True
        stop, cancel = protocol.DirectiveAction.STOP, protocol.StopReason.CANCEL
        self._unwanted = {
            name: protocol.Directive(name, entry.fence, stop, cancel)
            for name, entry in self._journal.entries.items()
            if name in session.stop
        }

    def _beat(self) -> bool:
        sent_s, self._hurries = self._clock.boot_s(), False
        beat = self._heartbeat()
        try:
            reply = self._client.heartbeat(beat)
        except INCURABLE:
            raise
        except Conflict as error:
            logger.warning("the session is over: %s", error)
            self.lose_session()
            return False
        except AgentError as error:
            self._next_beat_s = sent_s + self._backoff.failed("beat", self._clock.boot_s())
            logger.warning("heartbeat failed: %s", error)
            return False
        self._backoff.succeeded("beat")
        self._backoff.succeeded("session")
        self._beaten_s = sent_s
        self.note_time(sent_s)
        self._take_reply(reply, sent_s, beat.cursor)
        return True

    def _take_reply(self, reply: protocol.HeartbeatReply, sent_s: float, cursor: int) -> None:
        entries = self._journal.entries
        ours = {entry.run for entry in entries.values()}
        granted = {RunId(lease.id, lease.fence): sent_s + lease.ttl_s for lease in reply.leases}
        leases = self.leases | granted
        self.leases = {run: until_s for run, until_s in leases.items() if run in ours}
        start = protocol.DirectiveAction.START
        pending = {k: w for k, w in self._directives.items() if w.action is start}
        self._directives = pending | {directive.id: directive for directive in reply.directives}
        self._unwanted = {name: w for name, w in self._unwanted.items() if name in entries}
        # Lower than what was sent only if the server's clock went back.
        back = reply.cursor < cursor
        self.cursor = reply.cursor if back else max(self.cursor, reply.cursor)
        # the first interval is random, so that nodes do not send in step
        first, self._is_first_beat = self._is_first_beat, False
        interval_s = reply.next_heartbeat_s
        self._next_beat_s = sent_s + (
            self._jitter.uniform(0.0, interval_s) if first else interval_s
        )

    def _heartbeat(self) -> protocol.Heartbeat:
        self._seq += 1
        free_gb = self._disk_free_gb()
        has_room = free_gb is None or free_gb >= LEAST_FREE_GB
        live = (entry for entry in self._journal.entries.values() if not entry.has_ended)
        return protocol.Heartbeat(
            epoch=self.epoch or 0,
            seq=self._seq,
            sent_at_s=self._clock.wall_s(),
            healthy=self._journal.is_writable() and has_room and not self._trouble(),
            devices=self._samples(),
            assignments=tuple(known_assignment(entry) for entry in live),
            cursor=self.cursor,
            disk_free_gb=free_gb,
            gpu_trouble=self._gpu_trouble(),
        )
