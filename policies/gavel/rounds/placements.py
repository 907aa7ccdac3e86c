"""Placements of a share policy's round: requests of its jobs, what may go on, and the result."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import inf

from policies.contract.plan import LONGEST_RUN_S, Placement, predicted, training_run
from policies.contract.snapshot import RankPlacement, Running
from policies.gavel.allocation.observe import Observed
from policies.placement.from_snapshot import CurrentPlacement, remaining_s
from policies.placement.layout import Allocation, Part, Request
from policies.placement.plan_builder import seats_of, staying_placement
from policies.placement.priced_options import with_quota
from policies.placement.speed import LaunchTimes, Speeds
from policies.placement.time_slices import ALONE, CurrentSlice, Placed

WHOLE = 1.0
HALF = 0.5
"""Share of a device of each of two jobs on it."""
MOST_HELD = WHOLE + 1e-9


class GroupRequests:
    """Requests by job (its row) and column; jobs of a group have the same ones."""

    def __init__(self, observed: Observed) -> None:
        self.observed, self.classes = observed, observed.classes
        self.group_of, self.rates = observed.classes.group_of, observed.classes.rates
        self.layout, self.jobs = observed.state.layout, observed.requests
        self._of: dict[tuple[int, int, int, bool], Sequence[Request]] = {}
        self._search_keys: dict[int, Hashable] = {}
        self._admitting: dict[tuple[int, int], int] = {}
        numbers: dict[Hashable, int] = {}
        every = [group.constraints for group in self.classes.groups]
        self._constraints = [numbers.setdefault(of, len(numbers)) for of in every]
        columns, number = observed.problem.columns, observed.classes.column_of
        self._nearer = [number.get((c.gpu_type, False)) if c.spread else None for c in columns]

    def of(self, job: int, column: int) -> Sequence[Request]:
        """Return a job's alternatives on a column: one node if it runs on one, else several."""
        nearer, g = self._nearer[column], self.group_of[job]
        on_one = column if nearer is None else nearer
        gpus, runs_on_one = self.classes.groups[g].gpus, self.rates[g][on_one] > 0.0
        key = self._constraints[g], gpus, column, runs_on_one
        if key not in self._of:
            self._of[key] = self._requests(job, column, on_one)
        return self._of[key]

    def together(self, first: int, second: int, column: int) -> Request | None:
        """Return the request of two jobs on one device of a column."""
        request = self.jobs.together((first, second))
        gpu_type = self.observed.problem.columns[column].gpu_type
        if request.types and gpu_type not in request.types:
            return None
        return replace(request, types=(gpu_type,))

    def is_pair(self, first: int, second: int, column: int) -> bool:
        """Return True if two jobs are a pair of the problem on a column."""
        return self.pair_rate(first, second, column) > 0.0

    def search_key(self, job: int) -> Hashable:
        """Return a key; of jobs with equal keys all fit on what is free, or none."""
        g = self.group_of[job]
        if g not in self._search_keys:
            group, runs_on = self.classes.groups[g], frozenset(self.columns(job))
            partners = g if group.shares else None
            self._search_keys[g] = group.gpus, self._constraints[g], runs_on, partners
        return self._search_keys[g]

    def columns(self, job: int) -> Sequence[int]:
        """Return the columns on which a job runs, the fastest first."""
        rates = self.rates[self.group_of[job]]
        return sorted([c for c, rate in enumerate(rates) if rate > 0.0], key=lambda c: -rates[c])

    def nearer(self, column: int) -> int | None:
        """Return the column of one node where this one is spread over several of that type."""
        return self._nearer[column]

    def rate(self, job: int, column: int) -> float:
        """Return a job's steps/s alone on a column."""
        return self.rates[self.group_of[job]][column]

    def pair_rate(self, job: int, other: int, column: int) -> float:
        """Return a job's steps/s beside another on a column, as its pair has it; 0 if unknown."""
        a, b = self.classes.class_of[job], self.classes.class_of[other]
        pair = self.classes.pair_row.get((min(a, b), max(a, b)))
        if pair is None:
            return 0.0
        return float(self.observed.problem.pair_rates[pair, column, 0 if a <= b else 1])

    def admitting(self, job: int, ranks: int) -> int:
        """Return the open nodes that would do for one of a job's processes, were they empty."""
        g, layout = self.group_of[job], self.layout
        key = self._constraints[g], ranks
        if key not in self._admitting:
            types, labels, _ = self.classes.groups[g].constraints
            request = layout.request(0, self.jobs.demand(job), types=types, labels=labels)
            classes, nodes = layout.admitting(request)
            roomy = [c for c in classes if request.fitting(layout.classes[c].capacity) > 0]
            among = sum(layout.members[c] for c in roomy)
            self._admitting[key] = among & nodes & self.observed.state.open
        return self._admitting[key]

    def _requests(self, job: int, column: int, on_one: int) -> list[Request]:
        group, of = self.classes.groups[self.group_of[job]], self.observed.problem.columns[column]
        found, types, (_, labels, _) = [], (of.gpu_type,), group.constraints
        if self.rate(job, on_one) > 0.0:
            demand = self.jobs.demand(job)
            found.append(self.layout.request(group.gpus, demand, types=types, labels=labels))
        if of.spread:
            found += self.jobs.spread(job, group.gpus, types=types)
        return found


