"""Carries out the actions of `reconcile` by journal, runtime and server."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from foundation.forms import cleaned
from loadmaster.agent import admission, reconcile
from loadmaster.agent.clock import Backoff, Clock, SystemClock
from loadmaster.agent.journal import Entry, Journal, JournalError
from loadmaster.agent.logs import log_context
from loadmaster.agent.node.machine import Devices, Identity, sockets_of
from loadmaster.agent.outcome import Standing, outcome_of, standing
from loadmaster.agent.runtimes.base import (
    Exit,
    Launch,
    LaunchError,
    Limits,
    QuotaError,
    RunId,
    RunState,
    Runtime,
    StopBy,
    StopOrder,
    Term,
)
from loadmaster.agent.server.client import INCURABLE, AgentClient, Refused, TryAgain
from loadmaster.agent.server.session import ServerSession
from loadmaster.agent.server.shipping import Shipper
from loadmaster.protocol import Accept, AssignmentState, ErrorCode, LaunchSpec, ReasonClass

logger = logging.getLogger(__name__)

LONGEST_REASON = 2000
"""Most characters of a reason."""

STRAY_GRACE_S = 10.0
"""Seconds that a stray gets to stop."""

STRAY_AGAIN_S = 60.0
LONGEST_STRAY_S = 3600.0
"""A stray that cannot be removed is tried again within a minute, then later and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts that an agent is put together from.

    `checkpoints`: folder of the checkpoints of all jobs. `address`: the address at which other
    nodes reach this one.
    """

    client: AgentClient
    journal: Journal
    runtime: Runtime
    devices: Devices
    identity: Identity
    state_dir: Path
    checkpoints: Path
    address: str = ""
    clock: Clock = field(default_factory=SystemClock)


class Executor:
    """Carries out actions. The next reconciliation returns an action that failed again.

    `shares`: returns True if other jobs are on the devices of a run.
    """

    def __init__(
        self,
        parts: Parts,
        shipper: Shipper,
        session: ServerSession,
        shares: Callable[[RunId], bool],
    ) -> None:
        self._parts = parts
        self._shipper = shipper
        self._session = session
        self._shares = shares
        self._journal = parts.journal
        self._runtime = parts.runtime
        self._clock = parts.clock
        self._backoff = Backoff()
        self._strays = Backoff(STRAY_AGAIN_S, LONGEST_STRAY_S)
        self.is_leaving = False
        """True while the agent shuts down and stops its jobs itself."""

    def do(self, action: reconcile.Action) -> None:
        """Carry out one action."""
        match action:
            case reconcile.AcceptOffer(run):
                self._accept(run)
            case reconcile.ReportPreparing(entry, fraction):
                self._report_preparing(entry, fraction)
            case reconcile.Launch(entry, lease_until_s):
                self._launch(entry, lease_until_s)
            case reconcile.Renew(run, lease_until_s):
                self._runtime.renew(run, lease_until_s)
            case reconcile.Stop(entry, order):
                self.stop(entry, order)
            case reconcile.Update(entry, until_s):
                self._runtime.update(entry.run, self._term(until_s))
                self._journal.note(replace(entry, term_until_s=until_s))
            case reconcile.SetQuota(entry, cores):
                self._set_quota(entry.run, cores)
            case reconcile.Settle(entry):
                self._settle(entry)
            case reconcile.Finish(entry, ended):
                self._end(entry, ended)
            case reconcile.Drop(entry):
                self.forget(entry)
            case reconcile.StopStray(run):
                logger.warning("%s is unknown to server and journal, and is stopped", run.name)
                self._runtime.stop(run, StopOrder(StopBy.CANCEL, STRAY_GRACE_S))
            case reconcile.RemoveStray(run):
                self._remove_stray(run)

    def _accept(self, run: RunId) -> None:
        """Accept an offer and prepare its launch, unless the wait after a failure is not over."""
        epoch = self._session.epoch
        key = f"accept {run.name}"
        if epoch is None or not self._backoff.is_due(key, self._clock.boot_s()):
            return
        try:
            sent_s = self._clock.boot_s()
            spec = self._parts.client.accept(run.assignment, Accept(epoch, run.fence))
            self._session.note_time(sent_s)
            log_context.take(spec)
            self._prepare_or_reject(run, spec)
        except TryAgain as error:
            wait_s = self._backoff.failed(key, self._clock.boot_s())
            text = "%s cannot be taken yet, next try in %.1f s: %s"
            logger.warning(text, run.name, wait_s, error)
            return
        except INCURABLE:
            raise
        except Refused as refusal:
            if refusal.code == ErrorCode.STALE_EPOCH:
                self._session.lose_session()
            else:
                logger.info("%s is off: %s", run.name, refusal)
                self._session.settle_offer(run.assignment)
        except Exception:  # of any type: the offer is not asked for again at every tick
            self._backoff.failed(key, self._clock.boot_s())
            raise
        self._backoff.succeeded(key)

    def _prepare_or_reject(self, run: RunId, spec: LaunchSpec) -> None:
        """Prepare the launch of an accepted offer, or reject it if this node cannot run it."""
        # 1. Ask for objections; a held seat needs nothing of the runtime.
        launch = self._launch_of(spec)
        problem = admission.objection(
            spec,
            run,
            runtime=self._runtime.name,
            devices=self._parts.devices.reports(),
            live=[entry for entry in self._journal.entries.values() if not entry.has_ended],
        )
        try:
            if not problem and not spec.held:
                problem = self._runtime.objection(launch)

            # 2. Prepare it.
            if not problem:
                self._prepare(launch)
        except (LaunchError, JournalError, OSError) as error:
            self._remove(run)
            problem = (ReasonClass.NODE, str(error))

        # 3. Tell the server soon.
        if problem:
            reason_class, reason = problem
            self._reject(run, reason_class, reason)
        self._session.hurry()
        self._session.settle_offer(run.assignment)

    def _prepare(self, launch: Launch) -> None:
        """Prepare a launch and put it into the journal. Raises LaunchError and JournalError."""
        spec = launch.spec
        if not spec.held:
            self._runtime.prepare(launch)
        entry = Entry(
            spec.assignment,
            spec.fence,
            AssignmentState.ACCEPTED,
            devices=spec.devices,
            slot=spec.slot,
            memory_gb=spec.memory_gb,
            grace_s=spec.grace_s,
            term_until_s=spec.term_until_s,
            held=spec.held,
        )
        self._journal.put(entry.moved(AssignmentState.PREPARING, self._clock.wall_s()))

    def _reject(self, run: RunId, reason_class: ReasonClass, reason: str) -> None:
        """Refuse an offer, on a full disk in memory alone: without a report the server retries."""
        logger.warning("%s is rejected: %s", run.name, reason)
        entry = Entry(run.assignment, run.fence, AssignmentState.ACCEPTED)
        rejected = entry.moved(
            AssignmentState.REJECTED,
            self._clock.wall_s(),
            reason_class=reason_class,
            reason=cleaned(reason),
        )
        self._journal.note(rejected)

    def _launch_of(self, spec: LaunchSpec) -> Launch:
        """Return the launch of a specification on this node."""
        # 1. Devices.
        parts = self._parts
        devices = parts.devices
        offered = [device.uuid for device in devices.reports()]
        hardware = {device.uuid for device in devices.reports() if not device.emulated}

        # 2. Variables. A container has a network interface of its own.
        node_variables = self._runtime.environment()
        if spec.world_size > 1 and self._runtime.name == "process":
            node_variables = {**node_variables, **sockets_of(parts.address)}
        folder = admission.checkpoint_folder(spec, parts.state_dir, parts.checkpoints)
        environment = admission.launch_environment(
            spec, folder, node=node_variables, devices=devices.environment(spec)
        )

        # 3. Limits.
        deadline_s = None
        if spec.deadline_s:
            deadline_s = self._session.ends_s(spec.deadline_s)
        limits = Limits(spec.walltime_s or None, deadline_s, admission.signal_of(spec))
        return Launch(
            RunId(spec.assignment, spec.fence),
            spec,
            environment,
            grace_s=spec.grace_s,
            boot_id=parts.identity.boot_id,
            gpus=tuple(uuid for uuid in spec.devices if uuid in hardware),
            gpu_files=devices.files(spec),
            gpu_numbers=tuple(offered.index(uuid) for uuid in spec.devices if uuid in offered),
            checkpoints=parts.checkpoints,
            term=self._term(spec.term_until_s),
            limits=limits,
        )

    def _term(self, until_s: float | None) -> Term:
        """Return a term that ends at this time of the server's clock; None: no end."""
        if until_s is None:
            return Term()
        return Term(until_s, self._session.ends_s(until_s))

    def _report_preparing(self, entry: Entry, fraction: float) -> None:
        """Note the progress of a preparation, for the server."""
        now_s = self._clock.wall_s()
        moved = entry.moved(AssignmentState.PREPARING, now_s, prepared_fraction=fraction)
        self._journal.note(replace(moved, told_fraction=fraction))

    def _launch(self, entry: Entry, lease_until_s: float) -> None:
        """Start a prepared run."""
        # 1. In the journal first: after a crash from here on it is not started again.
        boot_id = self._parts.identity.boot_id
        entry = replace(entry, launched=True, lease_until_s=lease_until_s, boot_id=boot_id)
        digest = self._runtime.poll(entry.run).image_digest
        try:
            self._journal.put(entry)
        except JournalError as error:
            logger.warning("%s is not started: %s", entry.run.name, error)
            return

        # 2. Start it; a held seat has no process.
        try:
            if not entry.held:
                self._runtime.start(entry.run, lease_until_s)
        except LaunchError as error:
            self._runtime.abandon(entry.run)
            self._end(entry, Exit(self._clock.wall_s(), started=False, error=str(error)))
            return
        logger.info("%s is started", entry.run.name)
        now_s = self._clock.wall_s()
        self._journal.note(entry.moved(AssignmentState.RUNNING, now_s, image_digest=digest))

    def stop(self, entry: Entry, order: StopOrder) -> None:
        """Order a run to end, and note the author of the order."""
        logger.info("%s is to stop (%s)", entry.run.name, order.by)
        self._runtime.stop(entry.run, order)
        entry = replace(entry, stop=order.by)
        if entry.state is not AssignmentState.STOPPING:
            entry = entry.moved(AssignmentState.STOPPING, self._clock.wall_s())
        self._journal.note(entry)

    def stop_or_abandon(self, entry: Entry) -> None:
        """Pre-empt a run of a leaving agent, so that it saves its state; end one not started."""
        if entry.has_ended or entry.stop:
            return
        if entry.launched:
            self.stop(entry, StopOrder(StopBy.PREEMPT, entry.grace_s))
            return
        ended = Exit(
            self._clock.wall_s(),
            started=False,
            stopped_by=StopBy.PREEMPT,
            error="the agent left",
        )
        self._end(entry, ended)

    def _set_quota(self, run: RunId, cores: float) -> None:
        """Limit the cores of a run; a failure is tried again, later and later."""
        key = f"quota {run.name}"
        if not self._backoff.is_due(key, self._clock.boot_s()):
            return
        try:
            self._runtime.set_quota(run, cores)
        except QuotaError as error:
            wait_s = self._backoff.failed(key, self._clock.boot_s())
            text = "%s cannot be limited to %g cores, next try in %.1f s: %s"
            logger.warning(text, run.name, cores, wait_s, error)
            return
        self._backoff.succeeded(key)
        logger.info("%s is limited to %g cores", run.name, cores)

    def _settle(self, entry: Entry) -> None:
        """Prevent the start of a launch that does not run, and note its end."""
        status = self._runtime.abandon(entry.run)
        if status.state is RunState.RUNNING:
            return
        lost = Exit(self._clock.wall_s(), started=False, error="the run's folder is gone")
        self._end(entry, status.exit or lost)

    def _end(self, entry: Entry, ended: Exit) -> None:
        """Note the outcome of a run that has ended, for the server."""
        # 1. A guard that got its order by a signal does not know the author.
        if ended.stopped_by is StopBy.SIGNAL and entry.stop:
            ended = replace(ended, stopped_by=entry.stop)

        # 2. The outcome, by its progress and, if it failed, by its last words and its GPUs.
        run = entry.run
        has_failed = bool(ended.exit_code)
        last_state, last_words = self._last_signs(run, has_failed=has_failed)
        outcome = outcome_of(
            ended,
            saved=last_state.left,
            why=last_state.why,
            fell=last_state.fell,
            last_words=last_words,
            stopped_by_operator=self.is_leaving,
            shares_gpu=self._shares(run),
            gpu_fault=self._gpu_fault(entry) if has_failed else "",
        )
        logger.info("%s has ended: %s %s", run.name, outcome.state, outcome.reason_class or "")

        # 3. Its move to the end.
        reason = cleaned(self._shipper.mask(run, outcome.reason))[:LONGEST_REASON]
        moved = entry.moved(
            outcome.state,
            ended.ended_at_s,
            exit_code=outcome.exit_code,
            reason_class=outcome.reason_class,
            reason=reason,
            steps=last_state.step,
        )
        self._journal.note(moved)

    def _last_signs(self, run: RunId, *, has_failed: bool) -> tuple[Standing, str]:
        """Return the last state of a run by its progress, and the last words of one that failed.

        Both are empty if its output cannot be read.
        """
        last_state = Standing()
        last_words = ""
        try:
            last_state = standing(self._runtime, run)
            if has_failed:
                last_words = self._shipper.last_words(run)
        except OSError as error:
            logger.warning("%s: its end is judged without its output: %s", run.name, error)
        return last_state, last_words

    def _gpu_fault(self, entry: Entry) -> str:
        """Measure the GPUs that a failed run held; return the fault of one, "" if there is none."""
        if not entry.devices:
            return ""
        for sample in self._parts.devices.samples(()):
            if sample.uuid in entry.devices and not sample.healthy:
                return f"GPU {sample.uuid} is unhealthy: {sample.trouble}"
        return ""

    def forget(self, entry: Entry) -> None:
        """Forget an assignment whose end was reported; the journal keeps its fence."""
        self._journal.forget(entry)
        self._shipper.forget(entry.run)
        log_context.forget(entry.assignment)
        self._remove(entry.run)

    def _remove(self, run: RunId) -> None:
        with contextlib.suppress(OSError):  # it is a stray from now on
            self._runtime.remove(run)

    def _remove_stray(self, run: RunId) -> None:
        """Remove a stray that has ended, unless the wait after a failure is not over."""
        now_s = self._clock.boot_s()
        if self._strays.is_due(run.name, now_s):
            self._strays.failed(run.name, now_s)
            if self._runtime.abandon(run).exit:
                self._runtime.remove(run)
                self._strays.succeeded(run.name)
