"""Choice of jobs and offers by their payoff, compiled: exact, and greedy with a local search.

Offer o of a job takes `counts[o, t]` GPUs of type t and is worth `worth[o]`; the offers of job j
are `first[j]` .. `first[j + 1]` - 1. Of type t there are `capacity[t]` GPUs, and the cheapest n of
them cost `cumulative[t, n]`, a convex function of n. The payoff of a choice, one offer of each job
at most, is the sum of its worths minus the cost of all that it takes: the prices telescope, so the
order in which jobs take their GPUs does not matter.
"""

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from policies.contract.snapshot import Bools, Floats, Ints
from policies.placement.kernels import compiled

Places = NDArray[np.int16]
"""Place of an offer among those of its job, from 0, or NOTHING."""

NOTHING = -1
"""Choice of a job that gets nothing."""

LEAST_GAIN = 1e-12
"""Relative gain below which a move is an error of rounding."""


@compiled
def best_values(
    first: Ints, shape: Ints, worth: Floats, offset: Ints, has_room: Bools, chosen: Places
) -> Floats:
    """Return float64[S]: the most that jobs can be worth in all by what they take of each type.

    State s is a vector of counts in mixed radix; offer o has the counts of shape `shape[o]`, which
    add `offset[shape]` to s, and may lead to s if `has_room[shape, s]`. `chosen` int16[J, S] gets
    the place of the offer that job j takes on the way to s, from 0, or NOTHING.
    """
    states = has_room.shape[1]
    best = np.full(states, -np.inf)
    best[0] = 0.0
    before = np.empty(states)
    for j in range(first.size - 1):
        before[:] = best
        for o in range(first[j], first[j + 1]):
            room = has_room[shape[o]]
            added = offset[shape[o]]
            place = o - first[j]
            for s in range(added, states):
                if room[s]:
                    value = before[s - added] + worth[o]
                    if value > best[s]:
                        best[s] = value
                        chosen[j, s] = place
    return best


@compiled
def cost_of(cumulative: Floats, given: Ints) -> float:
    """Return the cost of so many GPUs of each type."""
    cost = 0.0
    for t in range(given.size):
        cost += cumulative[t, given[t]]
    return cost


@compiled
def density_of(
    counts: Ints, worth: Floats, capacity: Ints, cumulative: Floats, floors: Floats, given: Ints,
    offers: tuple[int, int],
) -> tuple[float, int]:  # fmt: skip
    """Return the greatest payoff per GPU of these offers after what is given, and its offer.

    NOTHING if none has room. A GPU of type t counts as costing at least `floors[t]`.
    """
    most = -np.inf
    best = NOTHING
    for o in range(offers[0], offers[1]):
        gpus = 0
        payoff = worth[o]
        has_room = True
        for t in range(capacity.size):
            n = counts[o, t]
            after = given[t] + n
            if after > capacity[t]:
                has_room = False
                break
            gpus += n
            payoff -= max(cumulative[t, after] - cumulative[t, given[t]], n * floors[t])
        if has_room and payoff > most * gpus:
            most = payoff / gpus
            best = o
    return most, best


@compiled
def greedy(
    first: Ints, counts: Ints, worth: Floats, capacity: Ints, cumulative: Floats, floors: Floats,
    choice: Ints, given: Ints,
) -> None:  # fmt: skip
    """Give GPUs by payoff per GPU, the greatest first, while it is positive.

    Jobs that have an offer in `choice` keep it, and `given` is what they take; both are changed.

    A lazy heap: what others have taken meanwhile can only lower a job's payoff, so the job on top
    is asked again, and taken if it still beats the next one.
    """
    heap = [(0.0, 0)]
    heap.pop()
    for j in range(first.size - 1):
        if choice[j] != NOTHING:
            continue
        offers = (first[j], first[j + 1])
        density, offer = density_of(counts, worth, capacity, cumulative, floors, given, offers)
        if offer != NOTHING and density > 0.0:
            heap.append((-density, j))
    heapify(heap)
    while len(heap) > 0:
        j = heappop(heap)[1]
        offers = (first[j], first[j + 1])
        density, offer = density_of(counts, worth, capacity, cumulative, floors, given, offers)
        if offer == NOTHING or density <= 0.0:
            continue
        if len(heap) > 0 and -heap[0][0] > density:
            heappush(heap, (-density, j))
            continue
        choice[j] = offer
        for t in range(capacity.size):
            given[t] += counts[offer, t]


@compiled
def floors_after(
    first: Ints, counts: Ints, worth: Floats, capacity: Ints, choice: Ints, given: Ints,
    floors: Floats,
) -> None:  # fmt: skip
    """Move the floor of each type half way to the greatest worth per GPU that was left out of it.

    Of a type with GPUs left that is nothing. Jobs that hardly gain from a type that others want
    are so led to another one.
    """
    wanted = np.zeros(capacity.size)
    for j in range(first.size - 1):
        if choice[j] != NOTHING:
            continue
        for o in range(first[j], first[j + 1]):
            gpus = 0
            for t in range(capacity.size):
                gpus += counts[o, t]
            for t in range(capacity.size):
                if counts[o, t] > 0 and given[t] + gpus > capacity[t]:
                    wanted[t] = max(wanted[t], worth[o] / gpus)
    for t in range(capacity.size):
        floors[t] = 0.5 * (floors[t] + wanted[t])


