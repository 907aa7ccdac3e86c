"""Placements of a share policy's round: requests of its jobs, what may go on, and the result."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import inf

from policies.contract.plan import LONGEST_RUN_S, Placement, predicted, training_run
from policies.contract.snapshot import RankPlacement, Running
from policies.gavel.allocation.observe import Observed
from policies.placement.from_snapshot import CurrentPlacement, remaining_s
from policies.placement.layout import Allocation, DeviceSet, NodeSet, Part, Request
from policies.placement.plan_builder import seats_of, staying_placement
from policies.placement.priced_options import with_quota
from policies.placement.speed import LaunchTimes, Speeds
from policies.placement.time_slices import ALONE, CurrentSlice, Placed

WHOLE = 1.0
"""Share of a device of a job that has it alone."""

HALF = 0.5
"""Share of a device of each of two jobs on it."""

MOST_HELD = WHOLE + 1e-9
"""Most shares of a device together, with room for errors of floating point."""


class GroupRequests:
    """Requests by job (its row) and column; jobs of a group have the same ones."""

    def __init__(self, observed: Observed) -> None:
        self.observed = observed
        self.classes = observed.classes
        self.group_of = observed.classes.group_of
        self.rates = observed.classes.rates
        self.layout = observed.state.layout
        self.jobs = observed.requests

        # By group: a number for its constraints, the same where these are equal.
        numbers: dict[Hashable, int] = {}
        self._constraints: list[int] = []
        for group in self.classes.groups:
            number = numbers.setdefault(group.constraints, len(numbers))
            self._constraints.append(number)

        # By column: that of one node if it is spread over several, else None.
        self._one_node_columns: list[int | None] = []
        for column in observed.problem.columns:
            on_one_node = self.classes.column_of.get((column.gpu_type, False))
            self._one_node_columns.append(on_one_node if column.spread else None)

        self._alternatives: dict[tuple[int, int, int, bool], Sequence[Request]] = {}
        self._search_keys: dict[int, Hashable] = {}
        self._admitting: dict[tuple[int, int], NodeSet] = {}

    def alternatives(self, job: int, column: int) -> Sequence[Request]:
        """Return a job's alternatives on a column: one node if it can run on one, then several."""
        group = self.group_of[job]
        on_one_node = self._one_node_columns[column]
        if on_one_node is None:
            on_one_node = column
        runs_on_one = self.rates[group][on_one_node] > 0.0
        key = self._constraints[group], self.classes.groups[group].gpus, column, runs_on_one
        if key not in self._alternatives:
            self._alternatives[key] = self._requests(job, column, runs_on_one=runs_on_one)
        return self._alternatives[key]

    def _requests(self, job: int, column: int, *, runs_on_one: bool) -> list[Request]:
        """Return the requests of `alternatives`."""
        group = self.classes.groups[self.group_of[job]]
        target = self.observed.problem.columns[column]
        types = (target.gpu_type,)
        _, labels, _ = group.constraints
        requests = []
        if runs_on_one:
            demand = self.jobs.demand(job)
            requests.append(self.layout.request(group.gpus, demand, types=types, labels=labels))
        if target.spread:
            requests += self.jobs.spread(job, group.gpus, types=types)
        return requests

    def together(self, first: int, second: int, column: int) -> Request | None:
        """Return the request of two jobs on one device of a column; None if the type is barred."""
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
        number = self.group_of[job]
        if number not in self._search_keys:
            group = self.classes.groups[number]
            columns = frozenset(self.columns(job))
            # Which jobs may share its device depends on more than its constraints.
            partners = number if group.shares else None
            constraints = self._constraints[number]
            self._search_keys[number] = group.gpus, constraints, columns, partners
        return self._search_keys[number]

    def columns(self, job: int) -> Sequence[int]:
        """Return the columns on which a job runs, the fastest first."""
        rates = self.rates[self.group_of[job]]
        usable = [column for column, rate in enumerate(rates) if rate > 0.0]
        return sorted(usable, key=lambda column: -rates[column])

    def one_node_column(self, column: int) -> int | None:
        """Return the column of one node where this one is spread over several of that type."""
        return self._one_node_columns[column]

    def rate(self, job: int, column: int) -> float:
        """Return a job's steps/s alone on a column."""
        return self.rates[self.group_of[job]][column]

    def pair_rate(self, job: int, other: int, column: int) -> float:
        """Return a job's steps/s beside another on a column, as its pair has it; 0 if unknown."""
        own_class = self.classes.class_of[job]
        other_class = self.classes.class_of[other]
        key = min(own_class, other_class), max(own_class, other_class)
        pair = self.classes.pair_row.get(key)
        if pair is None:
            return 0.0
        position = 0 if own_class <= other_class else 1
        return float(self.observed.problem.pair_rates[pair, column, position])

    def admitting(self, job: int, ranks: int) -> NodeSet:
        """Return the open nodes that would do for one of a job's processes, were they empty."""
        group = self.group_of[job]
        key = self._constraints[group], ranks
        if key not in self._admitting:
            types, labels, _ = self.classes.groups[group].constraints
            demand = self.jobs.demand(job)
            request = self.layout.request(0, demand, types=types, labels=labels)
            classes, allowed = self.layout.admitting(request)
            large_enough: NodeSet = 0
            for node_class in classes:
                if request.fitting(self.layout.classes[node_class].capacity) > 0:
                    large_enough |= self.layout.members[node_class]
            self._admitting[key] = large_enough & allowed & self.observed.state.open
        return self._admitting[key]


