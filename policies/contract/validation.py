"""The one check of a plan, in both worlds and in every test: `validate_plan(plan, snapshot)`.

A plan is the whole decision: profile runs that it does not mention end, so judge a policy's plan
with the profile placements merged in.

The rules by code:

- identity: `unknown_job`, `unknown_node`, `unknown_device`, `empty_placement`,
  `duplicate_placement` (one per job, purpose and copy), `profiled_and_placed` (a job's command
  never runs beside its real run);
- devices: `device_slots`, `device_share`, `device_unhealthy`, `may_not_share`, `device_taken` (by a
  job outside the snapshot);
- gangs: `gang_size` (devices over all ranks within gpus_min..gpus_max), `type_not_allowed`,
  `may_not_mix`, `labels_missing`, `profile_mismatch`;
- batch jobs: `units` (all of them seated, each with its devices on one node, no more on a node and
  on no other number of nodes than the job allows), `exclusive` (alone on its nodes);
- running jobs: `may_not_stop` (a job that is not preemptible stays while its nodes take or keep
  jobs, unless power is capped), `not_carried_out` (units or steps_quota of a placement
  that stays where it is);
- nodes: `node_state`, `node_role`, `node_cores`, `node_memory`, `node_resource`; a job may stay, on
  the same devices, on a node that is cordoned, changes to profiling, or drains later;
- teams: `team_gpus` (no more than a team may use, or than it holds already);
- the cluster: `power_cap` (of now, and of every moment up to the next periodic round at which the
  cap changes);
- completeness: `job_missing`, `waiting_twice`, `placed_and_waiting`, `awaiting_profile`;
- numbers: `not_finite`, `out_of_range`.

A node that its job should avoid breaks no rule (`labels.is_wish`). `repair.repaired` takes the
gangs that break a rule out of a plan.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from operator import attrgetter

from policies.contract.placement_rules import TOLERANCE, PlacementRules, Violation, stays
from policies.contract.plan import (
    HIGHEST_COST,
    LAST_S,
    LONGEST_RUN_S,
    Plan,
    WaitCode,
)
from policies.contract.snapshot import (
    PROFILING,
    TRAINING,
    JobPhase,
    NodeState,
    NodeView,
    Purpose,
    Running,
    Snapshot,
)

__all__ = [
    "TOLERANCE", "Violation", "node_violations", "power_violations", "power_w", "team_violations",
    "validate_plan",
]  # fmt: skip

RANGES: Sequence[tuple[str, float, float]] = (
    ("until_s", -inf, LAST_S),
    ("predicted_run_s", 0.0, LONGEST_RUN_S),
    ("predicted_energy_cost", -HIGHEST_COST, HIGHEST_COST),
)
"""Range of each figure in the JSON form of a placement."""


def validate_plan(plan: Plan, snapshot: Snapshot) -> tuple[Violation, ...]:
    """Return every breach of the rules of the snapshot's cluster; empty if it may be applied."""
    rules = PlacementRules(plan, snapshot)
    placed = _jobs_placed_for(plan, TRAINING)
    return (
        *rules.violations(),
        *_duplicate_placements(plan),
        *_profiled_and_placed(plan, placed),
        *_undecided_jobs(plan, placed, snapshot),
        *_wrong_waiting_entries(plan, placed, snapshot),
        *_stopped_jobs(plan, snapshot),
        *_placement_numbers(plan, snapshot.now_s),
        *_plan_numbers(plan),
        *rules.on_devices(),
        *rules.on_nodes(),
        *rules.alone(),
        *team_violations(plan, snapshot),
        *power_violations(plan, snapshot),
    )


