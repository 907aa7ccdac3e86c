"""The next actions, from the server's directives, the journal, the runs and the time. Pure.

Wishes are repeated until done, and an action lost in a crash is found again: nothing here counts
on having seen an event.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from loadmaster.agent.journal import Entry
from loadmaster.agent.runtimes.base import Exit, RunId, RunState, RunStatus, StopBy, StopOrder
from loadmaster.protocol import Directive, DirectiveAction, StopReason

PROGRESS_STEP = 0.05
"""Progress of a preparation that is worth reporting (a journal line and a call)."""


@dataclass(frozen=True, slots=True)
class View:
    """State at an instant; `_s` without `wall` is on the boot clock.

    `directives` are the server's newest, `ends` the highest fences of assignments that are over,
    `since_s` the begin of each assignment's or stray's wait, `patience_s` the longest such wait.
    """

    now_s: float
    wall_s: float
    directives: Mapping[str, Directive] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[RunId, RunStatus] = field(default_factory=dict)
    leases: Mapping[RunId, float] = field(default_factory=dict)
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
    """Start the prepared run: its first lease is in hand."""

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
    """Tell the run its new term, which ends at that time of the server's, or not at all."""

    entry: Entry
    until_s: float | None


@dataclass(frozen=True, slots=True)
class Settle:
    """A journaled launch with nothing running: prevent its start and settle its end."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: journal the outcome and report it."""

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


EntryAction = ReportPreparing | Launch | Stop | Update | Settle | Finish | Drop
Action = EntryAction | AcceptOffer | Renew | StopStray | RemoveStray


def reconcile(view: View) -> list[Action]:
    """Actions that bring what runs nearer to what is wanted, at most one per assignment.

    Renewals come first: no run's lease waits for what is done for another one.
    """
    actions: list[Action] = []
    for entry in view.entries.values():
        if not entry.has_ended:
            actions += _live(view, entry)
    actions += _offers(view)
    actions += _strays(view)
    return sorted(actions, key=lambda action: not isinstance(action, Renew))


def _offers(view: View) -> Iterator[Action]:
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
    status = view.runs.get(entry.run, RunStatus(RunState.ABSENT))
    if status.state is RunState.ENDED and status.exit:
        yield Finish(entry, status.exit)
    elif status.state is RunState.RUNNING:
        yield from _running(view, entry, status)
    elif entry.launched:  # nothing can have been started, even if it seems to be preparing still
        yield Settle(entry)
    else:
        yield from _waiting(view, entry, status)


def _running(view: View, entry: Entry, status: RunStatus) -> Iterator[Action]:
    lease_until_s = view.leases.get(entry.run)
    order = _stop_order(view, entry)
    is_stricter = entry.stop is StopBy.PREEMPT and order and order.by is StopBy.CANCEL
    if order and (entry.stop is None or is_stricter):
        yield Stop(entry, order)
    elif lease_until_s is not None and lease_until_s > (status.lease_until_s or 0.0):
        yield Renew(entry.run, lease_until_s)
    else:
        yield from _term_update(view, entry)


def _waiting(view: View, entry: Entry, status: RunStatus) -> Iterator[Action]:
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
    """Stops wanted by a directive for this fence or implied by a newer launch's offer."""
    directive = view.directives.get(entry.assignment)
    if directive is None or directive.fence < entry.fence:
        return None
    if directive.fence > entry.fence:
        return StopOrder(StopBy.CANCEL, entry.grace_s)
    if directive.action is not DirectiveAction.STOP:
        return None
    by = StopBy.CANCEL if directive.stop_reason is StopReason.CANCEL else StopBy.PREEMPT
    return StopOrder(by, entry.grace_s if directive.grace_s is None else directive.grace_s)


def _term_update(view: View, entry: Entry) -> Iterator[Action]:
    directive = view.directives.get(entry.assignment)
    if (
        directive
        and directive.action is DirectiveAction.UPDATE
        and directive.fence == entry.fence
        and directive.term_until_s != entry.term_until_s
    ):
        yield Update(entry, directive.term_until_s)


def _never_started(view: View, by: StopBy | None, error: str) -> Exit:
    return Exit(view.wall_s, started=False, stopped_by=by, error=error)


def _strays(view: View) -> Iterator[Action]:
    ours = {entry.run for entry in view.entries.values()}
    for run, status in view.runs.items():
        if run in ours:
            continue
        if status.state is not RunState.RUNNING:
            yield RemoveStray(run)
        elif view.now_s - view.since_s.get(run.name, view.now_s) > view.patience_s:
            yield StopStray(run)
