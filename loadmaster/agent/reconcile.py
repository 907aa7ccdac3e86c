"""Next actions of the agent from directives, the journal, the runs and the time. Pure.

They follow from the present state alone, not from events. So an action is returned again until it
is done, also after a crash.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from loadmaster.agent.journal import Entry
from loadmaster.agent.runtimes.base import Exit, RunId, RunState, RunStatus, StopBy, StopOrder
from loadmaster.agent.runtimes.limits import quota_us
from loadmaster.protocol import Directive, DirectiveAction, StopReason

PROGRESS_STEP = 0.05
"""Least progress of a preparation, as a fraction, that is worth a report."""


@dataclass(frozen=True, slots=True)
class View:
    """State at an instant; times are on the boot clock, except `wall_s` (Unix seconds).

    `directives`: the server's newest, by assignment. `entries`: those of the journal. `ends`:
    highest fences of assignments that are over and forgotten. `runs`: states of all runs here.
    `leases`: ends of the leases. `quotas`: cores to which runs are limited now, of those for which
    a directive names some. `since_s`: start of an assignment's wait for its lease, and of a
    stray's life since it was first seen. `patience_s`: longest such wait. `accepting`: new offers
    are accepted.
    """

    now_s: float
    wall_s: float
    directives: Mapping[str, Directive] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[RunId, RunStatus] = field(default_factory=dict)
    leases: Mapping[RunId, float] = field(default_factory=dict)
    quotas: Mapping[RunId, float] = field(default_factory=dict)
    since_s: Mapping[str, float] = field(default_factory=dict)
    patience_s: float = 30.0
    accepting: bool = True


@dataclass(frozen=True, slots=True)
class AcceptOffer:
    """Ask the server for the offer's specification, and prepare it."""

    run: RunId


@dataclass(frozen=True, slots=True)
class ReportPreparing:
    """Report how far the preparation is."""

    entry: Entry
    fraction: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a prepared run, which has its first lease."""

    entry: Entry
    lease_until_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Tell the run's guard of a later lease."""

    run: RunId
    lease_until_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Order the run to end."""

    entry: Entry
    order: StopOrder


@dataclass(frozen=True, slots=True)
class Update:
    """Tell the run its new term; `until_s`: its end by the server's clock, None: without end."""

    entry: Entry
    until_s: float | None


@dataclass(frozen=True, slots=True)
class SetQuota:
    """Limit the run to so many cores."""

    entry: Entry
    cores: float