def current_slices(observed: Observed, requests: GroupRequests) -> dict[int, CurrentSlice]:
    """Return by row the running jobs that may go on where they are, with who shares a device."""
    search = _CurrentPlaces(observed, requests)
    slices: dict[int, CurrentSlice] = {}
    for row, runs in enumerate(observed.snapshot.jobs.columns.others["running"]):
        if not runs or observed.classes.group_of[row] < 0:
            continue
        run = training_run(runs)
        if run is None:
            continue
        current = search.place_of(row, run)
        if current is not None:
            slices[row] = current
    if any(current.shares for current in slices.values()):
        return _with_partners(slices)
    return slices


class _CurrentPlaces:
    """Search for the places where running jobs may go on."""

    def __init__(self, observed: Observed, requests: GroupRequests) -> None:
        self.observed = observed
        self.requests = requests
        self.layout = observed.state.layout
        self.classes = observed.classes
        self.idle = observed.state.idle
        self.number_of_node = self.layout.index
        self.group_of = self.classes.group_of
        self.rates = self.classes.rates
        column_of = self.classes.column_of
        self.column_of_class = [
            column_of.get((node_class.gpu_type, False)) for node_class in self.layout.classes
        ]
        self._by_group: dict[tuple[int, int], tuple[Request, NodeSet]] = {}
        """By group and column: its request for one node, and the nodes that would do."""

    def place_of(self, row: int, run: Running) -> CurrentSlice | None:
        """Return the place of a job, by its row; None if it may not go on there."""
        if len(run.ranks) > 1:
            return self._place_of_gang(row, run)

        # 1. The column of its node, where its kind must have a speed.
        seat = run.ranks[0]
        node = self.number_of_node.get(seat.node)
        if node is None:
            return None
        group = self.group_of[row]
        column = self.column_of_class[self.layout.class_of[node]]
        if column is None or self.rates[group][column] <= 0.0:
            return None

        # 2. As many devices as it asks for, which nobody outside the decision holds.
        if (group, column) not in self._by_group:
            request = self.requests.alternatives(row, column)[0]
            self._by_group[group, column] = request, self.requests.admitting(row, 1)
        request, nodes = self._by_group[group, column]
        devices = self.layout.bits(node, seat.devices)
        if not len(seat.devices) == devices.bit_count() == request.gpus:
            return None
        if devices & ~self.idle[node] or not nodes >> node & 1:
            return None

        # 3. A share of a device only if its job still may share; other cores if it has others.
        shares = seat.share != WHOLE
        if shares and not self.classes.groups[group].shares:
            return None
        if seat.cpu_quota is not None:
            demand = with_quota(self.observed.requests.demand(row), run.ranks)
            request = replace(request, amounts=self.layout.amounts(demand))
        allocation = Allocation(request, (Part(node, 1, devices),))
        return CurrentSlice(row, run, column, allocation, shares)

    def _place_of_gang(self, row: int, run: Running) -> CurrentSlice | None:
        """Return the place of a gang of several processes, on nodes of one type."""
        # 1. The devices of each process, of one type, as many as the job asks for.
        gpus = 0
        nodes: set[int] = set()
        types: set[str] = set()
        for seat in run.ranks:
            node = self.number_of_node.get(seat.node)
            if node is None or seat.share != WHOLE:
                return None
            devices = self._devices_of_seat(row, len(run.ranks), node, seat)
            if not devices:
                return None
            gpus += devices.bit_count()
            nodes.add(node)
            types.add(self.layout.classes[self.layout.class_of[node]].gpu_type)
        if len(types) > 1 or gpus != self.classes.groups[self.group_of[row]].gpus:
            return None

        # 2. Its column, where its kind must have a speed.
        is_spread = len(nodes) > 1
        column = self.classes.column_of.get((types.pop(), is_spread))
        allocation = self.observed.requests.allocation_of(row, run)
        if column is None or allocation is None or self.requests.rate(row, column) <= 0.0:
            return None
        return CurrentSlice(row, run, column, allocation)

    def _devices_of_seat(self, row: int, ranks: int, node: int, seat: RankPlacement) -> DeviceSet:
        """Return the devices of a process; none if it may not be there."""
        devices = self.layout.bits(node, seat.devices)
        if devices.bit_count() < len(seat.devices) or devices & ~self.idle[node]:
            return 0
        if not self.requests.admitting(row, ranks) >> node & 1:
            return 0
        return devices


