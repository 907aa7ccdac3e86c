"""The only creator of assignments: makes a plan so, as far as the newest state of the cluster allows.

Everything happens in the caller's transaction, which holds the round's lock: stops are asked for, terms prolonged, then each
gang is launched whole or not at all, in a savepoint of its own. The database's unique constraints are the last judge: a slot is
held once, a fence launches once. What asked for a stop in this very plan waits for its end: its launch is deferred, and the end
of the stop asks for the round that carries the plan out or decides again. Only an offer that no agent has taken yet is gone at
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q

from clusters.lifecycle import LIVE
from clusters.models import Assignment, AssignmentEvent, AssignmentSlot, Device, Node
from controlplane.changes import Change, Keep, Migrate, Preempt, Resize, Start, changes
from controlplane.live.held import Gang, Held
from controlplane.live.observe import Observation
from controlplane.live.room import Room
from controlplane.models import Round
from controlplane.rounds import Applied, RejectCode, Rejected
from jobs.lifecycle import JobMove
from jobs.models import Attempt, Job
from jobs.moves import LostRaceError, move_job, note_job
from policies.plan import Placement, Plan
from policies.snapshot import Purpose, RankSeat

ACTOR = "round"
OFFER = "offer"


class Evict(Protocol):
    """How the loop asks for a gang's end: `clusters.services.evict`."""

    def __call__(self, assignment_id: UUID, actor: str, now: datetime | None = None) -> object:
        """Pre-empt the assignment's gang: a job that ran moves to STOPPING, or back to the queue if nothing was taken yet."""
        ...


class ProfileRunStarted(Protocol):
    """How the profiler learns that a run was placed: `profiling.services.profile_run_started`."""

    def __call__(self, job: Job, copy: int) -> None:
        """Note it, in the transaction that writes the assignment."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """What applying a plan needs of the rest of the house."""

    evict: Evict
    profile_run_started: ProfileRunStarted


def apply_plan(observed: Observation, plan: Plan, of_round: Round, services: Services, now: datetime) -> Applied:
    """Make the plan so. To be called in a transaction that holds the round's lock; see `Applied` for what comes back."""
    return _Application(observed, plan, of_round, services, now).run()


