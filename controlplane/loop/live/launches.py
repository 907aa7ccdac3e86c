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
from controlplane.loop.changes import PlacementKey
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

JOB_COLUMNS = (
    "state", "fence", "kind_id", "cores", "memory_gb", "resources", "checkpoint_steps",
    "repeatable", "batch", "array", "exclusive", "team",
)  # fmt: skip  # a long list of names
"""Columns of a job that a launch needs; commands and environments may be long."""

OVERTAKEN_ERRORS = (IntegrityError, LostRaceError)
"""Errors of a launch that a concurrent write has overtaken."""


class _RefusedError(Exception):
    """A profile run cannot be launched: `rejected` says why."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.detail)
        self.rejected = rejected


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """Placement that fits, with its job and the rows to write for each rank."""

    placement: Placement
    job: Job
    ranks: Sequence[tuple[Assignment, Sequence[AssignmentSlot]]]


class Launcher:
    """Launcher of a plan's gangs in the caller's transaction, which holds the round's lock.

    `gpus_in_use`: by node, devices that the plan uses; `gpus_held`: by node, the same by the shares
    that jobs hold.
    """

    def __init__(self, observed: Observation, plan: Plan, of_round: Round) -> None:
        self.observed = observed
        self.round = of_round
        self.speeds = PlanSpeeds(observed.snapshot, plan.placements)
        devices: set[tuple[str, str]] = set()
        self.gpus_held: dict[str, float] = defaultdict(float)
        for placement in plan.placements:
            devices.update(devices_of(placement.ranks))
            for seat in placement.ranks:
                self.gpus_held[seat.node] += len(seat.devices) * seat.share
        self.gpus_in_use = Counter(node for node, _ in devices)

    def launch(self, placements: Sequence[Placement], now: datetime) -> tuple[Rejected, ...]:
        """Launch all that fit, profile runs last; return the rejected. One fence each."""
        if not placements:
            return ()
        self.now = now
        self._read_newest_state(placements)
        rejected: dict[PlacementKey, Rejected] = {}

        # 1. Training and batch jobs, in batches.
        training = [p for p in placements if p.purpose is Purpose.TRAINING]
        for begin in range(0, len(training), BATCH):
            for refusal in self._launch_batch(training[begin : begin + BATCH], placements):
                rejected[refusal.key] = refusal

        # 2. Profile runs, each alone or with the one that shares its devices.
        for group in _profile_runs_by_device(placements):
            for refusal in self._launch_profile_runs(group, placements):
                rejected[refusal.key] = refusal
        return tuple(rejected[p.key] for p in placements if p.key in rejected)

    def expected_steps_per_s(self, placement: Placement, kind: str) -> float | None:
        """Return the speed of the gang beside its co-tenants in the plan; None if unknown."""
        if self.speeds.is_assumed(kind):
            return None
        return self.speeds.of(placement, kind) or None

    def _read_newest_state(self, placements: Sequence[Placement]) -> None:
        """Read what is free now, and the jobs of these placements."""
        nodes = {seat.node for placement in placements for seat in placement.ranks}
        assignments = self.observed.held.newest() or self.observed.held
        self.free = FreeCapacity(assignments, self.observed.snapshot.node_by_id, self.now, nodes)
        self.ports = Ports()
        ids = {placement.job for placement in placements}
        jobs = Job.objects.only(*JOB_COLUMNS).in_bulk(ids)
        self.jobs = {str(pk): job for pk, job in jobs.items()}
        self.array_rooms = ArrayRooms(jobs.values())
        self.team_rooms = TeamRooms(self.observed.snapshot, assignments)

    def _launch_batch(
        self, batch: Sequence[Placement], placements: Sequence[Placement]
    ) -> list[Rejected]:
        """Launch the gangs of a batch together; one by one if the database refuses some.

        `placements`: all of the plan. Return the rejected.
        """
        try:
            with transaction.atomic():
                rejected: list[Rejected] = []
                launches: list[PreparedLaunch] = []
                for placement in batch:
                    launch = self._prepared(placement)
                    if isinstance(launch, Rejected):
                        rejected.append(launch)
                    else:
                        self._take(launch)
                        launches.append(launch)
                self._write_training(launches)
                return rejected
        except OVERTAKEN_ERRORS:
            # Undone: what they had taken is free, and their jobs are what they were.
            self._read_newest_state(placements)
        refusals = [self._launch_alone(placement) for placement in batch]
        return [refusal for refusal in refusals if refusal is not None]

    def _launch_alone(self, placement: Placement) -> Rejected | None:
        """Launch one gang in a savepoint; return the reason if it was rejected."""
        launch = self._prepared(placement)
        if isinstance(launch, Rejected):
            return launch
        try:
            with transaction.atomic():
                self._write_training([launch])
        except OVERTAKEN_ERRORS:
            return _overtaken(placement)
        self._take(launch)
        return None

    def _launch_profile_runs(
        self, group: Sequence[Placement], placements: Sequence[Placement]
    ) -> list[Rejected]:
        """Launch a profile run, or two that share a device: both or neither.

        `placements`: all of the plan. Return the rejected.
        """
        try:
            with transaction.atomic():
                for placement in group:
                    launch = self._prepared(placement)
                    if isinstance(launch, Rejected):
                        raise _RefusedError(launch)
                    self._write_profile_run(launch)
                    self._take(launch)
            return []
        except _RefusedError as error:
            rejected = [replace(error.rejected, key=placement.key) for placement in group]
            if len(group) == 1:
                return rejected  # nothing was written or taken
        except OVERTAKEN_ERRORS:
            rejected = [_overtaken(placement) for placement in group]
        # Undone: what they had taken is free, and their jobs are what they were.
        self._read_newest_state(placements)
        return rejected

    def _prepared(self, placement: Placement) -> PreparedLaunch | Rejected:
        """Return the rows of a launch, or why it does not fit the newest state."""
        job = self.jobs.get(placement.job)
        if job is None:
            return Rejected(placement.key, RejectCode.STALE, "the job is gone")
        refusal = (
            self.free.refusal(placement, job)
            or self.array_rooms.refusal(placement, job)
            or self.team_rooms.refusal(placement)
        )
        if refusal is not None:
            return refusal
        port = None
        if len(placement.ranks) > 1 and not job.batch:
            lead = self.free.nodes[placement.ranks[0].node]
            port = self.ports.choose(lead, job.pk, job.fence + 1)
        rows = [self._rank_rows(placement, rank, job, port) for rank in range(len(placement.ranks))]
        return PreparedLaunch(placement, job, rows)

    def _take(self, launch: PreparedLaunch) -> None:
        """Count a launch as taken, for the checks of later ones."""
        for assignment, slots in launch.ranks:
            bind_to_team(assignment.node, launch.job)
            self.free.take(assignment, launch.job, [(slot.device, slot.slot) for slot in slots])
        self.team_rooms.take(launch.placement)
        if launch.placement.purpose is Purpose.TRAINING:
            self.array_rooms.take(launch.job)

    def _write_training(self, launches: Sequence[PreparedLaunch]) -> None:
        """Write training runs, all or none: their jobs move."""
        attempts = _attempts([launch.job for launch in launches])
        for launch in launches:
            for assignment, _ in launch.ranks:
                assignment.attempt = attempts[launch.job.pk]
        moves = []
        for launch in launches:
            values = {
                "fence": launch.job.fence + 1,
                "waiting_code": "",
                "waiting_detail": dict[str, Any](),
            }
            moves.append(Moving(launch.job, values, self._event_data(launch)))
        move_jobs(moves, JobMove.PLACE, actor=ACTOR)
        _insert_offers(launches)

    def _write_profile_run(self, launch: PreparedLaunch) -> None:
        """Write a profile run. The job stays in its state and gets the next fence."""
        job = launch.job
        unchanged = Job.objects.filter(pk=job.pk, state=job.state, fence=job.fence)
        if not unchanged.update(fence=job.fence + 1):
            raise LostRaceError(f"job {job.pk} is no longer {job.state} at fence {job.fence}")
        data = {**self._event_data(launch), "copy": launch.placement.copy}
        job.fence += 1
        note_job(job, "profile_run", actor=ACTOR, data=data)
        profile_run_started(job, launch.placement.copy)
        _insert_offers([launch])

    def _event_data(self, launch: PreparedLaunch) -> dict[str, Any]:
        """Return the data of a launch's event, before the job's fence is raised."""
        data = {
            "round": self.round.number,
            "fence": launch.job.fence + 1,
            "nodes": [seat.node for seat in launch.placement.ranks],
            "gpus": launch.placement.gpus,
        }
        exploration = reason_of(self.observed.snapshot, launch.placement)
        if exploration:
            data["why"] = exploration
        return data

    def _rank_rows(
        self, placement: Placement, rank: int, job: Job, port: int | None
    ) -> tuple[Assignment, list[AssignmentSlot]]:
        """Return the assignment of a rank, and its slots of devices."""
        seat = placement.ranks[rank]
        steps = job.checkpoint_steps if placement.purpose is Purpose.TRAINING else 0
        assignment = Assignment(
            job=job,
            round=self.round,
            node=self.free.nodes[seat.node],
            purpose=placement.purpose,
            copy=placement.copy,
            rank=rank,
            world_size=len(placement.ranks),
            gpus=len(seat.devices),
            fence=job.fence + 1,
            units=seat.units,
            share=seat.share,
            gang_port=port,
            cpu_quota=seat.cpu_quota,
            steps_quota=placement.steps_quota,
            term_until=time_of(placement.until_s),
            start_steps=steps,
            steps_done=steps,
            checkpoint_steps=steps,
            **self._predictions(placement, seat, job),
        )
        slots = []
        for uuid in seat.devices:
            device = self.free.devices[seat.node, uuid]
            slot = self.free.free_slot(device) or 0
            slots.append(
                AssignmentSlot(assignment=assignment, device=device, slot=slot, share=seat.share)
            )
        return assignment, slots

    def _predictions(self, placement: Placement, seat: RankPlacement, job: Job) -> dict[str, Any]:
        """Return the columns of a rank's predicted run time, speed, power and energy cost."""
        # 1. Power: a part of its node's, by its GPUs of those in use; without any by its cores.
        node = self.observed.snapshot.node_by_id[seat.node]
        gpus = len(seat.devices) * seat.share
        if gpus:
            node_w = node.draw_w(self.gpus_in_use[seat.node])
            power_w = node_w * gpus / self.gpus_held[seat.node]
        else:
            power_w = node.part_w(0.0, 0, job.cores * seat.units)

        # 2. Cost: a part of its placement's.
        cost = None
        if placement.predicted_energy_cost is not None:
            part = placement.predicted_energy_cost * _fraction_of(placement, seat)
            cost = Decimal(repr(part)).quantize(Decimal("0.00000001"))
        run_s, source = self._predicted_run(placement)
        return {
            "predicted_run_s": run_s,
            "predicted_source": source,
            "predicted_steps_per_s": self.expected_steps_per_s(placement, str(job.kind_id)),
            "predicted_power_w": power_w,
            "predicted_energy_cost": cost,
        }

    def _predicted_run(self, placement: Placement) -> tuple[float | None, str]:
        """Return (run time in s, source): a batch job's prediction, else the policy's and ""."""
        jobs = self.observed.snapshot.jobs
        row = jobs.position[placement.job]
        source: str = jobs.columns.others["expected_source"][row]
        if not source:
            return placement.predicted_run_s, ""
        return float(jobs.columns.numbers["expected_run_s"][row]), source


