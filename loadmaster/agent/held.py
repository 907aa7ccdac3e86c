"""Held seats: resources kept for a process on another node, without a process here. Pure.

The journal is all there is of one. It lasts until the server asks for it back, its lease runs out,
or the machine restarts: whatever the job had here is gone then.
"""

from loadmaster.agent.journal import Entry
from loadmaster.agent.runtimes.base import Exit, RunState, RunStatus, StopBy


def status_of(
    entry: Entry, boot_id: str, lease_until_s: float | None, now_s: float, wall_s: float
) -> RunStatus:
    """State of a held seat; without a lease (None) the server has not been heard since a start."""
    if not entry.launched:
        return RunStatus(RunState.PREPARED)
    ended: tuple[StopBy | None, str] | None = None
    if entry.stop:
        ended = entry.stop, "the seat was given back"
    elif entry.boot_id != boot_id:
        ended = None, "its machine was restarted while it held the seat"
    elif lease_until_s is not None and lease_until_s <= now_s:
        ended = StopBy.LEASE, "the lease of the seat ran out"
    if ended is None:
        return RunStatus(RunState.RUNNING, lease_until_s=lease_until_s)
    by, words = ended
    return RunStatus(RunState.ENDED, Exit(wall_s, started=False, stopped_by=by, error=words))