class _Application:
    def __init__(self, observed: Observation, plan: Plan, of_round: Round, services: Services, now: datetime) -> None:
        self.observed, self.plan, self.round, self.services, self.now = observed, plan, of_round, services, now
        self.on_node = Counter(seat.node for p in plan.placements for seat in p.ranks for _ in seat.devices)

    def run(self) -> Applied:
        cluster = self.observed.cluster
        gangs = {gang.key: gang for gang in Held(cluster).gangs()}
        todo = changes({key: gang.running for key, gang in gangs.items()}, self.plan)
        _lock(todo)
        for change in todo:
            self._stop_or_keep(change, gangs)
        launches = [c.placement for c in todo if isinstance(c, Start | Migrate | Resize)]
        if not launches:
            return Applied(todo)
        self.room = Room(cluster, self.observed.snapshot.node_by_id, self.now, {seat.node for p in launches for seat in p.ranks})
        jobs = Job.objects.in_bulk({p.job for p in launches})
        self.jobs = {str(pk): job for pk, job in jobs.items()}
        rejected = (self._launch(placement) for placement in launches)
        return Applied(todo, tuple(r for r in rejected if r is not None))

    def _stop_or_keep(self, change: Change, gangs: Mapping[Any, Gang]) -> None:
        match change:
            case Preempt(key=key) | Migrate(placement=Placement(key=key)) | Resize(placement=Placement(key=key)):
                self.services.evict(gangs[key].assignments[0].pk, ACTOR, self.now)
            case Keep(key=key, placement=Placement() as placement) if change.changes_term:
                same = Q(pk__in=[a.pk for a in gangs[key].assignments], state__in=LIVE)
                Assignment.objects.filter(same).update(term_until=_time(placement.until_s), steps_quota=placement.steps_quota)

    def _launch(self, placement: Placement) -> Rejected | None:
        job = self.jobs.get(placement.job)
        refused = self.room.refusal(placement, job)
        if refused is not None or job is None:
            return refused
        try:
            with transaction.atomic():
                taken = self._write(placement, job)
        except (IntegrityError, LostRaceError) as error:
            return Rejected(placement.key, RejectCode.STALE, f"somebody was faster: {error}")
        for assignment, devices in taken:
            self.room.take(assignment, job, devices)
        return None

    def _write(self, placement: Placement, job: Job) -> list[tuple[Assignment, list[tuple[Device, int]]]]:
        fence = job.fence + 1
        attempt = _attempt(job) if placement.purpose is Purpose.TRAINING else None
        data = {"round": self.round.number, "fence": fence, "nodes": [s.node for s in placement.ranks], "gpus": placement.gpus}
        if placement.purpose is Purpose.TRAINING:
            move_job(job, JobMove.PLACE, actor=ACTOR, data=data, fence=fence, waiting_code="", waiting_detail={})
        else:
            self._next_fence(job, fence)
            note_job(job, "profile_run", actor=ACTOR, data={**data, "copy": placement.copy})
            self.services.profile_run_started(job, placement.copy)
        return [self._offer(placement, rank, seat, job, attempt) for rank, seat in enumerate(placement.ranks)]

    def _next_fence(self, job: Job, fence: int) -> None:
        """A profile run changes no state of its job, so its fence alone is compared and swapped."""
        if not Job.objects.filter(pk=job.pk, state=job.state, fence=job.fence).update(fence=fence):
            raise LostRaceError(f"job {job.pk} is no longer {job.state} at fence {job.fence}")
        job.fence = fence

    def _offer(
        self, placement: Placement, rank: int, seat: RankSeat, job: Job, attempt: Attempt | None
    ) -> tuple[Assignment, list[tuple[Device, int]]]:
        steps = job.checkpoint_steps if placement.purpose is Purpose.TRAINING else 0
        assignment = Assignment.objects.create(
            job=job, attempt=attempt, round=self.round, node=self.room.nodes[seat.node], purpose=placement.purpose,
            copy=placement.copy, rank=rank, world_size=len(placement.ranks), gpus=len(seat.devices), fence=job.fence,
            share=seat.share, cpu_quota=seat.cpu_quota, steps_quota=placement.steps_quota, term_until=_time(placement.until_s),
            start_steps=steps, steps_done=steps, checkpoint_steps=steps, **self._predicted(placement, seat, job),
        )  # fmt: skip
        devices = [self._slot(seat.node, uuid) for uuid in seat.devices]
        rows = [AssignmentSlot(assignment=assignment, device=d, slot=slot, share=seat.share) for d, slot in devices]
        AssignmentSlot.objects.bulk_create(rows)
        AssignmentEvent.objects.create(assignment=assignment, move=OFFER, to_state=assignment.state)
        return assignment, devices

    def _slot(self, node: str, uuid: str) -> tuple[Device, int]:
        device = self.room.devices[node, uuid]
        slot = self.room.free_slot(device)
        return device, 0 if slot is None else slot

    def _predicted(self, placement: Placement, seat: RankSeat, job: Job) -> dict[str, Any]:
        """What the round expects:

        the gang's speed, the rank's part of its node's watts under this plan, and the policy's own figures.
        """
        snapshot = self.observed.snapshot
        node = snapshot.node_by_id[seat.node]
        kind, on_type = snapshot.kind_index.get(str(job.kind_id)), snapshot.type_index[node.gpu_type]
        known = kind is not None and placement.gpus <= snapshot.max_gpus
        speed = float(snapshot.throughputs[kind, on_type, placement.gpus]) if known else 0.0
        on_node = max(self.on_node[seat.node], 1)
        power_w = node.power_w[min(on_node, len(node.power_w) - 1)] * len(seat.devices) / on_node
        cost = placement.predicted_energy_cost
        return {
            "predicted_run_s": placement.predicted_run_s,
            "predicted_steps_per_s": speed or None,
            "predicted_power_w": power_w,
            "predicted_energy_cost": None if cost is None else Decimal(repr(cost)).quantize(Decimal("0.00000001")),
        }


def _lock(todo: Sequence[Change]) -> None:
    """Lock what will change in the order everybody keeps to: nodes, then jobs. (SQLite's writer is alone anyhow.)

    Not their keys: whoever commits a row that points at one of them takes a share of its key, out of any order.
    """
    changing = [c for c in todo if not isinstance(c, Keep)]
    seats = [s for c in changing for s in _ranks(c)]
    node_ids, job_ids = {s.node for s in seats}, {_job(c) for c in changing}
    list(Node.objects.select_for_update(no_key=True).filter(pk__in=node_ids).order_by("pk").values_list("pk"))
    list(Job.objects.select_for_update(no_key=True).filter(pk__in=job_ids).order_by("pk").values_list("pk"))


def _ranks(change: Change) -> tuple[RankSeat, ...]:
    before = () if isinstance(change, Start) else change.before.ranks
    after = () if isinstance(change, Keep | Preempt) else change.placement.ranks
    return (*before, *after)


def _job(change: Change) -> str:
    return change.key[0] if isinstance(change, Keep | Preempt) else change.placement.job


def _attempt(job: Job) -> Attempt:
    """The job's open attempt; a new one at its first launch, and after one that has ended."""
    last = job.attempts.order_by("-number").first()
    if last is not None and last.ended_at is None:
        return last
    return Attempt.objects.create(job=job, number=1 if last is None else last.number + 1)


def _time(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
