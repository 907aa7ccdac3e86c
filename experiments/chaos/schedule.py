"""Targets and times of blows: a function of the seed alone. Pure."""

import random
from dataclasses import dataclass

PARTS = ("agent", "worker", "beat", "web", "broker")
OTHERS = ("pool", "solver")
"""Children of the worker: a process of its pool, and the solver that one of them keeps."""

SHARE = 0.16
"""Fraction of all kills that each part gets for sure: 32 of 200."""

EARLY = 0.25
"""Fraction of all kills that do not wait until their target is at work."""

CUTS = ("down", "drop-both", "drop-out", "drop-in")
"""Ways to cut a link: down, or packets dropped both ways, from or to the agent."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One strike: `gap_s` after the one before, at `target` (one agent by its number), for `hold_s`
    until it comes back.

    It waits until the target has been at work for `work_s`; one that is `early` strikes it also
    while it starts.
    """

    number: int
    part: str
    how: str
    gap_s: float
    hold_s: float
    target: str
    early: bool = False
    work_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean seconds between blows, and seconds after which a silent agent's jobs are lost."""

    gap_s: float
    lost_s: float


def kills(count: int, seed: int, agents: int, pace: Pace) -> list[Blow]:
    """`count` SIGKILLs, a share for every part; some agents stay away beyond their lease."""
    dice = random.Random(f"kills {seed}")  # noqa: S311  # no secret
    parts = [part for part in PARTS for _ in range(round(SHARE * count))]
    parts += [dice.choice(PARTS + OTHERS) for _ in range(count - len(parts))]
    dice.shuffle(parts)
    return [_kill(number, part, agents, pace, dice) for number, part in enumerate(parts[:count])]


def _kill(number: int, part: str, agents: int, pace: Pace, dice: random.Random) -> Blow:
    target = f"agent-{dice.randrange(agents)}" if part == "agent" else part
    gap_s = min(dice.expovariate(1 / pace.gap_s), 4 * pace.gap_s)
    is_long = part == "agent" and dice.random() < 0.3
    hold_s = pace.lost_s * dice.uniform(0.8, 1.6) if is_long else dice.uniform(0.1, 2.0)
    return Blow(
        number,
        part,
        "kill",
        round(gap_s, 3),
        round(hold_s, 3),
        target,
        dice.random() < EARLY,
        round(dice.uniform(0.0, 4.0), 3),
    )


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
