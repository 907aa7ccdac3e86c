"""Features of agents: of what a node can do, what not all agents can."""

from collections.abc import Collection, Iterable

RUNTIMES = ("process", "docker")
"""The ways of running a job; a node offers the one its agent was started with."""

GANG = "gang"
"""The feature of agents that can run a rank of a gang so that it finds the others."""

LIMITS = "limits"
"""The feature of agents whose guards end a job at its walltime and its deadline."""

SIGNAL = "signal"
"""The feature of agents whose guards send a signal some time before the end of a job."""

BATCH = "batch"
"""The feature of agents that know batch scripts, and seats whose process is on another node."""

LOG_ENDS = "log_ends"
"""The feature of agents that send the head and the tail of a long log, and not what is between."""

PROGRAMS = "programs"
"""The feature of agents that let the programs beside a script, such as squeue, ask the server."""

CONTAINER_SCRIPTS = "container_scripts"
"""The feature of agents that run batch scripts in images."""

ISOLATED = "isolated"
"""The feature of agents whose processes of one team see nothing of another's."""

SHARED = "shared"
"""The feature of agents whose operator lets all teams run there without isolation."""

MEMORY_LIMIT = "memory_limit"
PROCESSES_LIMIT = "processes_limit"
CORES_LIMIT = "cores_limit"
"""Features of agents for which the kernel limits memory, processes and cores of each launch.

Those that limit cores change the limit while the launch runs.
"""

KERNEL_LIMITS = {"memory": MEMORY_LIMIT, "processes": PROCESSES_LIMIT, "cores": CORES_LIMIT}
"""Feature of each resource of a launch that the kernel can limit."""

FEATURES = frozenset(
    {*RUNTIMES, "emulated", "checkpoint", "steps_quota", "lease_guard"}
    | {GANG, LIMITS, SIGNAL, BATCH, LOG_ENDS, PROGRAMS, CONTAINER_SCRIPTS}
)
"""Features of an agent of this version; a LaunchSpec that needs others is REJECTED."""


def features_with(runtime: str, *more: str) -> tuple[str, ...]:
    """Features of a node whose agent uses that runtime, with `more` of its own."""
    return tuple(sorted(FEATURES - set(RUNTIMES) | {runtime, *more}))


def limit_features(resources: Iterable[str]) -> tuple[str, ...]:
    """Return the features of an agent for which the kernel limits these resources of launches."""
    return tuple(KERNEL_LIMITS[resource] for resource in resources)


def limits_of(features: Collection[str]) -> tuple[str, ...] | None:
    """Return the resources of each launch that the kernel limits; None if that is not known.

    Older agents do not say so. Those with processes limit nothing by the kernel.
    """
    limits = tuple(resource for resource, feature in KERNEL_LIMITS.items() if feature in features)
    if not limits and "process" not in features:
        return None
    return limits


def serves_one_team(features: Collection[str]) -> bool:
    """Return True if a node with these features cannot keep its teams apart, and may not mix them.

    Containers are apart; of an agent that has reported nothing, nothing is known.
    """
    return "process" in features and not {ISOLATED, SHARED} & set(features)