def current_slices(observed: Observed, requests: GroupRequests) -> dict[int, CurrentSlice]:
    """Return by row the running jobs that may go on where they are, with who shares a device."""
    found, group_of, search = {}, observed.classes.group_of, _Search(observed, requests)
    for row, runs in enumerate(observed.snapshot.jobs.columns.others["running"]):
        if runs and group_of[row] >= 0 and (run := training_run(runs)) is not None:
            current = search.on_one_node(row, run) if len(run.ranks) == 1 else search.of(row, run)
            if current is not None:
                found[row] = current
    return _with_partners(found) if any(c.shares for c in found.values()) else found


class _Search:
    """Search for the current placement of a running job; None if it may not go on there."""

    def __init__(self, observed: Observed, requests: GroupRequests) -> None:
        self.observed, self.requests, self.layout = observed, requests, observed.state.layout
        self.classes, self.idle = observed.classes, observed.state.idle
        self.index, number = self.layout.index, self.classes.column_of
        self.columns = [number.get((of.gpu_type, False)) for of in self.layout.classes]
        self.group_of, self.rates = self.classes.group_of, self.classes.rates
        self._suitable: dict[tuple[int, int], tuple[Request, int]] = {}

    def on_one_node(self, row: int, run: Running) -> CurrentSlice | None:
        """Return the placement of one process."""
        rank, g = run.ranks[0], self.group_of[row]
        n = self.index.get(rank.node, -1)
        column = self.columns[self.layout.class_of[n]] if n >= 0 else None
        if column is None or self.rates[g][column] <= 0.0:
            return None
        if (g, column) not in self._suitable:
            of_group = self.requests.of(row, column)[0], self.requests.admitting(row, 1)
            self._suitable[g, column] = of_group
        request, nodes = self._suitable[g, column]
        shares, devices = rank.share != WHOLE, self.layout.bits(n, rank.devices)
        if not len(rank.devices) == devices.bit_count() == request.gpus:
            return None
        if devices & ~self.idle[n] or not nodes >> n & 1:
            return None
        if shares and not self.classes.groups[g].shares:
            return None
        if rank.cpu_quota is not None:
            demand = with_quota(self.observed.requests.demand(row), run.ranks)
            request = replace(request, amounts=self.layout.amounts(demand))
        return CurrentSlice(row, run, column, Allocation(request, (Part(n, 1, devices),)), shares)

    def of(self, row: int, run: Running) -> CurrentSlice | None:
        """Return the placement of a gang of several processes, on nodes of one type."""
        group, layout = self.classes.groups[self.classes.group_of[row]], self.layout
        nodes = [self.index.get(seat.node, -1) for seat in run.ranks]
        if min(nodes) < 0 or any(seat.share != WHOLE for seat in run.ranks):
            return None
        found = [self._devices(row, len(nodes), *of) for of in zip(nodes, run.ranks, strict=True)]
        types = {layout.classes[layout.class_of[n]].gpu_type for n in nodes}
        if not all(found) or len(types) > 1 or sum(d.bit_count() for d in found) != group.gpus:
            return None
        column = self.classes.column_of.get((types.pop(), len(set(nodes)) > 1))
        allocation = self.observed.requests.allocation_of(row, run)
        if column is None or allocation is None or self.requests.rate(row, column) <= 0.0:
            return None
        return CurrentSlice(row, run, column, allocation)

    def _devices(self, row: int, ranks: int, n: int, seat: RankPlacement) -> int:
        """Return the devices of a process as a set; 0 if it may not be there."""
        devices = self.layout.bits(n, seat.devices)
        if devices.bit_count() < len(seat.devices) or devices & ~self.idle[n]:
            return 0
        if not self.requests.admitting(row, ranks) >> n & 1:
            return 0
        return devices