def _fraction_of(placement: Placement, seat: RankPlacement) -> float:
    """Return the fraction of a placement that a seat is: by its GPUs, without any by its units."""
    if placement.gpus:
        return len(seat.devices) / placement.gpus
    return seat.units / sum(each.units for each in placement.ranks)


def _profile_runs_by_device(placements: Iterable[Placement]) -> list[list[Placement]]:
    """Return the profile runs, those that share their devices together."""
    groups: dict[object, list[Placement]] = defaultdict(list)
    for placement in placements:
        if placement.purpose is not Purpose.PROFILING:
            continue
        key: object = placement.key
        if all(seat.share < 1.0 for seat in placement.ranks):
            key = tuple(devices_of(placement.ranks))
        groups[key].append(placement)
    return list(groups.values())


def _overtaken(placement: Placement) -> Rejected:
    """Return the rejection of a launch that a concurrent write has overtaken."""
    return Rejected(placement.key, RejectCode.STALE, "the job changed while the round decided")


def _insert_offers(launches: Sequence[PreparedLaunch]) -> None:
    """Write the assignments of all ranks, with their slots and first events."""
    ranks = [rank for launch in launches for rank in launch.ranks]
    insert(Assignment, (assignment for assignment, _ in ranks))
    insert(AssignmentSlot, (slot for _, slots in ranks for slot in slots))
    events = [
        AssignmentEvent(assignment=assignment, move=OFFER, to_state=assignment.state)
        for assignment, _ in ranks
    ]
    insert(AssignmentEvent, events)


def _attempts(jobs: Iterable[Job]) -> Mapping[UUID, Attempt]:
    """Return each job's open attempt; a new one at its first launch, and after one that ended."""
    by_id = {job.pk: job for job in jobs}
    last: dict[UUID, Attempt] = {}
    for attempt in Attempt.objects.filter(job__in=list(by_id)).order_by("number"):
        last[attempt.job_id] = attempt
    attempts: dict[UUID, Attempt] = {}
    new: list[Attempt] = []
    for pk, job in by_id.items():
        if pk not in last:
            new.append(Attempt(job=job, number=1))
        elif last[pk].ended_at is not None:
            new.append(Attempt(job=job, number=last[pk].number + 1))
        else:
            attempts[pk] = last[pk]
    for attempt in Attempt.objects.bulk_create(new):
        attempts[attempt.job_id] = attempt
    return attempts


def time_of(at_s: float | None) -> datetime | None:
    """Return the time of these Unix seconds; None for None."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