def node_violations(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the breaches of the rules on devices and nodes."""
    rules = PlacementRules(plan, snapshot)
    rules.violations()  # counts what the placements use
    yield from rules.on_devices()
    yield from rules.on_nodes()
    yield from rules.alone()


def _jobs_placed_for(plan: Plan, purpose: Purpose) -> set[str]:
    """Return the jobs that have a placement for this purpose."""
    return {placement.job for placement in plan.placements if placement.purpose is purpose}


def _duplicate_placements(plan: Plan) -> Iterator[Violation]:
    """Yield the copies of jobs that are placed several times for one purpose."""
    keys = [(placement.job, placement.purpose, placement.copy) for placement in plan.placements]
    if len(set(keys)) == len(keys):
        return
    for (job, purpose, copy), times in Counter(keys).items():
        if times > 1:
            detail = f"copy {copy} of job {job} ({purpose.value}) is placed {times} times"
            yield Violation("duplicate_placement", detail, job)


def _profiled_and_placed(plan: Plan, placed: set[str]) -> Iterator[Violation]:
    """Yield the jobs that have a profile run and are `placed` for their work, too."""
    for job in sorted(placed & _jobs_placed_for(plan, PROFILING)):
        detail = f"job {job} would run twice at once: place it or measure it"
        yield Violation("profiled_and_placed", detail, job)


def _undecided_jobs(plan: Plan, placed: set[str], snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the jobs that are neither `placed` nor waiting; one that is being profiled may be."""
    ids = snapshot.jobs.columns.ids
    phases = snapshot.jobs.columns.others["phase"]
    waiting = {entry.job for entry in plan.waiting}
    undecided = [row for row, job in enumerate(ids) if job not in placed and job not in waiting]
    if not undecided:
        return
    profiled = _jobs_placed_for(plan, PROFILING)
    for row in undecided:
        job = ids[row]
        if not (phases[row] is JobPhase.PROFILING and job in profiled):
            detail = f"job {job} is neither placed nor waiting: say which"
            yield Violation("job_missing", detail, job)


def _wrong_waiting_entries(plan: Plan, placed: set[str], snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the waiting entries that are wrong by themselves, and the jobs with several."""
    for entry in plan.waiting:
        yield from _wrong_waiting_entry(entry.job, entry.code, placed, snapshot)
    jobs = [entry.job for entry in plan.waiting]
    if len(set(jobs)) == len(jobs):
        return
    for job, times in Counter(jobs).items():
        if times > 1:
            detail = f"job {job} waits {times} times: give one reason"
            yield Violation("waiting_twice", detail, job)


def _wrong_waiting_entry(
    job: str, code: WaitCode, placed: set[str], snapshot: Snapshot
) -> Iterator[Violation]:
    """Yield what is wrong with the reason of one job; `placed`: jobs with a placement."""
    row = snapshot.jobs.position.get(job)
    if row is None:
        yield Violation("unknown_job", f"waiting job {job} is not in the snapshot", job)
        return
    if job in placed:
        detail = f"job {job} is both placed and waiting: say which"
        yield Violation("placed_and_waiting", detail, job)
    is_profiled = snapshot.jobs.columns.others["phase"][row] is JobPhase.PROFILING
    if is_profiled and code not in (WaitCode.AWAITING_PROFILE, WaitCode.TEAM_LIMIT):
        still = f"job {job} is still being profiled"
        detail = f"{still}: it waits with awaiting_profile, not {code}"
        yield Violation("awaiting_profile", detail, job)


def _stopped_jobs(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the running jobs that are not preemptible, and that the plan stops or moves."""
    columns = snapshot.jobs.columns
    preemptible = columns.others["preemptible"]
    if snapshot.caps_ahead or all(preemptible):
        return
    placement_of = {p.job: p for p in plan.placements if p.purpose is TRAINING}
    for row, running in enumerate(columns.others["running"]):
        if preemptible[row] or not running:
            continue
        job = columns.ids[row]
        placement = placement_of.get(job)
        if placement is not None and stays(placement, running):
            continue
        runs = [run for run in running if run.purpose is TRAINING]
        if runs and all(_may_go_on(snapshot, run) for run in runs):
            detail = f"job {job} runs and is not preemptible: keep it where it is"
            yield Violation("may_not_stop", detail, job)


def _may_go_on(snapshot: Snapshot, run: Running) -> bool:
    """Return True if all nodes and devices of a run are there, and no node drains."""
    for seat in run.ranks:
        node = snapshot.node_by_id.get(seat.node)
        if node is None or node.state not in (NodeState.READY, NodeState.CORDONED):
            return False
        healthy = {device.id for device in node.devices if device.healthy}
        if not healthy.issuperset(seat.devices):
            return False
    return True


def _placement_numbers(plan: Plan, now_s: float) -> Iterator[Violation]:
    """Yield the figures of placements that are not finite or out of their range."""
    # 1. Figures with a fixed range.
    for name, least, most in RANGES:
        figure_of = attrgetter(name)
        for placement in plan.placements:
            value = figure_of(placement)
            if value is None or least <= value <= most:
                continue
            subject = f"{name} of job {placement.job} is {value}"
            if not isfinite(value):
                detail = f"{subject}: give a finite number or none"
                yield Violation("not_finite", detail, placement.job)
            else:
                detail = f"{subject}: must be {least:g} to {most:g} or none"
                yield Violation("out_of_range", detail, placement.job)

    # 2. A placement ends after at least a step, and in the future.
    for placement in plan.placements:
        quota = placement.steps_quota
        if quota is not None and quota < 1:
            detail = f"steps_quota of job {placement.job} is {quota}: must be >= 1 or none"
            yield Violation("out_of_range", detail, placement.job)
        until_s = placement.until_s
        if until_s is not None and until_s <= now_s:
            detail = f"until_s of job {placement.job} is {until_s}, which is past: it is {now_s}"
            yield Violation("out_of_range", detail, placement.job)


def _plan_numbers(plan: Plan) -> Iterator[Violation]:
    """Yield the other figures of a plan that are not finite."""
    yield from _not_finite({"objective": plan.objective, "bound": plan.bound})

    # Jobs of a class have the very same mapping of shares: it is named after the first of them.
    seen: set[int] = set()
    for job, share_of_type in plan.shares.items():
        if id(share_of_type) not in seen:
            seen.add(id(share_of_type))
            yield from _not_finite(share_of_type, f"shares of {job} on ")

    for entry in plan.waiting:
        figures = {"watts": entry.watts, "price": entry.price, "worth": entry.worth}
        if entry.expected is not None:
            figures["expected start_s"] = entry.expected.start_s
            figures["expected end_s"] = entry.expected.end_s
        yield from _not_finite(figures, after=f" of {entry.job}")


def _not_finite(
    figures: Mapping[str, float | None], before: str = "", after: str = ""
) -> Iterator[Violation]:
    """Yield those of these figures that are not finite; `before`, `after`: words beside names."""
    for name, value in figures.items():
        if value is not None and not isfinite(value):
            detail = f"{before}{name}{after} is {value}: give a finite number or none"
            yield Violation("not_finite", detail)


def team_violations(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the teams that would use more GPUs than they may."""
    limits = {team.name: team.max_gpus for team in snapshot.teams if team.max_gpus is not None}
    if not limits:
        return
    columns = snapshot.jobs.columns
    team_of = columns.others["team"]

    # 1. GPUs that each team's placements use.
    used = Counter[str]()
    for placement in plan.placements:
        row = snapshot.jobs.position.get(placement.job)
        if row is not None:
            used[team_of[row]] += placement.gpus

    # 2. A team above its limit may go on with as many GPUs as its running jobs have or need.
    held = Counter[str]()
    least = columns.listed["gpus_min"]
    for row, runs in enumerate(columns.others["running"]):
        if runs:
            held[team_of[row]] += max(least[row], sum([run.gpus for run in runs]))
    for team, most in limits.items():
        if used[team] > max(most, held[team]):
            detail = f"team {team} would use {used[team]} GPUs, and may use {most}"
            yield Violation("team_gpus", f"{detail}: leave some waiting")


def power_violations(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the caps that the placements exceed, now and until the next periodic round."""
    for since_s, cap_w in snapshot.caps_ahead:
        needed_w = power_w(snapshot.node_by_id, _devices_in_use(plan, since_s))
        if needed_w > cap_w + TOLERANCE * max(1.0, cap_w):
            limit = f"the cluster may use {cap_w:g} W"
            if since_s > snapshot.now_s:
                limit += f" from {since_s:g} on, before the next round"
            detail = f"the placements need {needed_w:g} W, {limit}: leave some waiting"
            yield Violation("power_cap", detail)


def _devices_in_use(plan: Plan, at_s: float) -> Mapping[str, int]:
    """Return by node the number of devices that placements use at a time; 0 if they use others.

    A device that several placements share counts once.
    """
    devices_of: dict[str, set[str]] = {}
    for placement in plan.placements:
        if placement.until_s is None or placement.until_s > at_s:
            for seat in placement.ranks:
                devices_of.setdefault(seat.node, set()).update(seat.devices)
    return {node: len(devices) for node, devices in devices_of.items()}


def power_w(nodes: Mapping[str, NodeView], used: Mapping[str, int]) -> float:
    """Return the IT power in watts of working nodes; `used`: devices in use by node.

    Nodes that are not among `nodes` count as 0.
    """
    watts = [nodes[node].draw_w(gpus, works=True) for node, gpus in used.items() if node in nodes]
    return float(sum(watts))
