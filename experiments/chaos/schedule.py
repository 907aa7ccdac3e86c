"""Targets and times of blows: a function of the seed alone. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

PARTS = ("agent", "worker", "beat", "web", "broker")
EMPTY_BROKER, DISK, DATABASE, CLOCK = "empty-broker", "disk", "database", "clock"
FAULTS = (*PARTS, EMPTY_BROKER, DISK, DATABASE, CLOCK)
"""Faults by the part that they hit: kills, a broker that comes back without its state, full disks,
PostgreSQL killed and restarted, clocks set."""

OTHERS = ("pool", "solver")
"""Children of the worker: a process of its pool, and the solver that one of them keeps."""

DISKS = ("server", "nodes")
"""Owners of the disks that are filled."""

SHARE = 0.8
"""Fraction of all blows that is dealt out evenly, so that each part gets some for sure."""

EARLY = 0.25
"""Fraction of all kills that do not wait until their target is at work."""

CUTS = ("down", "drop-both", "drop-out", "drop-in")
"""Ways to cut a link: down, or packets dropped both ways, from or to the agent."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One strike: `gap_s` after the one before, at `target` (one agent by its number), for `hold_s`
    until it comes back.

    It waits until the target has been at work for `work_s`; one that is `early` strikes it also
    while it starts. With `busy` it waits until an agent has launches, and strikes that one.
    """

    number: int
    part: str
    how: str
    gap_s: float
    hold_s: float
    target: str
    early: bool = False
    work_s: float = 0.0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean seconds between blows, and seconds after which a silent agent's jobs are lost."""

    gap_s: float
    lost_s: float


def kills(
    count: int, seed: int, agents: int, pace: Pace, parts: Sequence[str] = PARTS
) -> list[Blow]:
    """`count` blows, a share for every part; some agents, the first for sure, stay away for longer
    than their leases.
    """
    dice = random.Random(f"kills {seed}")  # noqa: S311  # no secret
    if not parts:
        return []
    others = OTHERS if "worker" in parts else ()
    chosen = [part for part in parts for _ in range(max(1, int(SHARE * count / len(parts))))]
    chosen += [dice.choice((*parts, *others)) for _ in range(count - len(chosen))]
    dice.shuffle(chosen)
    blows = [_strike(n, part, agents, pace, dice) for n, part in enumerate(chosen[:count])]
    return _with_a_loss(blows, pace)


def _strike(number: int, part: str, agents: int, pace: Pace, dice: random.Random) -> Blow:
    target, how = part.removeprefix("empty-"), "kill"
    if part == "agent":
        target = f"agent-{dice.randrange(agents)}"
    if part == DISK:
        target, how = dice.choice(DISKS), "fill"
    gap_s = min(dice.expovariate(1 / pace.gap_s), 4 * pace.gap_s)
    is_long = part == "agent" and dice.random() < 0.3
    hold_s = pace.lost_s * dice.uniform(0.8, 1.6) if is_long else dice.uniform(0.1, 2.0)
    return Blow(
        number,
        part,
        how,
        round(gap_s, 3),
        round(FULL_S * hold_s if part == DISK else hold_s, 3),
        target,
        dice.random() < EARLY,
        round(dice.uniform(0.0, 4.0), 3),
    )


def _with_a_loss(blows: list[Blow], pace: Pace) -> list[Blow]:
    """Let the first agent that is killed be one at work on jobs, and away until these go
    elsewhere.
    """
    first = next((blow for blow in blows if blow.part == "agent"), None)
    return [_loss(blow, LOST * pace.lost_s) if blow is first else blow for blow in blows]


def _loss(blow: Blow, hold_s: float) -> Blow:
    return replace(blow, target="agent", hold_s=round(hold_s, 3), early=False, busy=True)


FULL_S = 5.0
"""Factor by which a disk is full for longer than a program is away."""

LOST = 1.4
"""Time for which an agent is away for sure, as a multiple of that after which its jobs are lost."""

SERVER = "server"
"""All programs of the server together, as on one machine whose clock is set."""

JUMPS_S = (-3600.0, -60.0, 60.0, 3600.0)
DRIFT = 0.05
DRIFTS = "drifts"


def with_jumps(blows: list[Blow], count: int, seed: int, agents: int, gap_s: float) -> list[Blow]:
    """Mix `count` jumps of clocks into other blows: of the server, single programs and agents."""
    dice = random.Random(f"jumps {seed}")  # noqa: S311  # no secret
    targets = [SERVER] * 3 + ["worker", "web", "beat"] + [f"agent-{n}" for n in range(agents)]
    jumps = [_jump(dice, dice.choice(targets), gap_s) for _ in range(count)]
    order = [True] * len(blows) + [False] * count
    dice.shuffle(order)
    others, clocks = iter(blows), iter(jumps)
    mixed = [next(others) if kill else next(clocks) for kill in order]
    return [replace(blow, number=number) for number, blow in enumerate(mixed)]


def _jump(dice: random.Random, target: str, gap_s: float) -> Blow:
    """A jump that stays for `hold_s`; then the clock jumps back to the true time."""
    how = DRIFTS if dice.random() < 0.1 else f"{dice.choice(JUMPS_S):+.0f}"
    pause_s = min(dice.expovariate(1 / gap_s), 4 * gap_s)
    hold_s = dice.uniform(1.0, 10 * gap_s)
    return Blow(0, CLOCK, how, round(pause_s, 3), round(hold_s, 3), target)


def partitions(count: int, seed: int, agents: int, pace: Pace) -> list[Blow]:
    """`count` cuts of an agent's link, for 1/3 to 3/2 of the time until its jobs are lost."""
    dice = random.Random(f"partitions {seed}")  # noqa: S311  # no secret
    blows = []
    for number in range(count):
        gap_s = min(dice.expovariate(1 / pace.gap_s), 4 * pace.gap_s)
        hold_s = pace.lost_s * dice.uniform(0.34, 1.5)
        how = CUTS[number % len(CUTS)]
        blows.append(
            Blow(
                number,
                "link",
                how,
                round(gap_s, 3),
                round(hold_s, 3),
                f"agent-{dice.randrange(agents)}",
            )
        )
    return blows
