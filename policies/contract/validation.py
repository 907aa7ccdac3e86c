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
from itertools import chain
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
    return (
        *rules.violations(),
        *_identity(plan),
        *_twice_at_once(plan),
        *_completeness(plan, snapshot),
        *_stopped(plan, snapshot),
        *_numbers(plan, snapshot.now_s),
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
    rules.violations()
    yield from rules.on_devices()
    yield from rules.on_nodes()
    yield from rules.alone()


def _identity(plan: Plan) -> Iterator[Violation]:
    keys = [(p.job, p.purpose, p.copy) for p in plan.placements]
    if len(set(keys)) == len(keys):
        return
    for (job, purpose, copy), times in Counter(keys).items():
        if times > 1:
            detail = f"copy {copy} of job {job} ({purpose.value}) is placed {times} times"
            yield Violation("duplicate_placement", detail, job)


def _twice_at_once(plan: Plan) -> Iterator[Violation]:
    profiled = {p.job for p in plan.placements if p.purpose is PROFILING}
    if not profiled:
        return
    placed = {p.job for p in plan.placements if p.purpose is TRAINING}
    for job in sorted(profiled & placed):
        detail = f"job {job} would run twice at once: place it or measure it"
        yield Violation("profiled_and_placed", detail, job)


def _completeness(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    ids, phases = snapshot.jobs.columns.ids, snapshot.jobs.columns.others["phase"]
    training = {p.job for p in plan.placements if p.purpose is TRAINING}
    waiting = {w.job for w in plan.waiting}
    missing = [row for row, job in enumerate(ids) if job not in training and job not in waiting]
    profiled = {p.job for p in plan.placements if p.purpose is PROFILING} if missing else set()
    for row in missing:
        job = ids[row]
        if not (phases[row] is JobPhase.PROFILING and job in profiled):
            detail = f"job {job} is neither placed nor waiting: say which"
            yield Violation("job_missing", detail, job)
    for entry in plan.waiting:
        yield from _waiting_entry(entry.job, entry.code, training, snapshot)
    if len(waiting) < len(plan.waiting):
        for job, times in Counter(w.job for w in plan.waiting).items():
            if times > 1:
                detail = f"job {job} waits {times} times: give one reason"
                yield Violation("waiting_twice", detail, job)


def _stopped(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the running jobs that are not preemptible, and that the plan stops or moves."""
    others, ids = snapshot.jobs.columns.others, snapshot.jobs.columns.ids
    if snapshot.caps_ahead or all(others["preemptible"]):
        return
    placed = {p.job: p for p in plan.placements if p.purpose is TRAINING}
    for row, (preemptible, of) in enumerate(
        zip(others["preemptible"], others["running"], strict=True)
    ):
        if preemptible or not of or ((p := placed.get(ids[row])) is not None and stays(p, of)):
            continue
        runs = [run for run in of if run.purpose is TRAINING]
        if runs and all(_may_go_on(snapshot, run) for run in runs):
            detail = f"job {ids[row]} runs and is not preemptible: keep it where it is"
            yield Violation("may_not_stop", detail, ids[row])


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


def _waiting_entry(
    job: str, code: WaitCode, training: set[str], snapshot: Snapshot
) -> Iterator[Violation]:
    row = snapshot.jobs.position.get(job)
    if row is None:
        yield Violation("unknown_job", f"waiting job {job} is not in the snapshot", job)
        return
    if job in training:
        detail = f"job {job} is both placed and waiting: say which"
        yield Violation("placed_and_waiting", detail, job)
    is_profiled = snapshot.jobs.columns.others["phase"][row] is JobPhase.PROFILING
    if is_profiled and code not in (WaitCode.AWAITING_PROFILE, WaitCode.TEAM_LIMIT):
        still = f"job {job} is still being profiled"
        detail = f"{still}: it waits with awaiting_profile, not {code}"
        yield Violation("awaiting_profile", detail, job)


def _numbers(plan: Plan, now_s: float) -> Iterator[Violation]:
    for name, least, most in RANGES:
        of = attrgetter(name)
        for placed in plan.placements:
            value = of(placed)
            if value is None or least <= value <= most:
                continue
            given = f"{name} of job {placed.job} is {value}"
            if not isfinite(value):
                detail = f"{given}: give a finite number or none"
                yield Violation("not_finite", detail, placed.job)
            else:
                detail = f"{given}: must be {least:g} to {most:g} or none"
                yield Violation("out_of_range", detail, placed.job)
    for placed in plan.placements:
        job, quota, until_s = placed.job, placed.steps_quota, placed.until_s
        if quota is not None and quota < 1:
            detail = f"steps_quota of job {job} is {quota}: must be >= 1 or none"
            yield Violation("out_of_range", detail, job)
        if until_s is not None and until_s <= now_s:
            detail = f"until_s of job {job} is {until_s}, which is past: it is {now_s}"
            yield Violation("out_of_range", detail, job)


def _plan_numbers(plan: Plan) -> Iterator[Violation]:
    numbers = [("objective", plan.objective), ("bound", plan.bound), *_shares(plan)]
    for entry in plan.waiting:
        if entry.watts is not None:
            numbers.append((f"watts of {entry.job}", entry.watts))
        numbers.append((f"price of {entry.job}", entry.price))
        numbers.append((f"worth of {entry.job}", entry.worth))
        if (expected := entry.expected) is not None:
            numbers.append((f"expected start_s of {entry.job}", expected.start_s))
            numbers.append((f"expected end_s of {entry.job}", expected.end_s))
    for name, value in numbers:
        if value is not None and not isfinite(value):
            yield Violation("not_finite", f"{name} is {value}: give a finite number or none")


def _shares(plan: Plan) -> Iterator[tuple[str, float]]:
    """Yield every share once, named after the first job of its class."""
    of_class = {id(of): of for of in plan.shares.values()}  # jobs of a class have the same mapping
    if all(map(isfinite, chain.from_iterable([of.values() for of in of_class.values()]))):
        return
    for job, by_type in plan.shares.items():
        shares = of_class.pop(id(by_type), {})
        yield from ((f"shares of {job} on {t}", share) for t, share in shares.items())


def team_violations(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the teams that would use more GPUs than they may."""
    limits = {t.name: t.max_gpus for t in snapshot.teams if t.max_gpus is not None}
    if not limits:
        return
    others, position = snapshot.jobs.columns.others, snapshot.jobs.position
    used, held = Counter[str](), Counter[str]()
    for placed in plan.placements:
        if (row := position.get(placed.job)) is not None:
            used[others["team"][row]] += placed.gpus
    least = snapshot.jobs.columns.listed["gpus_min"]
    for row, runs in enumerate(others["running"]):
        if runs:
            held[others["team"][row]] += max(least[row], sum([run.gpus for run in runs]))
    for team, most in limits.items():
        if used[team] > max(most, held[team]):
            detail = f"team {team} would use {used[team]} GPUs, and may use {most}"
            yield Violation("team_gpus", f"{detail}: leave some waiting")


def power_violations(plan: Plan, snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the caps that the placements exceed, now and until the next periodic round."""
    for since_s, cap in snapshot.caps_ahead:
        needed = power_w(snapshot.node_by_id, _in_use(plan, since_s))
        if needed > cap + TOLERANCE * max(1.0, cap):
            is_later = since_s > snapshot.now_s
            later = f" from {since_s:g} on, before the next round" if is_later else ""
            limit = f"the cluster may use {cap:g} W{later}"
            detail = f"the placements need {needed:g} W, {limit}: leave some waiting"
            yield Violation("power_cap", detail)


def _in_use(plan: Plan, at_s: float) -> Mapping[str, int]:
    """Devices in use by node with work."""
    seats = [s for p in plan.placements if p.until_s is None or p.until_s > at_s for s in p.ranks]
    used = Counter({seat.node: 0 for seat in seats})
    used.update(node for node, _ in {(seat.node, d) for seat in seats for d in seat.devices})
    return used


def power_w(nodes: Mapping[str, NodeView], used: Mapping[str, int]) -> float:
    """IT power of these nodes, which work, with `used` devices in use."""
    found = (nodes[n].draw_w(gpus, works=True) for n, gpus in used.items() if n in nodes)
    return float(sum(found))
