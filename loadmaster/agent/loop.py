"""The agent: pull -> reconcile -> act -> report, again and again."""

import logging
import queue
import random
import threading
import uuid
from collections.abc import Iterable, Mapping
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
"""Most pieces of an ended run's output that are sent in a tick."""

OOM_GRACE_S = 5.0
"""Most seconds that a job gets to stop which holds too much memory."""

POLL_PAUSE_S = 0.05
"""Seconds between two polls for directives, when one was answered."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals of the loop in seconds.

    `tick_s`: between two ticks. `sample_s`: between two measurements of use. `ship_s`: between two
    pieces of a run's output, and longest time in a tick for output of all runs. `flush_s`: longest
    delay of the report of an end by output that is left to send; `linger_s`: longest time for which
    such output is sent after the end. `long_poll_s`: longest wait for directives.
    """

    tick_s: float = 0.2
    ship_s: float = 1.0
    sample_s: float = 2.0
    flush_s: float = 5.0
    linger_s: float = 60.0
    long_poll_s: float = 25.0


class Agent:
    """Agent of one node. `tick` never waits for a job; `run` ticks until it is told to leave.

    `tick` raises the refusals after which no call can succeed: INCURABLE.
    """

    def __init__(
        self, parts: Parts, *, timing: Timing | None = None, jitter: random.Random | None = None
    ) -> None:
        # 1. The parts.
        self._parts = parts
        self._client = parts.client
        self._journal = parts.journal
        self._runtime = parts.runtime
        self._clock = parts.clock
        self._timing = timing or Timing()
        self._shipper = Shipper(self._client, self._runtime)
        self._sampler = Sampler(self._runtime, parts.devices, self._shipper, self._clock)
        self._sharing = Sharing(self._runtime, parts.devices)
        self.session = ServerSession(
            self._client,
            self._journal,
            self._clock,
            self._session_request,
            samples=lambda: self._sampler.devices(self._running()),
            jitter=jitter,
            trouble=self._runtime.trouble,
            disk_free_gb=lambda: free_gb(parts.state_dir),
            gpu_trouble=lambda: parts.devices.trouble,
        )
        self._executor = Executor(parts, self._shipper, self.session, self._sharing.shares)
        self._backoff = Backoff(jitter=jitter)
        self._contained = Containment(AgentError)
        self._process = uuid.uuid4().hex
        """Id of this process: a copy of its state folder has another one."""

        # 2. Hide secrets in the log: its own, and those of runs of the agent before.
        log_context.hide(self._journal.session_secret)
        for entry in self._journal.entries.values():
            spec = self._runtime.spec(entry.run)
            if spec:
                log_context.take(spec)

        # 3. State between ticks; all times are on the boot clock.
        self._offered: set[str] = set()
        """Devices with which the session was opened."""
        self._waiting_since_s: dict[str, float] = {}
        """Time since which an assignment waits for its lease, or a stray for its removal."""
        self._next_sample_s = float("-inf")
        self._ended_s: dict[RunId, float] = {}
        self._shipped_s: dict[RunId, float] = {}
        self._ship_until_s = float("-inf")
        """Time at which this tick sends no more output."""

        # 4. Signals between threads.
        self._received: queue.SimpleQueue[Directives] = queue.SimpleQueue()
        self._woken = threading.Event()
        self._runtime.tell_ends(self._woken.set)
        self._left = threading.Event()

    def tick(self) -> None:
        """Do everything for which it is time."""
        # 1. Hear from the server.
        for entry in self._running():
            if entry.term_until_s is not None and self.session.epoch is not None:
                self.session.ask_before(entry.term_until_s)
        self._offer_changed_devices()
        self.session.maintain()
        while not self._received.empty():
            news = self._received.get()
            self.session.receive(news.directives, news.cursor)

        # 2. Act. New assignments get their first lease at once, not a tick later, so act again.
        self._act()
        self.session.maintain()
        self._act()

        # 3. Measure, and report.
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
        """Close the journal, so that another agent may take over; jobs go on."""
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
        """Return the request for a session with the devices of now."""
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
        """Open a new session if GPUs have appeared or gone, as only a session reports them."""
        uuids = {device.uuid for device in self._parts.devices.reports()}
        if self.session.epoch is not None and uuids != self._offered:
            logger.info("this machine has other GPUs now, so a new session is opened")
            self.session.lose_session()

    def _running(self) -> list[Entry]:
        """Return entries whose processes run here."""
        entries = self._journal.entries.values()
        live = [entry for entry in entries if not entry.has_ended]
        return [entry for entry in live if entry.launched and not entry.held]

    def _act(self) -> None:
        """Carry out all actions that the present state asks for."""
        for action in reconcile(self._view()):
            self._do(action)
            if not isinstance(action, Renew):
                self._keep_leases()

    def _do(self, action: Action) -> None:
        """Carry out an action; the next reconciliation returns one that failed again."""
        run = action.run if hasattr(action, "run") else action.entry.run
        with self._contained(run, type(action).__name__):
            self._executor.do(action)

    def _keep_leases(self) -> None:
        """Send a heartbeat if it is time for one, and renew the guards' leases.

        Called after each piece of work that may take long.
        """
        if self.session.maintain(hurried=False):
            for action in reconcile(self._view()):
                if isinstance(action, Renew):
                    self._do(action)

    def _view(self) -> View:
        """Return the present state for `reconcile`."""
        now_s = self._clock.boot_s()
        runs = {}
        for run in self._runtime.list():
            runs[run] = self._status(run)
        for entry in self._journal.entries.values():
            if entry.held and not entry.has_ended:
                runs[entry.run] = self._status_of_held(entry, now_s)
        return View(
            now_s=now_s,
            wall_s=self._clock.wall_s(),
            directives=self.session.directives,
            entries=dict(self._journal.entries),
            ends=dict(self._journal.ends),
            runs=runs,
            leases=dict(self.session.leases),
            quotas=self._quotas(runs),
            since_s=self._update_waits(now_s, runs),
            patience_s=max(self.session.intervals.lease_s, self.session.intervals.grace_s),
            accepting=not self._executor.is_leaving and self.session.epoch is not None,
        )

    def _status(self, run: RunId) -> RunStatus:
        """Return a run's state; one whose state cannot be read counts as running.

        So nothing is started, ended or removed by a guess, and leases and stops still reach it.
        """
        with self._contained(run, "looking at it"):
            return self._runtime.poll(run)
        return RunStatus(RunState.RUNNING)

    def _quotas(self, runs: Mapping[RunId, RunStatus]) -> dict[RunId, float]:
        """Return the cores to which runs are limited now, of those with a directive about them."""
        quotas = {}
        for directive in self.session.directives.values():
            run = RunId(directive.id, directive.fence)
            if directive.cpu_quota is None or run not in runs:
                continue
            with self._contained(run, "reading its quota"):
                cores = self._runtime.quota(run)
                if cores is not None:
                    quotas[run] = cores
        return quotas

    def _status_of_held(self, entry: Entry, now_s: float) -> RunStatus:
        """Return the state of a held seat."""
        boot_id = self._parts.identity.boot_id
        lease_until_s = self.session.leases.get(entry.run)
        return held.status_of(entry, boot_id, lease_until_s, now_s, self._clock.wall_s())

    def _update_waits(self, now_s: float, runs: dict[RunId, RunStatus]) -> dict[str, float]:
        """Return since when each assignment waits for its lease, and each stray runs.

        An assignment is named by its id, a stray by the name of its run.
        """
        # 1. Launches that are prepared and not started.
        names = set()
        entries = self._journal.entries.values()
        for entry in entries:
            status = runs.get(entry.run)
            is_preparing = status is not None and status.state is RunState.PREPARING
            if not entry.launched and not entry.has_ended and not is_preparing:
                names.add(entry.assignment)

        # 2. Strays.
        known_runs = {entry.run for entry in entries}
        for run, status in runs.items():
            if status.state is RunState.RUNNING and run not in known_runs:
                names.add(run.name)
        self._waiting_since_s = {name: self._waiting_since_s.get(name, now_s) for name in names}
        return self._waiting_since_s

    def _stop_greedy(self) -> None:
        """Update shared paces, measure use, and stop runs that exceed their memory."""
        self._stop_for(StopBy.GPU_MEMORY, self._sharing.update_paces(self._running()))
        now_s = self._clock.boot_s()
        if now_s >= self._next_sample_s:
            self._next_sample_s = now_s + self._timing.sample_s
            self._stop_for(StopBy.OOM, self._sampler.sample(self._running(), self._keep_leases))

    def _stop_for(self, by: StopBy, entries: Iterable[Entry]) -> None:
        for entry in entries:
            with self._contained(entry.run, "stopping it"):
                self._executor.stop(entry, StopOrder(by, min(OOM_GRACE_S, entry.grace_s)))

    def _report(self) -> None:
        """Send moves and output; the end of a run after its output."""
        if self.session.epoch is None:
            return
        self._ship_until_s = self._clock.boot_s() + self._timing.ship_s
        for name in self._order_of_reports():
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

    def _order_of_reports(self) -> list[str]:
        """Return the assignments: ended ones first, and those first whose output waited longest."""
        entries = list(self._journal.entries.values())
        entries.sort(key=lambda entry: self._shipped_s.get(entry.run, float("-inf")))
        entries.sort(key=lambda entry: not entry.has_ended)
        return [entry.assignment for entry in entries]

    def _report_end(self, entry: Entry) -> None:
        """Report the end of a run, and forget it once its output is sent too.

        Output that cannot be sent delays the report by `flush_s`, and forgetting by `linger_s`.
        """
        # 1. Send all moves but the end, and output.
        ended_s = self._ended_s.setdefault(entry.run, self._clock.boot_s())
        sent = self._send_moves(entry, but=entry.seq)
        has_turn = self._has_time_to_ship()
        shipped = self._ship(entry, pieces=LAST_PIECES)
        waited_s = self._clock.boot_s() - ended_s
        if not sent or not (shipped or waited_s >= self._timing.flush_s):
            return

        # 2. Send the end. With output left the entry stays, without the moves that were sent.
        done = shipped or (has_turn and waited_s >= self._timing.linger_s)
        if self._send_moves(self._journal.entries[entry.assignment], note=not done) and done:
            self._ended_s.pop(entry.run, None)
            self._shipped_s.pop(entry.run, None)
            self._executor.forget(entry)

    def _has_time_to_ship(self) -> bool:
        """Return True if this tick still has time to send output."""
        return self._clock.boot_s() < self._ship_until_s

    def _ship(self, entry: Entry, pieces: int) -> bool:
        """Send at most so many pieces of output while the tick has time for that.

        Return True if nothing is left to send.
        """
        if entry.held:
            return True
        key = f"ship {entry.run.name}"
        now_s = self._clock.boot_s()
        if not self._has_time_to_ship() or not self._backoff.is_due(key, now_s):
            return False
        self._shipped_s[entry.run] = now_s
        is_done = False
        try:
            with self._contained(entry.run, "shipping its output"):
                for _ in range(pieces):
                    is_done = self._ship_piece(entry)
                    if is_done:
                        break
        except AgentError as error:
            self._failed(key, error)
            return False
        self._backoff.succeeded(key)
        return is_done

    def _ship_piece(self, entry: Entry) -> bool:
        """Send a piece of a run's output; return True if nothing is left to send."""
        epoch = self.session.epoch
        if epoch is None or not self._has_time_to_ship():
            return False
        is_done = self._shipper.ship(entry.run, epoch, ended=entry.has_ended)
        self._keep_leases()
        return is_done

    def _send_moves(self, entry: Entry, but: int = 0, *, note: bool = True) -> bool:
        """Send unsent moves, except number `but`; return True if the server knows them all now.

        Without `note` they stay unsent in the journal: the entry is forgotten next.
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
        """Send a move; return True if the server has it, or does not want it."""
        key = f"state {entry.run.name}"
        epoch = self.session.epoch
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
        """Note a failure that may pass, and return False; raise one that cannot."""
        if isinstance(error, INCURABLE):
            raise error
        if isinstance(error, Refused) and error.code == ErrorCode.STALE_EPOCH:
            self.session.lose_session()
        wait_s = self._backoff.failed(key, self._clock.boot_s())
        logger.warning("%s failed, next try in %.1f s: %s", key, wait_s, error)
        return False

    def _poll(self) -> None:
        """Wait for directives in a thread, and wake the loop. Failures cost only latency.

        Heartbeats bring all directives; their cursor is that of the session.
        """
        cursor = 0
        session_cursor = 0
        backoff = Backoff()
        while not self._left.is_set():
            news: Directives | None = None
            wait_s = self._timing.tick_s
            if self.session.epoch is not None:
                # The session's cursor is lower than before if the server's clock was set back.
                if self.session.cursor < session_cursor:
                    cursor = 0
                session_cursor = self.session.cursor
                since = max(cursor, session_cursor)
                try:
                    news = self._client.directives(since, self._timing.long_poll_s)
                    wait_s = 0.0
                    backoff.succeeded("poll")
                # RuntimeError: the client was closed while the agent left.
                except (AgentError, RuntimeError) as error:
                    logger.debug("no directives: %s", error)
                    wait_s = backoff.failed("poll", self._clock.boot_s())
            if news:
                cursor = news.cursor
                self._received.put(news)
                self._woken.set()
            self._left.wait(max(wait_s, POLL_PAUSE_S))
