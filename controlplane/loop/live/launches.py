"""Launches of a plan, written in batches whose number of statements hardly grows.

Each gang is checked against the newest state and earlier launches (`recheck`). Gangs of a batch
that the database refuses are launched one by one in savepoints. Profile runs follow.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from controlplane.execution.gangs import Ports
from controlplane.execution.teams import bind_to_team
from controlplane.loop.live.arrays import ArrayRooms
from controlplane.loop.live.observe import Observation
from controlplane.loop.live.recheck import FreeCapacity
from controlplane.loop.live.team_rooms import TeamRooms
from controlplane.loop.models import Round
from controlplane.loop.rounds import RejectCode, Rejected
from controlplane.web.storage.bulk import insert
from jobs.lifecycle import JobMove
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot, Attempt, Job
from jobs.moves import LostRaceError, Moving, move_jobs, note_job
from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import Purpose, RankPlacement
from policies.placement.speed import PlanSpeeds, devices_of
from profiling.exploration import reason_of
from profiling.services import profile_run_started

ACTOR = "round"
OFFER = "offer"

BATCH = 100
"""Gangs per batch: enough to make statements cheap, few enough to stay brief."""

OF_A_JOB = (
    "state", "fence", "kind_id", "cores", "memory_gb", "resources", "checkpoint_steps",
    "repeatable", "batch", "array", "exclusive", "team",
)  # fmt: skip
"""Columns of launched jobs; commands and environments may be long."""

FASTER = (IntegrityError, LostRaceError)
"""Errors of a launch that a concurrent write has overtaken."""


class _RefusedError(Exception):
    def __init__(self, why: Rejected) -> None:
        super().__init__(why.detail)
        self.why = why


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """Placement that fits, with its job and the rows to write for each rank."""

    placement: Placement
    job: Job
    ranks: Sequence[tuple[Assignment, Sequence[AssignmentSlot]]]


class Launcher:
    """Launcher of a plan's gangs in the caller's transaction, which holds the round's lock."""

    def __init__(self, observed: Observation, plan: Plan, of_round: Round) -> None:
        self.observed, self.round = observed, of_round
        self.speeds = PlanSpeeds(observed.snapshot, plan.placements)
        self.in_use = Counter(
            node for node, _ in {key for p in plan.placements for key in devices_of(p.ranks)}
        )
        self.held: dict[str, float] = defaultdict(float)
        for seat in (seat for p in plan.placements for seat in p.ranks):
            self.held[seat.node] += len(seat.devices) * seat.share

    def launch(self, placements: Sequence[Placement], now: datetime) -> tuple[Rejected, ...]:
        """Launch all that fit, profile runs last; return the rejected. One fence each."""
        if not placements:
            return ()
        self.now = now
        self._look(placements)
        training = [p for p in placements if p.purpose is Purpose.TRAINING]
        parts = (training[i : i + BATCH] for i in range(0, len(training), BATCH))
        rejected = {r.key: r for part in parts for r in self._part(part, placements)}
        for together in _measured_together(placements):
            rejected |= {r.key: r for r in self._measure(together, placements)}
        return tuple(rejected[p.key] for p in placements if p.key in rejected)

    def expected_steps_per_s(self, placement: Placement, kind: str) -> float | None:
        """Speed of the gang beside its co-tenants in the plan; None if unknown."""
        known = not self.speeds.is_assumed(kind)
        return (self.speeds.of(placement, kind) or None) if known else None

    def _look(self, placements: Sequence[Placement]) -> None:
        nodes = {seat.node for p in placements for seat in p.ranks}
        held = self.observed.held.newest() or self.observed.held
        self.free = FreeCapacity(held, self.observed.snapshot.node_by_id, self.now, nodes)
        self.ports = Ports()
        jobs = Job.objects.only(*OF_A_JOB).in_bulk({p.job for p in placements})
        self.jobs = {str(pk): job for pk, job in jobs.items()}
        self.rooms = ArrayRooms(jobs.values())
        self.team_rooms = TeamRooms(self.observed.snapshot, held)

    def _part(self, part: Sequence[Placement], of: Sequence[Placement]) -> list[Rejected]:
        try:
            with transaction.atomic():
                rejected, launches = list[Rejected](), list[PreparedLaunch]()
                for placement in part:
                    if isinstance(found := self._found(placement), Rejected):
                        rejected.append(found)
                    else:
                        self._take(found)
                        launches.append(found)
                self._train(launches)
                return rejected
        except FASTER:
            self._look(of)  # for what they had taken is free, and their jobs are what they were
        return [r for r in map(self._alone, part) if r is not None]

    def _alone(self, placement: Placement) -> Rejected | None:
        found = self._found(placement)
        if isinstance(found, Rejected):
            return found
        try:
            with transaction.atomic():
                self._train([found])
        except FASTER:
            return _overtaken(placement)
        self._take(found)
        return None

    def _measure(self, together: Sequence[Placement], of: Sequence[Placement]) -> list[Rejected]:
        """Launch a profile run, or two that share a device: both or neither."""
        try:
            with transaction.atomic():
                for placement in together:
                    if isinstance(found := self._found(placement), Rejected):
                        raise _RefusedError(found)
                    self._profile(found)
                    self._take(found)
        except _RefusedError as refused:
            rejected = [replace(refused.why, key=placement.key) for placement in together]
            if len(together) == 1:
                return rejected
        except FASTER:
            rejected = [_overtaken(placement) for placement in together]
        else:
            return []
        self._look(of)  # for what was undone is free, and their jobs are what they were
        return rejected

    def _found(self, placement: Placement) -> PreparedLaunch | Rejected:
        job = self.jobs.get(placement.job)
        if job is None:
            return Rejected(placement.key, RejectCode.STALE, "the job is gone")
        refused = self.free.refusal(placement, job) or self.rooms.refusal(placement, job)
        refused = refused or self.team_rooms.refusal(placement)
        if refused is not None:
            return refused
        ranks, port = placement.ranks, None
        if len(ranks) > 1 and not job.batch:
            port = self.ports.choose(self.free.nodes[ranks[0].node], job.pk, job.fence + 1)
        rows = [self._rank(placement, rank, job, port) for rank in range(len(ranks))]
        return PreparedLaunch(placement, job, rows)

    def _take(self, launch: PreparedLaunch) -> None:
        for assignment, slots in launch.ranks:
            bind_to_team(assignment.node, launch.job)
            self.free.take(assignment, launch.job, [(slot.device, slot.slot) for slot in slots])
        self.team_rooms.take(launch.placement)
        if launch.placement.purpose is Purpose.TRAINING:
            self.rooms.take(launch.job)

    def _train(self, launches: Sequence[PreparedLaunch]) -> None:
        """Write training runs, all or none: their jobs move."""
        attempts = _attempts([launch.job for launch in launches])
        for launch in launches:
            for assignment, _ in launch.ranks:
                assignment.attempt = attempts[launch.job.pk]
        freed = {"waiting_code": "", "waiting_detail": dict[str, Any]()}
        moving = [
            Moving(one.job, {"fence": one.job.fence + 1, **freed}, self._data(one))
            for one in launches
        ]
        move_jobs(moving, JobMove.PLACE, actor=ACTOR)
        _offer(launches)

    def _profile(self, launch: PreparedLaunch) -> None:
        """Write a profile run. The job's state stays, so only its fence is compared."""
        job, data = launch.job, {**self._data(launch), "copy": launch.placement.copy}
        if not Job.objects.filter(pk=job.pk, state=job.state, fence=job.fence).update(
            fence=job.fence + 1
        ):
            raise LostRaceError(f"job {job.pk} is no longer {job.state} at fence {job.fence}")
        job.fence += 1
        note_job(job, "profile_run", actor=ACTOR, data=data)
        profile_run_started(job, launch.placement.copy)
        _offer([launch])

    def _data(self, launch: PreparedLaunch) -> dict[str, Any]:
        nodes = [seat.node for seat in launch.placement.ranks]
        explores = reason_of(self.observed.snapshot, launch.placement)
        return {
            "round": self.round.number,
            "fence": launch.job.fence + 1,
            "nodes": nodes,
            "gpus": launch.placement.gpus,
            **({"why": explores} if explores else {}),
        }

    def _rank(
        self, placement: Placement, rank: int, job: Job, port: int | None
    ) -> tuple[Assignment, list[AssignmentSlot]]:
        seat = placement.ranks[rank]
        steps = job.checkpoint_steps if placement.purpose is Purpose.TRAINING else 0
        assignment = Assignment(
            job=job, round=self.round, node=self.free.nodes[seat.node], purpose=placement.purpose,
            copy=placement.copy, rank=rank,
            world_size=len(placement.ranks), gpus=len(seat.devices), fence=job.fence + 1,
            units=seat.units, share=seat.share,
            gang_port=port, cpu_quota=seat.cpu_quota, steps_quota=placement.steps_quota,
            term_until=time_of(placement.until_s),
            start_steps=steps, steps_done=steps, checkpoint_steps=steps,
            **self._predicted(placement, seat, job),
        )  # fmt: skip
        devices = [self.free.devices[seat.node, uuid] for uuid in seat.devices]
        slots = [(device, self.free.free_slot(device) or 0) for device in devices]
        return assignment, [
            AssignmentSlot(assignment=assignment, device=d, slot=slot, share=seat.share)
            for d, slot in slots
        ]

    def _predicted(self, placement: Placement, seat: RankPlacement, job: Job) -> dict[str, Any]:
        """Speed beside co-tenants, its part of its node's watts, the policy's figures."""
        node = self.observed.snapshot.node_by_id[seat.node]
        if gpus := len(seat.devices) * seat.share:
            power_w = node.draw_w(self.in_use[seat.node]) * gpus / self.held[seat.node]
        else:
            power_w = node.part_w(0.0, 0, job.cores * seat.units)
        cost = placement.predicted_energy_cost
        if cost is not None:
            cost *= _part(placement, seat)
        run_s, source = self._expected_run(placement)
        return {
            "predicted_run_s": run_s,
            "predicted_source": source,
            "predicted_steps_per_s": self.expected_steps_per_s(placement, str(job.kind_id)),
            "predicted_power_w": power_w,
            "predicted_energy_cost": (
                None if cost is None else Decimal(repr(cost)).quantize(Decimal("0.00000001"))
            ),
        }

    def _expected_run(self, placement: Placement) -> tuple[float | None, str]:
        """Return the run time expected of a placement's job, and from where that is known."""
        jobs = self.observed.snapshot.jobs
        row = jobs.position[placement.job]
        source: str = jobs.columns.others["expected_source"][row]
        told_s = float(jobs.columns.numbers["expected_run_s"][row])
        return (told_s, source) if source else (placement.predicted_run_s, "")