def _with_partners(found: dict[int, CurrentSlice]) -> dict[int, CurrentSlice]:
    at: dict[tuple[Part, ...], list[int]] = defaultdict(list)
    for current in found.values():
        at[current.allocation.parts].append(current.job)
    share = {job: of.run.ranks[0].share if of.shares else inf for job, of in found.items()}
    pairs = [of for of in at.values() if len(of) == 2 and share[of[0]] + share[of[1]] <= MOST_HELD]
    partner = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    return {job: of._replace(partner=partner.get(job, ALONE)) for job, of in found.items()}


def to_placements(
    observed: Observed,
    requests: GroupRequests,
    current: Mapping[int, CurrentSlice],
    placed: Mapping[int, Placed],
) -> tuple[Placement, ...]:
    """Return the placements in the jobs' order.

    Jobs on draining nodes without a place elsewhere stay until the drain, while power lasts.
    """
    state, made = observed.state, _Placements(observed, requests, current)
    found = {job: made.placement(job, of) for job, of in placed.items()}
    found |= {stay.row: made.staying(stay) for stay in observed.pinned}
    for row, stay in observed.fallback.items():
        if row not in found and state.try_take(stay.allocation):
            found[row] = made.staying(stay)
    return tuple([found[row] for row in sorted(found)])


class _Placements:
    def __init__(
        self, observed: Observed, requests: GroupRequests, current: Mapping[int, CurrentSlice]
    ) -> None:
        self.observed, self.current = observed, current
        self.layout, self.snapshot = observed.state.layout, observed.snapshot
        self.group_of, self.rates = requests.group_of, requests.rates
        self.speeds, columns = Speeds.of(self.snapshot), self.snapshot.jobs.columns
        self.launch_times = LaunchTimes(self.snapshot)
        self.kinds, self.ids = columns.kinds, columns.ids
        self.steps = columns.numbers["remaining_steps"].tolist()

    def placement(self, job: int, placed: Placed) -> Placement:
        """Return a job's placement with its predicted run time; a launch takes time too."""
        alone = self.rates[self.group_of[job]][placed.column]
        rate = alone if len(placed.jobs) == 1 else self._beside(job, placed, alone)
        run_s = self.steps[job] / rate if rate > 0.0 else inf
        if job in placed.staying:
            run, run_s = self.current[job].run, predicted(run_s, LONGEST_RUN_S)
            return Placement(self.ids[job], run.ranks, run.copy, predicted_run_s=run_s)
        run_s = predicted(run_s + self.launch_times.of(job), LONGEST_RUN_S)
        return Placement(self.ids[job], self._ranks(placed), 0, predicted_run_s=run_s)

    def _beside(self, job: int, placed: Placed, alone: float) -> float:
        """Return the steps/s of a job that shares its device; 0 if unknown."""
        others = [self.kinds[other] for other in placed.jobs if other != job]
        gpu_type = self.observed.problem.columns[placed.column].gpu_type
        return self.speeds.colocated(self.kinds[job], alone, 1, [(gpu_type, others)])

    def staying(self, stay: CurrentPlacement) -> Placement:
        """Return a job outside of the decision, where it is, until its node must be empty."""
        return staying_placement(self.snapshot, stay, remaining_s(self.snapshot, self.speeds, stay))

    def _ranks(self, placed: Placed) -> tuple[RankPlacement, ...]:
        share = WHOLE if len(placed.jobs) == 1 else HALF
        return seats_of(self.layout, placed.allocation, share=share)
