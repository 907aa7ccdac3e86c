"""The server's own records: moves and fences, shares of devices, energy, nodes that were lost.

It runs in a process of its own with the system's environment. Events are replayed in the order in
which they were written; their times are those of clocks that jump.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from django.db.models import Count, F, Q

from clusters.models import NodeEvent
from controlplane.accounting.models import EnergyEntry
from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.invariants import Invariant
from jobs.assignment_lifecycle import ENDED
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot

Event = tuple[str, str, str]
"""(assignment, state before, state after), "" before an offer."""

Held = tuple[str, float]
"""A device's uuid, and the share of it."""

LITTLE = 1e-6


def check_moves(events: Iterable[Event]) -> Invariant:
    """Each event begins in the state in which the one before has ended."""
    state: dict[str, str] = defaultdict(str)
    wrong, checked = list[str](), 0
    for assignment, before, after in events:
        checked += 1
        if state[assignment] != before:
            wrong.append(f"assignment {assignment} was {state[assignment]}, not {before}")
        state[assignment] = after
    return Invariant(named.MOVES, checked, tuple(wrong))


def check_shares(events: Iterable[Event], slots: dict[str, list[Held]]) -> Invariant:
    """No device is promised beyond 1 by assignments that have not ended."""
    given: dict[str, dict[str, float]] = defaultdict(dict)
    wrong, checked = list[str](), 0
    for assignment, before, after in events:
        for device, share in slots.get(assignment, ()):
            if after in ENDED:
                given[device].pop(assignment, None)
            elif not before:
                checked += 1
                given[device][assignment] = share
                if (total := sum(given[device].values())) > 1 + LITTLE:
                    wrong.append(f"{total:g} of device {device} were given")
    return Invariant(named.SHARES, checked, tuple(wrong))


def check_fences() -> Invariant:
    """No two offers of one fence of a job's rank are taken."""
    taken = AssignmentEvent.objects.filter(from_state="offered", to_state="accepted")
    of = [f"assignment__{name}" for name in ("job", "fence", "rank", "copy")]
    twice = taken.order_by().values_list(*of).annotate(n=Count("pk")).filter(n__gt=1)
    wrong = tuple(f"job {job}: fence {fence} was taken {n} times" for job, fence, *_, n in twice)
    return Invariant(named.LAUNCHED_ONCE, taken.count(), wrong)


def check_bills() -> Invariant:
    """No energy, cost or time is negative; a bill is the sum of its hours, each of them once."""
    entries = EnergyEntry.objects.all()
    negative = Q(gpu_s__lt=0) | Q(cost__lt=0) | Q(facility_kwh__lt=0) | Q(measured_kwh__lt=0)
    negative |= Q(modelled_kwh__lt=0) | Q(rest_kwh__lt=0)
    wrong = [f"{entry}: a negative figure" for entry in entries.filter(negative)]
    by_hour = entries.order_by().values_list("assignment", "hour").annotate(n=Count("pk"))
    wrong += [f"{pk}: {n} entries of {hour}" for pk, hour, n in by_hour.filter(n__gt=1)]
    whole = _sums("cost")
    for assignment in Assignment.objects.filter(ended_at__isnull=False, energy_cost__isnull=False):
        if abs(whole[assignment.pk] - float(assignment.energy_cost or 0)) > LITTLE:
            wrong.append(f"assignment {assignment.pk}: its bill is not the sum of its hours")
    backwards = Assignment.objects.filter(ended_at__lt=F("accepted_at"))
    wrong += [f"assignment {a.pk} ended before it began" for a in backwards]
    return Invariant(named.BILLS, entries.count(), tuple(wrong))


def _sums(column: str) -> dict[Any, float]:
    sums: dict[Any, float] = defaultdict(float)
    for pk, value in EnergyEntry.objects.values_list("assignment", column):
        sums[pk] += float(value)
    return sums


def _events() -> Iterator[Event]:
    rows = AssignmentEvent.objects.order_by("pk")
    for pk, before, after in rows.values_list("assignment", "from_state", "to_state"):
        yield str(pk), before, after


def _slots() -> dict[str, list[Held]]:
    slots: dict[str, list[Held]] = defaultdict(list)
    rows = AssignmentSlot.objects.values_list("assignment", "device__uuid", "share")
    for assignment, device, share in rows:
        slots[str(assignment)].append((device, share))
    return slots


def main() -> None:
    """Print the invariants, and how often each node was declared lost."""
    events = list(_events())
    lost = NodeEvent.objects.filter(event="lost").values_list("node__name", flat=True)
    found = [check_moves(events), check_shares(events, _slots()), check_fences(), check_bills()]
    data = {"invariants": [asdict(one) for one in found], "lost": Counter(lost)}
    sys.stdout.write(json.dumps(data) + "\n")
