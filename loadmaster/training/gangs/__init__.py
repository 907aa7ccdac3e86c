"""Gangs: ranks that begin at one checkpoint, end on one step, and end together if one is lost.

Rank 0 leads; the others connect to it and prove the launch's token. To end, the lead asks each
rank for its promised step and tells all the greatest: no rank waits in vain for one that has left.
"""

import os
from collections.abc import Callable

from loadmaster.training.gangs.agreement import (
    EXIT_FELL,
    FailureHandler,
    Gang,
    GangBroken,
    LeftEarlyError,
)
from loadmaster.training.gangs.connection import Credentials
from loadmaster.training.gangs.lead import Lead
from loadmaster.training.gangs.member import Member
from loadmaster.training.run_folder import JobEnvironment, JobEnvironmentError

__all__ = ["EXIT_FELL", "Gang", "GangBroken", "LeftEarlyError", "gang_of"]


def gang_of(environment: JobEnvironment, fell: Callable[[str], object]) -> Gang:
    """This process's gang; `fell` is called, from any thread, with why the gang broke."""
    if environment.world_size <= 1 or not environment.gang:
        return Gang(environment.rank)
    if not environment.gang_token:
        raise JobEnvironmentError("LOADMASTER_GANG_TOKEN must be set where LOADMASTER_GANG is")
    size, fence = environment.world_size, environment.fence or 0
    credentials = Credentials(environment.gang_token, size, fence)
    on_failure = FailureHandler(fell, os._exit)
    try:
        if environment.rank:
            return Member(environment.gang, credentials, environment.rank, on_failure)
        return Lead(environment.gang, credentials, on_failure)
    except ValueError as error:
        raise JobEnvironmentError(f"LOADMASTER_GANG: {error}") from error
    except OSError as error:
        reason = f"rank 0 cannot listen at {environment.gang}: {error}"
        fell(reason)
        raise GangBroken(reason) from error