def _with_partners(slices: dict[int, CurrentSlice]) -> dict[int, CurrentSlice]:
    """Return the slices with the partner of each job that shares its device with one other."""
    # 1. Jobs by their devices.
    jobs_on: dict[tuple[Part, ...], list[int]] = defaultdict(list)
    for current in slices.values():
        jobs_on[current.allocation.parts].append(current.job)

    # 2. Two jobs on the same devices are partners if both share and their shares fit.
    partner_of: dict[int, int] = {}
    for jobs in jobs_on.values():
        if len(jobs) != 2 or not all(slices[job].shares for job in jobs):
            continue
        if sum(slices[job].run.ranks[0].share for job in jobs) <= MOST_HELD:
            first, second = jobs
            partner_of[first] = second
            partner_of[second] = first
    return {
        job: current._replace(partner=partner_of.get(job, ALONE)) for job, current in slices.items()
    }


def to_placements(
    observed: Observed,
    requests: GroupRequests,
    current: Mapping[int, CurrentSlice],
    placed: Mapping[int, Placed],
) -> tuple[Placement, ...]:
    """Return the placements in the jobs' order.

    Jobs on draining nodes without a place elsewhere stay until the drain, while power lasts.
    """
    builder = _PlacementBuilder(observed, requests, current)
    placements: dict[int, Placement] = {}
    for job, own in placed.items():
        placements[job] = builder.placement(job, own)
    for stay in observed.pinned:
        placements[stay.row] = builder.staying(stay)
    for row, stay in observed.fallback.items():
        if row not in placements and observed.state.try_take(stay.allocation):
            placements[row] = builder.staying(stay)
    return tuple([placements[row] for row in sorted(placements)])


class _PlacementBuilder:
    """Placements of jobs with their predicted run times."""

    def __init__(
        self, observed: Observed, requests: GroupRequests, current: Mapping[int, CurrentSlice]
    ) -> None:
        self.observed = observed
        self.current = current
        self.requests = requests
        self.layout = observed.state.layout
        self.snapshot = observed.snapshot
        self.speeds = Speeds.of(self.snapshot)
        self.launch_times = LaunchTimes(self.snapshot)
        columns = self.snapshot.jobs.columns
        self.kinds = columns.kinds
        self.ids = columns.ids
        self.steps = columns.numbers["remaining_steps"].tolist()

    def placement(self, job: int, placed: Placed) -> Placement:
        """Return a job's placement with its predicted run time; a launch takes time too."""
        rate = self.requests.rate(job, placed.column)
        share = WHOLE
        if len(placed.jobs) > 1:
            rate = self._rate_beside(job, placed, rate)
            share = HALF
        run_s = self.steps[job] / rate if rate > 0.0 else inf

        if job in placed.staying:
            run = self.current[job].run
            predicted_s = predicted(run_s, LONGEST_RUN_S)
            return Placement(self.ids[job], run.ranks, run.copy, predicted_run_s=predicted_s)
        ranks = seats_of(self.layout, placed.allocation, share=share)
        predicted_s = predicted(run_s + self.launch_times.of(job), LONGEST_RUN_S)
        return Placement(self.ids[job], ranks, 0, predicted_run_s=predicted_s)

    def _rate_beside(self, job: int, placed: Placed, rate_alone: float) -> float:
        """Return the steps/s of a job that shares its device; 0 if unknown."""
        others = [self.kinds[other] for other in placed.jobs if other != job]
        gpu_type = self.observed.problem.columns[placed.column].gpu_type
        return self.speeds.colocated(self.kinds[job], rate_alone, 1, [(gpu_type, others)])

    def staying(self, stay: CurrentPlacement) -> Placement:
        """Return a job outside of the decision, where it is, until its node must be empty."""
        return staying_placement(self.snapshot, stay, remaining_s(self.snapshot, self.speeds, stay))
