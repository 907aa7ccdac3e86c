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
"""Most seconds before a term's end at which a heartbeat asks once more for a longer term."""

LEAST_FREE_GB = 0.01
"""Free disk below which no launch can be prepared, even if the server's limit is lower."""

DEFAULT_INTERVALS = protocol.Intervals(heartbeat_s=10.0, lease_s=60.0, grace_s=30.0, margin_s=10.0)
"""Intervals before the first session, which brings the server's."""


def known_assignment(entry: Entry) -> protocol.KnownAssignment:
    """Return the entry in the form in which sessions and heartbeats report it."""
    return protocol.KnownAssignment(entry.assignment, entry.fence, entry.state, entry.run.name)


class ServerSession:
    """Session with heartbeats; keeps the leases (boot clock) and the server's newest directives.

    A lease counts from the sending of its renewal, so it never ends later than the server's.
    `request`, `samples`, `trouble`, `disk_free_gb` and `gpu_trouble` return the newest values for
    the requests of sessions and heartbeats.
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
        self._client = client
        self._journal = journal
        self._clock = clock
        self._request = request
        self._samples = samples
        self._trouble = trouble
        self._disk_free_gb = disk_free_gb
        self._gpu_trouble = gpu_trouble
        self._jitter = jitter or random.SystemRandom()
        self._backoff = Backoff(jitter=self._jitter)

        # 1. The session, and the intervals that the server sets.
        self.epoch: int | None = None
        """Epoch of the session; None without one."""
        self.former_epoch = 0
        """Epoch of the last session, 0 before the first."""
        self.intervals = DEFAULT_INTERVALS

        # 2. Heartbeats.
        self._seq = 0
        self._next_beat_s = float("-inf")
        self._is_first_beat = True
        self._is_hurried = False
        """True if the next heartbeat is to be sent before its time."""
        self._beaten_s = float("-inf")
        """Time at which the last answered heartbeat was sent."""
        self._ask_s = self._jitter.uniform(0.5, 1.0) * ASK_S
        self._server_ahead_s: float | None = None
        """The server's time minus this machine's boot clock, in seconds."""

        # 3. The server's decisions.
        self.leases: dict[RunId, float] = {}
        self.cursor = 0
        """Number of the newest directive that was received."""
        self._directives: dict[str, protocol.Directive] = {}
        self._unwanted: dict[str, protocol.Directive] = {}
        """Stops of assignments that the server did not know when the session was opened."""

    @property
    def directives(self) -> dict[str, protocol.Directive]:
        """The newest directive of each assignment; stops of unwanted ones replace others."""
        return {**self._directives, **self._unwanted}

    def maintain(self, *, hurried: bool = True) -> bool:
        """Open a session if there is none, and send a heartbeat if it is time for one.

        Return True if it was answered. Without `hurried` only the regular time counts: one
        heartbeat then serves several assignments that are in a hurry.
        """
        if self.epoch is None:
            self._open()
        is_due = self._clock.boot_s() >= self._next_beat_s or (hurried and self._is_hurried)
        return self.epoch is not None and is_due and self._beat()

    def hurry(self) -> None:
        """Send a heartbeat as soon as possible: an assignment waits for its first lease."""
        if self._backoff.is_due("beat", self._clock.boot_s()):
            self._is_hurried = True

    def ask_before(self, until_s: float) -> None:
        """Send a heartbeat shortly before a term ends, as the server may have prolonged it."""
        ask_at_s = self.ends_s(until_s) - self._ask_s
        if self._beaten_s < ask_at_s <= self._clock.boot_s():
            self.hurry()

    def ends_s(self, until_s: float) -> float:
        """Convert a time of the server's clock to the boot clock of this machine.

        If the server does not send its time, this machine's wall clock counts as the server's.
        """
        ahead_s = self._server_ahead_s
        if ahead_s is None:
            ahead_s = self._clock.wall_s() - self._clock.boot_s()
        return until_s - ahead_s

    def note_time(self, sent_s: float) -> None:
        """Compare the server's clock in the last answer with the time at which it was asked.

        So terms may end too early by the time of the call, but never too late.
        """
        if self._client.server_time_s is not None:
            self._server_ahead_s = self._client.server_time_s - sent_s

    def lose_session(self) -> None:
        """Give up the session, as another one of this node has begun.

        Wait before opening the next, so that two agents do not take turns with one identity.
        """
        if self.epoch is not None:
            self._backoff.failed("session", self._clock.boot_s())
        self.epoch = None

    def receive(self, directives: Iterable[protocol.Directive], cursor: int) -> None:
        """Keep directives that came between heartbeats."""
        for directive in directives:
            self._directives[directive.id] = directive
        self.cursor = max(self.cursor, cursor)

    def settle_offer(self, assignment: str) -> None:
        """Forget an offer that was accepted or refused, or is stale."""
        directive = self._directives.get(assignment)
        if directive and directive.action is protocol.DirectiveAction.START:
            del self._directives[assignment]

    def _open(self) -> None:
        """Open a session, unless the wait after a failure is not over."""
        # 1. Ask the server.
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

        # 2. Begin with its epoch and intervals; the first heartbeat is due now.
        self.epoch = session.epoch
        self.former_epoch = session.epoch
        self.intervals = session.intervals
        self._backoff.cap_s = max(0.1, min(10.0, session.intervals.heartbeat_s))
        self._seq = 0
        self._next_beat_s = float("-inf")
        self._is_first_beat = True

        # 3. Stop the assignments that the server does not want here.
        self._unwanted = {}
        for name, entry in self._journal.entries.items():
            if name in session.stop:
                self._unwanted[name] = protocol.Directive(
                    name,
                    entry.fence,
                    protocol.DirectiveAction.STOP,
                    protocol.StopReason.CANCEL,
                )

    def _beat(self) -> bool:
        """Send a heartbeat; return True if it was answered. Raises INCURABLE refusals."""
        sent_s = self._clock.boot_s()
        self._is_hurried = False
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
        """Take leases and directives of a reply. `cursor`: the one that the heartbeat sent."""
        # 1. Leases, without those of runs that are forgotten.
        entries = self._journal.entries
        leases = dict(self.leases)
        for lease in reply.leases:
            leases[RunId(lease.id, lease.fence)] = sent_s + lease.ttl_s
        known_runs = {entry.run for entry in entries.values()}
        self.leases = {run: until_s for run, until_s in leases.items() if run in known_runs}

        # 2. Directives. The reply holds all of them but offers, which stay until they are settled.
        directives = {}
        for name, directive in self._directives.items():
            if directive.action is protocol.DirectiveAction.START:
                directives[name] = directive
        for directive in reply.directives:
            directives[directive.id] = directive
        self._directives = directives
        for name in self._unwanted.keys() - entries.keys():
            del self._unwanted[name]

        # 3. The cursor. It is lower than the one that was sent only if the server's clock was set
        # back.
        if reply.cursor < cursor:
            self.cursor = reply.cursor
        else:
            self.cursor = max(self.cursor, reply.cursor)

        # 4. The next heartbeat. The first interval is random, so that nodes do not send in step.
        interval_s = reply.next_heartbeat_s
        if self._is_first_beat:
            interval_s = self._jitter.uniform(0.0, interval_s)
        self._is_first_beat = False
        self._next_beat_s = sent_s + interval_s

    def _heartbeat(self) -> protocol.Heartbeat:
        """Return the next heartbeat to send."""
        self._seq += 1
        free_gb = self._disk_free_gb()
        has_room = free_gb is None or free_gb >= LEAST_FREE_GB
        live = [entry for entry in self._journal.entries.values() if not entry.has_ended]
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
