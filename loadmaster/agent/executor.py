"""Carries out the actions of `reconcile` by journal, runtime and server."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from policies.contract.forms import cleaned

logger = logging.getLogger(__name__)

LONGEST_REASON = 2000
STRAY_GRACE_S = 10.0
STRAY_AGAIN_S = 60.0
LONGEST_STRAY_S = 3600.0
"""A stray that cannot be removed is tried again within a minute, then later and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts that an agent is put together from; `address`: where other nodes reach this one."""

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
    """Carries out actions; what fails for the moment is found again by the next reconciliation."""

    def __init__(
        self,
        parts: Parts,
        shipper: Shipper,
        session: ServerSession,
        shares: Callable[[RunId], bool],
    ) -> None:
        self._parts, self._shipper, self._session = parts, shipper, session
        self._journal, self._runtime, self._clock = parts.journal, parts.runtime, parts.clock
        self._shares, self._backoff = shares, Backoff()
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
            case reconcile.Settle(entry):
                self._settle(entry)
            case reconcile.Finish(entry, ended):
                self._end(entry, ended)
            case reconcile.Drop(entry):
                self.forget(entry)
            case reconcile.StopStray(run):
                logger.warning("%s is known to nobody and stopped", run.name)
                self._runtime.stop(run, StopOrder(StopBy.CANCEL, STRAY_GRACE_S))
            case reconcile.RemoveStray(run):
                self._remove_stray(run)

    def _accept(self, run: RunId) -> None:
        epoch, key = self._session.epoch, f"accept {run.name}"
        if epoch is None or not self._backoff.is_due(key, self._clock.boot_s()):
            return
        try:
            sent_s = self._clock.boot_s()
            spec = self._parts.client.accept(run.assignment, Accept(epoch, run.fence))
            self._session.note_time(sent_s)
            log_context.take(spec)
            self._take(run, spec)
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
        except Exception:  # whatever it is, it is not asked for again at every tick
            self._backoff.failed(key, self._clock.boot_s())
            raise
        self._backoff.succeeded(key)

    def _take(self, run: RunId, spec: LaunchSpec) -> None:
        live = [entry for entry in self._journal.entries.values() if not entry.has_ended]
        own = self._parts.devices.reports()
        launch = self._launch_of(spec)
        problem = admission.objection(spec, run, runtime=self._runtime.name, devices=own, live=live)
        try:
            if not spec.held:
                problem = problem or self._runtime.objection(launch)
            if not problem:
                self._prepare(launch)
        except (LaunchError, JournalError, OSError) as error:
            self._remove(run)
            problem = ReasonClass.NODE, str(error)
        if problem:
            self._reject(run, *problem)
        self._session.hurry()
        self._session.settle_offer(run.assignment)

    def _prepare(self, launch: Launch) -> None:
        """Prepare a launch and write it down; LaunchError or JournalError if there is no room."""
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

    def _reject(self, run: RunId, kind: ReasonClass, reason: str) -> None:
        """Refuse an offer, if need be in memory alone: unheard, the server takes it back."""
        logger.warning("%s is rejected: %s", run.name, reason)
        entry = Entry(run.assignment, run.fence, AssignmentState.ACCEPTED)
        rejected, now_s = AssignmentState.REJECTED, self._clock.wall_s()
        told = entry.moved(rejected, now_s, reason_class=kind, reason=cleaned(reason))
        self._journal.note(told)

    def _launch_of(self, spec: LaunchSpec) -> Launch:
        parts, devices = self._parts, self._parts.devices
        offered = [device.uuid for device in devices.reports()]
        hardware = {device.uuid for device in devices.reports() if not device.emulated}
        # a container has a network interface of its own
        on_host = spec.world_size > 1 and self._runtime.name == "process"
        sockets = sockets_of(parts.address) if on_host else {}
        folder = admission.checkpoint_folder(spec, parts.state_dir, parts.checkpoints)
        node, own = {**self._runtime.environment(), **sockets}, devices.environment(spec)
        return Launch(
            RunId(spec.assignment, spec.fence),
            spec,
            admission.launch_environment(spec, folder, node=node, devices=own),
            grace_s=spec.grace_s,
            boot_id=parts.identity.boot_id,
            gpus=tuple(uuid for uuid in spec.devices if uuid in hardware),
            gpu_files=devices.files(spec),
            gpu_numbers=tuple(offered.index(uuid) for uuid in spec.devices if uuid in offered),
            checkpoints=parts.checkpoints,
            term=self._term(spec.term_until_s),
            limits=Limits(
                spec.walltime_s or None,
                self._session.ends_s(spec.deadline_s) if spec.deadline_s else None,
                admission.signal_of(spec),
            ),
        )

    def _term(self, until_s: float | None) -> Term:
        return Term() if until_s is None else Term(until_s, self._session.ends_s(until_s))

    def _report_preparing(self, entry: Entry, fraction: float) -> None:
        now_s = self._clock.wall_s()
        moved = entry.moved(AssignmentState.PREPARING, now_s, prepared_fraction=fraction)
        self._journal.note(replace(moved, told_fraction=fraction))

    def _launch(self, entry: Entry, lease_until_s: float) -> None:
        boot_id = self._parts.identity.boot_id
        entry = replace(entry, launched=True, lease_until_s=lease_until_s, boot_id=boot_id)
        digest = self._runtime.poll(entry.run).image_digest
        try:
            self._journal.put(entry)
        except JournalError as error:
            logger.warning("%s is not started: %s", entry.run.name, error)
            return
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
        """Order a run to end, and remember why."""
        logger.info("%s is to stop (%s)", entry.run.name, order.by)
        self._runtime.stop(entry.run, order)
        entry = replace(entry, stop=order.by)
        if entry.state is not AssignmentState.STOPPING:
            entry = entry.moved(AssignmentState.STOPPING, self._clock.wall_s())
        self._journal.note(entry)

    def stop_or_abandon(self, entry: Entry) -> None:
        """On leaving: pre-empt a run so that it saves its state; abandon one not begun."""
        if entry.has_ended or entry.stop:
            return
        if entry.launched:
            self.stop(entry, StopOrder(StopBy.PREEMPT, entry.grace_s))
        else:
            by, now_s = StopBy.PREEMPT, self._clock.wall_s()
            self._end(entry, Exit(now_s, started=False, stopped_by=by, error="the agent left"))

    def _settle(self, entry: Entry) -> None:
        status = self._runtime.abandon(entry.run)
        lost = Exit(self._clock.wall_s(), started=False, error="the run's folder is gone")
        if status.state is not RunState.RUNNING:
            self._end(entry, status.exit or lost)

    def _end(self, entry: Entry, ended: Exit) -> None:
        if ended.stopped_by is StopBy.SIGNAL and entry.stop:
            ended = replace(ended, stopped_by=entry.stop)
        run = entry.run
        failed = bool(ended.exit_code)
        stood, last_words = self._last_signs(run, failed=failed)
        outcome = outcome_of(
            ended,
            saved=stood.left,
            why=stood.why,
            fell=stood.fell,
            last_words=last_words,
            stopped_by_operator=self.is_leaving,
            shares_gpu=self._shares(run),
            gpu_fault=self._gpu_fault(entry) if failed else "",
        )
        logger.info("%s has ended: %s %s", run.name, outcome.state, outcome.reason_class or "")
        moved = entry.moved(
            outcome.state,
            ended.ended_at_s,
            exit_code=outcome.exit_code,
            reason_class=outcome.reason_class,
            reason=cleaned(self._shipper.mask(run, outcome.reason))[:LONGEST_REASON],
            steps=stood.step,
        )
        self._journal.note(moved)

    def _last_signs(self, run: RunId, *, failed: bool) -> tuple[Standing, str]:
        """Standing of a run by its progress, and a failed one's last words, if they can be read."""
        stood, last_words = Standing(), ""
        try:
            stood = standing(self._runtime, run)
            last_words = self._shipper.last_words(run) if failed else ""
        except OSError as error:
            logger.warning("%s: its end is judged without its output: %s", run.name, error)
        return stood, last_words

    def _gpu_fault(self, entry: Entry) -> str:
        """Fault of a GPU that a failed run held, by a new look at them; empty if there is none."""
        for sample in self._parts.devices.samples(()) if entry.devices else ():
            if sample.uuid in entry.devices and not sample.healthy:
                return f"GPU {sample.uuid} is unhealthy: {sample.trouble}"
        return ""

    def forget(self, entry: Entry) -> None:
        """Forget a reported assignment, but for its fence."""
        self._journal.forget(entry)
        self._shipper.forget(entry.run)
        log_context.forget(entry.assignment)
        self._remove(entry.run)

    def _remove(self, run: RunId) -> None:
        with contextlib.suppress(OSError):  # it is a stray from now on
            self._runtime.remove(run)

    def _remove_stray(self, run: RunId) -> None:
        now_s = self._clock.boot_s()
        if self._strays.is_due(run.name, now_s):
            self._strays.failed(run.name, now_s)
            if self._runtime.abandon(run).exit:
                self._runtime.remove(run)
                self._strays.succeeded(run.name)