def _part(placement: Placement, seat: RankPlacement) -> float:
    """Part of the whole placement that a seat is, by its GPUs, without any by its units."""
    if placement.gpus:
        return len(seat.devices) / placement.gpus
    return seat.units / sum(each.units for each in placement.ranks)


def _measured_together(placements: Iterable[Placement]) -> list[list[Placement]]:
    found: dict[object, list[Placement]] = defaultdict(list)
    for placement in placements:
        if placement.purpose is Purpose.PROFILING:
            shared = all(seat.share < 1.0 for seat in placement.ranks)
            found[tuple(devices_of(placement.ranks)) if shared else placement.key].append(placement)
    return list(found.values())


def _overtaken(placement: Placement) -> Rejected:
    return Rejected(placement.key, RejectCode.STALE, "the job changed while the round decided")


def _offer(launches: Sequence[PreparedLaunch]) -> None:
    ranks = [rank for launch in launches for rank in launch.ranks]
    insert(Assignment, (assignment for assignment, _ in ranks))
    insert(AssignmentSlot, (slot for _, slots in ranks for slot in slots))
    insert(
        AssignmentEvent,
        (AssignmentEvent(assignment=a, move=OFFER, to_state=a.state) for a, _ in ranks),
    )


def _attempts(jobs: Iterable[Job]) -> Mapping[UUID, Attempt]:
    """Each job's open attempt; new at its first launch, and after one that has ended."""
    by_id = {job.pk: job for job in jobs}
    last = {a.job_id: a for a in Attempt.objects.filter(job__in=list(by_id)).order_by("number")}
    going_on = {pk: a for pk, a in last.items() if a.ended_at is None}
    new = [
        Attempt(job=job, number=last[pk].number + 1 if pk in last else 1)
        for pk, job in by_id.items()
        if pk not in going_on
    ]
    return {**going_on, **{a.job_id: a for a in Attempt.objects.bulk_create(new)}}


def time_of(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
