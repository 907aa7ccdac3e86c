"""Held seats: resources kept for a process on another node, without a process here. Pure.

A held seat exists only in the journal. It ends when the server asks for it back, when its lease
runs out, or when the machine restarts.
"""

from loadmaster.agent.journal import Entry
from loadmaster.agent.runtimes.base import Exit, RunState, RunStatus, StopBy


def status_of(
    entry: Entry, boot_id: str, lease_until_s: float | None, now_s: float, wall_s: float
) -> RunStatus:
    """Return the state of a held seat.

    `boot_id`: the machine's current boot. `lease_until_s`: end of the lease on the boot clock; None
    if the server has not been heard since the agent's start. `now_s`, `wall_s`: the time on the
    boot clock and in Unix seconds.
    """
    if not entry.launched:
        return RunStatus(RunState.PREPARED)
    stopped_by: StopBy | None = None
    if entry.stop:
        stopped_by = entry.stop
        reason = "the seat was given back"
    elif entry.boot_id != boot_id:
        reason = "its machine was restarted while it held the seat"
    elif lease_until_s is not None and lease_until_s <= now_s:
        stopped_by = StopBy.LEASE
        reason = "the lease of the seat ran out"
    else:
        return RunStatus(RunState.RUNNING, lease_until_s=lease_until_s)
    ended = Exit(wall_s, started=False, stopped_by=stopped_by, error=reason)
    return RunStatus(RunState.ENDED, ended)
