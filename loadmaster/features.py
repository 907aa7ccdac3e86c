"""Features of agents: of what a node can do, what not all agents can."""

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

FEATURES = frozenset(
    {*RUNTIMES, "emulated", "checkpoint", "steps_quota", "lease_guard"}
    | {GANG, LIMITS, SIGNAL, BATCH}
)
"""Features of an agent of this version; a LaunchSpec that needs others is REJECTED."""


def features_with(runtime: str) -> tuple[str, ...]:
    """Features of a node whose agent uses that runtime."""
    return tuple(sorted(FEATURES - set(RUNTIMES) | {runtime}))