@compiled
def change(counts: Ints, given: Ints, before: int, after: int) -> None:
    """Let a job have another offer, or NOTHING."""
    for t in range(given.size):
        if before != NOTHING:
            given[t] -= counts[before, t]
        if after != NOTHING:
            given[t] += counts[after, t]


@compiled
def improve(
    first: Ints, counts: Ints, worth: Floats, capacity: Ints, cumulative: Floats, choice: Ints,
    given: Ints, work: int,
) -> int:  # fmt: skip
    """Improve a choice in place until no move gains, or `work` moves were tried; return the rest.

    Moves: a job takes another offer; it does and another job makes way, with another offer or none.
    """
    jobs = first.size - 1
    cost = cost_of(cumulative, given)
    gained = True
    while gained and work > 0:
        gained = False
        for j in range(jobs):
            for o in range(first[j], first[j + 1]):
                before = choice[j]
                if o == before or work <= 0:
                    continue
                gain = worth[o] - (worth[before] if before != NOTHING else 0.0)
                change(counts, given, before, o)
                # 1. The job alone: nobody has to make way.
                work -= 1
                fits = True
                for t in range(capacity.size):
                    fits = fits and given[t] <= capacity[t]
                if fits:
                    after = cost_of(cumulative, given)
                    if gain - (after - cost) > LEAST_GAIN * worth[o]:
                        choice[j] = o
                        cost = after
                        gained = True
                        continue
                # 2. Another job makes way for it.
                other, offer = partner(
                    first, counts, worth, capacity, cumulative, choice, given, j, cost + gain
                )
                work -= jobs
                if other == NOTHING:
                    change(counts, given, o, before)
                    continue
                change(counts, given, choice[other], offer)
                choice[j] = o
                choice[other] = offer
                cost = cost_of(cumulative, given)
                gained = True
    return work


@compiled
def partner(
    first: Ints, counts: Ints, worth: Floats, capacity: Ints, cumulative: Floats, choice: Ints,
    given: Ints, j: int, most: float,
) -> tuple[int, int]:  # fmt: skip
    """Return the job that best makes way for job j, and the offer that it gets instead.

    The cost of all GPUs given and the worth that the other loses must be below `most` together;
    NOTHING if they are for nobody.
    """
    best = most
    best_job = NOTHING
    best_offer = NOTHING
    for i in range(first.size - 1):
        current = choice[i]
        if i == j or current == NOTHING:
            continue
        for q in range(first[i] - 1, first[i + 1]):
            offer = q if q >= first[i] else NOTHING
            if offer == current:
                continue
            total = worth[current] - (worth[offer] if offer != NOTHING else 0.0)
            fits = True
            for t in range(capacity.size):
                n = given[t] - counts[current, t]
                if offer != NOTHING:
                    n += counts[offer, t]
                if n > capacity[t]:
                    fits = False
                    break
                total += cumulative[t, n]
            if fits and total < best - LEAST_GAIN * worth[current]:
                best = total
                best_job = i
                best_offer = offer
    return best_job, best_offer


@compiled
def make_room(
    counts: Ints, worth: Floats, capacity: Ints, choice: Ints, given: Ints, j: int
) -> None:
    """Take the GPUs of the jobs of least worth per GPU, but job j, until nothing is given twice."""
    for t in range(capacity.size):
        while given[t] > capacity[t]:
            least = np.inf
            loser = NOTHING
            for i in range(choice.size):
                offer = choice[i]
                if i == j or offer == NOTHING or counts[offer, t] == 0:
                    continue
                gpus = 0
                for other in range(capacity.size):
                    gpus += counts[offer, other]
                if worth[offer] < least * gpus:
                    least = worth[offer] / gpus
                    loser = i
            change(counts, given, choice[loser], NOTHING)
            choice[loser] = NOTHING


@compiled
def force_in(
    first: Ints, counts: Ints, worth: Floats, capacity: Ints, cumulative: Floats, choice: Ints,
    given: Ints, work: int,
) -> int:  # fmt: skip
    """Improve a choice in place by forcing offers in; return the work that is left.

    Each offer is given its GPUs at the cost of the jobs of least worth per GPU, and what is then
    free goes by payoff per GPU. The best of it stays. Every trial counts as one for each job.
    """
    jobs = first.size - 1
    no_floors = np.zeros(capacity.size)
    trial = choice.copy()
    taken = given.copy()
    value = -cost_of(cumulative, given)
    for j in range(jobs):
        if choice[j] != NOTHING:
            value += worth[choice[j]]
    gained = True
    while gained and work > 0:
        gained = False
        for o in range(worth.size):
            # 1. The job of this offer; jobs have their offers one after the other.
            j = int(np.searchsorted(first, o, side="right")) - 1
            work -= jobs
            could_fit = True
            for t in range(capacity.size):
                could_fit = could_fit and counts[o, t] <= capacity[t]
            if choice[j] == o or not could_fit or work <= 0:
                continue
            # 2. Give it, make room, and fill up.
            trial[:] = choice
            taken[:] = given
            change(counts, taken, trial[j], o)
            trial[j] = o
            make_room(counts, worth, capacity, trial, taken, j)
            greedy(first, counts, worth, capacity, cumulative, no_floors, trial, taken)
            # 3. Keep it if that is better.
            after = -cost_of(cumulative, taken)
            for i in range(jobs):
                if trial[i] != NOTHING:
                    after += worth[trial[i]]
            if after > value + LEAST_GAIN * abs(value):
                value = after
                choice[:] = trial
                given[:] = taken
                gained = True
    return work
