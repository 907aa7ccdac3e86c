"""The agent: pull -> reconcile -> act -> report, again and again."""

import logging
import queue
import random
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from loadmaster import __version__
from loadmaster.agent import held
from loadmaster.agent.clock import Backoff
from loadmaster.agent.containment import Containment
from loadmaster.agent.executor import Executor, Parts
from loadmaster.agent.journal import Entry, Move
from loadmaster.agent.logs import log_context
from loadmaster.agent.node.sampling import Sampler, Sharing
from loadmaster.agent.reconcile import Action, Renew, View, reconcile
from loadmaster.agent.runtimes.base import RunId, RunState, RunStatus, StopBy, StopOrder
from loadmaster.agent.server.client import INCURABLE, AgentError, Refused, TryAgain
from loadmaster.agent.server.session import ServerSession, known_assignment
from loadmaster.agent.server.shipping import Shipper
from loadmaster.features import features_with
from loadmaster.files import free_gb
from loadmaster.protocol import Directives, ErrorCode, SessionRequest

logger = logging.getLogger(__name__)

LAST_PIECES = 20
OOM_GRACE_S = 5.0
POLL_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals of the loop in seconds.

    Output ships every `ship_s`, and for so long in a tick. That of an ended run delays the report
    of its end by `flush_s`, and ships for `linger_s`.
    """

    tick_s: float = 0.2
    ship_s: float = 1.0
    sample_s: float = 2.0
    flush_s: float = 5.0
    linger_s: float = 60.0
    long_poll_s: float = 25.0


class Agent:
    """One node's agent; `tick` never waits for a job, `run` ticks until told to leave.

    Raises from `tick` what no repetition cures: Unauthorized, WrongProtocol, and Duplicate.
    """

    def __init__(
        self, parts: Parts, *, timing: Timing | None = None, jitter: random.Random | None = None
    ) -> None:
        self._parts, self._client, self._timing = parts, parts.client, timing or Timing()
        self._journal, self._runtime, self._clock = parts.journal, parts.runtime, parts.clock
        self._shipper = Shipper(self._client, self._runtime)
        self._sampler = Sampler(self._runtime, parts.devices, self._shipper, self._clock)
        self._sharing = Sharing(self._runtime, parts.devices)
        self.session = ServerSession(
            self._client,
            self._journal,
            self._clock,
            self._session_request,
            lambda: self._sampler.devices(self._running()),
            jitter,
            self._runtime.trouble,
            lambda: free_gb(parts.state_dir),
            lambda: parts.devices.trouble,
        )
        self._executor = Executor(parts, self._shipper, self.session, self._sharing.shares)
        log_context.hide(self._journal.session_secret)
        for entry in self._journal.entries.values():  # adopted from the agent before
            if spec := self._runtime.spec(entry.run):
                log_context.take(spec)
        self._backoff = Backoff(jitter=jitter)
        self._contained = Containment(AgentError)
        self._since_s: dict[str, float] = {}
        self._next_s: dict[str, float] = {}
        self._ended_s: dict[RunId, float] = {}
        self._shipped_s: dict[RunId, float] = {}
        self._ship_until_s = float("-inf")
        self._received: queue.SimpleQueue[Directives] = queue.SimpleQueue()
        self._woken = threading.Event()
        self._runtime.tell_ends(self._woken.set)
        self._left = threading.Event()
        self._offered: set[str] = set()
        self._process = uuid.uuid4().hex

    def tick(self) -> None:
        """Do everything that is due."""
        for entry in self._running():
            if entry.term_until_s is not None and self.session.epoch is not None:
                self.session.ask_before(entry.term_until_s)
        self._offer_changed_devices()
        self.session.maintain()
        while not self._received.empty():
            news = self._received.get()
            self.session.receive(news.directives, news.cursor)
        self._act()
        self.session.maintain()  # whatever waits for its first lease gets it now, not a tick later
        self._act()
        self._stop_greedy()
        self._report()

    def run(self, leave: threading.Event, *, stop_jobs: bool = False) -> None:
        """Run until `leave` is set. Jobs go on under guards; `stop_jobs` stops them first."""
        poller = threading.Thread(target=self._poll, name="directives", daemon=True)
        poller.start()
        try:
            while not leave.is_set():
                self.tick()
                self._woken.wait(self._timing.tick_s)
                self._woken.clear()
            if stop_jobs:
                self.stop_all()
        finally:
            self._left.set()

    def close(self) -> None:
        """Release the journal, so that another agent may take over; jobs go on."""
        self._left.set()
        self._journal.close()
        self._runtime.close()

    @property
    def is_idle(self) -> bool:
        """Return True if nothing runs and nothing is left to report."""
        return not self._journal.entries

    def stop_all(self) -> None:
        """Pre-empt every job, so that it saves its state, and tell the server before leaving."""
        self._executor.is_leaving = True
        grace_s = max((entry.grace_s for entry in self._journal.entries.values()), default=0.0)
        until_s = self._clock.boot_s() + grace_s + self._timing.flush_s
        while not self.is_idle and self._clock.boot_s() < until_s:
            for entry in list(self._journal.entries.values()):
                with self._contained(entry.run, "stopping it"):
                    self._executor.stop_or_abandon(entry)
            self.tick()
            self._woken.wait(self._timing.tick_s)
            self._woken.clear()

    def _session_request(self) -> SessionRequest:
        devices = self._parts.devices.reports()
        self._offered = {device.uuid for device in devices}
        return SessionRequest(
            machine_id=self._parts.identity.machine_id,
            boot_id=self._parts.identity.boot_id,
            session_secret=self._journal.session_secret,
            devices=devices,
            assignments=tuple(known_assignment(entry) for entry in self._journal.entries.values()),
            agent_version=__version__,
            features=features_with(self._runtime.name, *self._runtime.features),
            address=self._runtime.address(self._parts.address),
            gpu_trouble=self._parts.devices.trouble,
            process=self._process,
            former_epoch=self.session.former_epoch,
        )

    def _offer_changed_devices(self) -> None:
        """Open a new session if GPUs have appeared or gone: the server learns of them by it."""
        uuids = {device.uuid for device in self._parts.devices.reports()}
        if self.session.epoch is not None and uuids != self._offered:
            logger.info("this machine has other GPUs now, so a new session is opened")
            self.session.lose_session()

    def _running(self) -> list[Entry]:
        """Return entries whose processes run here."""
        entries = self._journal.entries.values()
        return [e for e in entries if e.launched and not (e.held or e.has_ended)]

    def _act(self) -> None:
        for action in reconcile(self._view()):
            self._do(action)
            if not isinstance(action, Renew):
                self._keep_leases()

    def _do(self, action: Action) -> None:
        run = action.run if hasattr(action, "run") else action.entry.run
        with self._contained(run, type(action).__name__):  # the next reconciliation finds it again
            self._executor.do(action)

    def _keep_leases(self) -> None:
        """Beat if it is due, and renew leases: after each piece of work that may take long."""
        if self.session.maintain(hurried=False):
            for action in reconcile(self._view()):
                if isinstance(action, Renew):
                    self._do(action)

    def _view(self) -> View:
        now_s = self._clock.boot_s()
        runs = {run: self._status(run) for run in self._runtime.list()}
        runs |= {entry.run: self._held(entry, now_s) for entry in self._held_seats()}
        return View(
            now_s=now_s,
            wall_s=self._clock.wall_s(),
            directives=self.session.directives,
            entries=dict(self._journal.entries),
            ends=dict(self._journal.ends),
            runs=runs,
            leases=dict(self.session.leases),
            since_s=self._waiting_since(now_s, runs),
            patience_s=max(self.session.intervals.lease_s, self.session.intervals.grace_s),
            accepting=not self._executor.is_leaving and self.session.epoch is not None,
        )

    def _status(self, run: RunId) -> RunStatus:
        """Return a run's state; one that cannot be looked at counts as running.

        So nothing is started, ended or removed by a guess, and leases and stops still reach it.
        """
        with self._contained(run, "looking at it"):
            return self._runtime.poll(run)
        return RunStatus(RunState.RUNNING)

    def _held_seats(self) -> list[Entry]:
        entries = self._journal.entries.values()
        return [entry for entry in entries if entry.held and not entry.has_ended]

    def _held(self, entry: Entry, now_s: float) -> RunStatus:
        boot_id, lease_until_s = self._parts.identity.boot_id, self.session.leases.get(entry.run)
        return held.status_of(entry, boot_id, lease_until_s, now_s, self._clock.wall_s())

    def _waiting_since(self, now_s: float, runs: dict[RunId, RunStatus]) -> dict[str, float]:
        entries = self._journal.entries.values()
        ours = {entry.run for entry in entries}
        preparing = {run for run, status in runs.items() if status.state is RunState.PREPARING}
        running = {run for run, status in runs.items() if status.state is RunState.RUNNING}
        idle = [e for e in entries if not e.launched and not e.has_ended]
        waiting = {entry.assignment for entry in idle if entry.run not in preparing}
        strays = {run.name for run in running - ours}
        self._since_s = {name: self._since_s.get(name, now_s) for name in waiting | strays}
        return self._since_s

    def _is_time(self, what: str, every_s: float) -> bool:
        now_s = self._clock.boot_s()
        if now_s < self._next_s.get(what, float("-inf")):
            return False
        self._next_s[what] = now_s + every_s
        return True

    def _stop_greedy(self) -> None:
        """Update shared paces, sample what runs, and stop what exceeds its memory."""
        self._stop_for(StopBy.GPU_MEMORY, self._sharing.update_paces(self._running()))
        if self._is_time("sample", self._timing.sample_s):
            self._stop_for(StopBy.OOM, self._sampler.sample(self._running(), self._keep_leases))

    def _stop_for(self, by: StopBy, entries: Iterable[Entry]) -> None:
        for entry in entries:
            with self._contained(entry.run, "stopping it"):
                self._executor.stop(entry, StopOrder(by, min(OOM_GRACE_S, entry.grace_s)))

    def _report(self) -> None:
        """Tell the server of every move, in order; the end of a run after its output."""
        if self.session.epoch is None:
            return
        self._ship_until_s = self._clock.boot_s() + self._timing.ship_s
        for name in self._turns():
            entry = self._journal.entries[name]
            with self._contained(entry.run, "its report"):
                if entry.has_ended:
                    self._report_end(entry)
                else:
                    self._send_moves(entry)
                    shipped_s = self._shipped_s.get(entry.run, float("-inf"))
                    if entry.launched and self._clock.boot_s() >= shipped_s + self._timing.ship_s:
                        self._ship(entry, pieces=1)
            self._keep_leases()

    def _turns(self) -> list[str]:
        """Assignments in the order in which output ships: ended ones, then what waited longest."""
        entries = list(self._journal.entries.values())
        entries.sort(key=lambda entry: self._shipped_s.get(entry.run, float("-inf")))
        return [e.assignment for e in sorted(entries, key=lambda entry: not entry.has_ended)]

    def _report_end(self, entry: Entry) -> None:
        since_s = self._ended_s.setdefault(entry.run, self._clock.boot_s())
        sent = self._send_moves(entry, but=entry.seq)
        has_turn = self._has_time_to_ship()
        shipped = self._ship(entry, pieces=LAST_PIECES)
        waited_s = self._clock.boot_s() - since_s
        if not sent or not (shipped or waited_s >= self._timing.flush_s):
            return
        done = shipped or (has_turn and waited_s >= self._timing.linger_s)
        if self._send_moves(self._journal.entries[entry.assignment], note=not done) and done:
            self._ended_s.pop(entry.run, None)
            self._shipped_s.pop(entry.run, None)
            self._executor.forget(entry)

    def _has_time_to_ship(self) -> bool:
        return self._clock.boot_s() < self._ship_until_s

    def _ship(self, entry: Entry, pieces: int) -> bool:
        """Ship at most so many pieces while the tick has time for it; True if nothing is left."""
        if entry.held:
            return True
        key, now_s = f"ship {entry.run.name}", self._clock.boot_s()
        if not self._has_time_to_ship() or not self._backoff.is_due(key, now_s):
            return False
        self._shipped_s[entry.run] = now_s
        done = False
        try:
            with self._contained(entry.run, "shipping its output"):  # an end is told without it
                done = any(self._ship_piece(entry) for _ in range(pieces))
        except AgentError as error:
            self._failed(key, error)
            return False
        self._backoff.succeeded(key)
        return done

    def _ship_piece(self, entry: Entry) -> bool:
        epoch = self.session.epoch
        if epoch is None or not self._has_time_to_ship():
            return False
        done = self._shipper.ship(entry.run, epoch, ended=entry.has_ended)
        self._keep_leases()
        return done

    def _send_moves(self, entry: Entry, but: int = 0, *, note: bool = True) -> bool:
        """Send unsent moves, except number `but`; True if the server knows them all now.

        Without `note` they stay unsent in the journal, for an entry that is then forgotten.
        """
        for move in entry.unsent:
            if move.seq == but:
                break
            if not self._send(entry, move):
                return False
            if note:
                self._journal.note(self._journal.entries[entry.assignment].acknowledged(move.seq))
            self._keep_leases()
        return True

    def _send(self, entry: Entry, move: Move) -> bool:
        key, epoch = f"state {entry.run.name}", self.session.epoch
        if epoch is None or not self._backoff.is_due(key, self._clock.boot_s()):
            return False
        report = move.report(epoch, entry.fence, entry.run.name)
        try:
            self._client.report_state(entry.assignment, report)
        except (TryAgain, *INCURABLE) as error:
            return self._failed(key, error)
        except Refused as refusal:
            if refusal.code == ErrorCode.STALE_EPOCH:
                return self._failed(key, refusal)
            logger.warning("%s: the report %s is dropped: %s", entry.run.name, move.to, refusal)
        self._backoff.succeeded(key)
        return True

    def _failed(self, key: str, error: AgentError) -> bool:
        """Note a failure that may pass; raise one that cannot."""
        if isinstance(error, INCURABLE):
            raise error
        if isinstance(error, Refused) and error.code == ErrorCode.STALE_EPOCH:
            self.session.lose_session()
        wait_s = self._backoff.failed(key, self._clock.boot_s())
        logger.warning("%s failed, next try in %.1f s: %s", key, wait_s, error)
        return False

    def _poll(self) -> None:
        """Poll for directives in a thread and wake the loop. Failures cost only latency."""
        cursor = told = 0
        backoff = Backoff()
        while not self._left.is_set():
            news: Directives | None = None
            wait_s = self._timing.tick_s
            if self.session.epoch is not None:
                if self.session.cursor < told:
                    cursor = 0
                told = self.session.cursor
                since = max(cursor, told)
                try:
                    news, wait_s = self._client.directives(since, self._timing.long_poll_s), 0.0
                    backoff.succeeded("poll")
                # RuntimeError: the client was closed while the agent left
                except (AgentError, RuntimeError) as error:
                    logger.debug("no directives: %s", error)
                    wait_s = backoff.failed("poll", self._clock.boot_s())
            if news:
                cursor = news.cursor
                self._received.put(news)
                self._woken.set()
            self._left.wait(max(wait_s, POLL_PAUSE_S))