@dataclass(frozen=True, slots=True)
class Settle:
    """Prevent the start of a launch that is in the journal but does not run, and note its end."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Finish:
    """Note and report the outcome of a run that is over."""

    entry: Entry
    exit: Exit


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the unsent reports of an ended assignment: a newer launch of it is offered."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class StopStray:
    """Stop a run that the journal does not know."""

    run: RunId


@dataclass(frozen=True, slots=True)
class RemoveStray:
    """Remove what is left of a run that the journal does not know."""

    run: RunId


EntryAction = ReportPreparing | Launch | Stop | Update | SetQuota | Settle | Finish | Drop
Action = EntryAction | AcceptOffer | Renew | StopStray | RemoveStray


def reconcile(view: View) -> list[Action]:
    """Return actions that bring the runs nearer to the server's directives.

    There is at most one for each assignment. Renewals come first, so that no lease waits for work
    on another run.
    """
    actions: list[Action] = []
    for entry in view.entries.values():
        if not entry.has_ended:
            actions += _live(view, entry)
    actions += _offers(view)
    actions += _strays(view)
    return sorted(actions, key=lambda action: not isinstance(action, Renew))


def _offers(view: View) -> Iterator[Action]:
    """Yield actions for offers, of which those of a launch that is over do not count."""
    for directive in view.directives.values():
        is_over = directive.fence <= view.ends.get(directive.id, 0)
        if is_over or directive.action is not DirectiveAction.START:
            continue
        entry = view.entries.get(directive.id)
        if entry is None and view.accepting:
            yield AcceptOffer(RunId(directive.id, directive.fence))
        elif entry and entry.fence < directive.fence and entry.has_ended:
            yield Drop(entry)


def _live(view: View, entry: Entry) -> Iterator[Action]:
    """Yield the action for an assignment that has not ended."""
    status = view.runs.get(entry.run, RunStatus(RunState.ABSENT))
    if status.state is RunState.ENDED and status.exit:
        yield Finish(entry, status.exit)
    elif status.state is RunState.RUNNING:
        yield from _running(view, entry, status)
    elif entry.launched:  # the agent has crashed between journal and start
        yield Settle(entry)
    else:
        yield from _waiting(view, entry, status)


def _running(view: View, entry: Entry, status: RunStatus) -> Iterator[Action]:
    """Yield the action for a run: stop it, renew its lease, change its term or its cores."""
    lease_until_s = view.leases.get(entry.run)
    order = _stop_order(view, entry)
    is_stricter = entry.stop is StopBy.PREEMPT and order and order.by is StopBy.CANCEL
    if order and (entry.stop is None or is_stricter):
        yield Stop(entry, order)
    elif lease_until_s is not None and lease_until_s > (status.lease_until_s or 0.0):
        yield Renew(entry.run, lease_until_s)
    else:
        yield from _changed_terms(view, entry)


def _waiting(view: View, entry: Entry, status: RunStatus) -> Iterator[Action]:
    """Yield the action for an assignment that has not been launched."""
    lease_until_s = view.leases.get(entry.run, float("-inf"))
    order = _stop_order(view, entry)
    if order:
        yield Finish(entry, _never_started(view, order.by, "it was stopped before it was started"))
    elif status.state is RunState.ABSENT:
        yield Finish(entry, _never_started(view, None, "the run's folder is gone"))
    elif status.state is RunState.PREPARING:
        if status.prepared_fraction >= entry.told_fraction + PROGRESS_STEP:
            yield ReportPreparing(entry, status.prepared_fraction)
    elif lease_until_s > view.now_s:
        yield Launch(entry, lease_until_s)
    elif view.now_s - view.since_s.get(entry.assignment, view.now_s) > view.patience_s:
        yield Finish(entry, _never_started(view, StopBy.LEASE, "the server granted no lease"))


def _stop_order(view: View, entry: Entry) -> StopOrder | None:
    """Return the order to stop a run, if there is one.

    A directive orders it, or offers a newer launch of the assignment: then this one is to end.
    """
    directive = view.directives.get(entry.assignment)
    if directive is None or directive.fence < entry.fence:
        return None
    if directive.fence > entry.fence:
        return StopOrder(StopBy.CANCEL, entry.grace_s)
    if directive.action is not DirectiveAction.STOP:
        return None
    by = StopBy.CANCEL if directive.stop_reason is StopReason.CANCEL else StopBy.PREEMPT
    grace_s = entry.grace_s if directive.grace_s is None else directive.grace_s
    return StopOrder(by, grace_s)


def _changed_terms(view: View, entry: Entry) -> Iterator[Action]:
    """Yield the action for a directive that changes the term or the cores.

    The cores are compared with what the kernel says, so whoever else changed them is corrected.
    """
    directive = view.directives.get(entry.assignment)
    if (
        directive is None
        or directive.action is not DirectiveAction.UPDATE
        or directive.fence != entry.fence
    ):
        return
    cores = directive.cpu_quota
    if directive.term_until_s != entry.term_until_s:
        yield Update(entry, directive.term_until_s)
    elif cores is not None and not entry.held:
        in_force = view.quotas.get(entry.run)
        if in_force is None or quota_us(in_force) != quota_us(cores):
            yield SetQuota(entry, cores)


def _never_started(view: View, by: StopBy | None, error: str) -> Exit:
    return Exit(view.wall_s, started=False, stopped_by=by, error=error)


def _strays(view: View) -> Iterator[Action]:
    """Yield actions for runs that the journal does not know; one may run for `patience_s`."""
    known_runs = {entry.run for entry in view.entries.values()}
    for run, status in view.runs.items():
        if run in known_runs:
            continue
        if status.state is not RunState.RUNNING:
            yield RemoveStray(run)
        elif view.now_s - view.since_s.get(run.name, view.now_s) > view.patience_s:
            yield StopStray(run)
