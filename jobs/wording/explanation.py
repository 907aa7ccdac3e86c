"""Explanation of why a job waits: its sentence, what helps, and full lists."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from jobs.wording.facts import Facts
from jobs.wording.reasons import REASONS

STATES: Mapping[str, str] = {
    "held": "Held until it is released.",
    "profiling": "Its kind is being measured.",
    "starting": "A node is getting ready for it.",
    "stopping": "It saves a checkpoint and goes back to the queue.",
    "cancelling": "It is being stopped.",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job waits: a sentence, what helps, and (heading, names or values) in full."""

    sentence: str = ""
    remedy: str = ""
    lists: tuple[tuple[str, str], ...] = ()


def explain(
    state: str, code: str, detail: object, names: Mapping[str, str], now: datetime | None = None
) -> Explanation:
    """Return why a job waits; empty if it runs or is over.

    `detail` is what the round has stored of the reason; ids without a name in `names` are not
    shown. `now` hides times that have passed.
    """
    if state != "queued":
        return Explanation(STATES.get(state, ""))
    facts = Facts(detail if isinstance(detail, Mapping) else {}, names, now)
    reason = REASONS.get(code)
    if reason is None:
        return Explanation(f"{code.replace('_', ' ').capitalize()}.", lists=facts.lists())
    return Explanation(reason.sentence(facts), reason.remedy(facts), facts.lists())


def reason_for_waiting(
    state: str, code: str, detail: object, names: Mapping[str, str], now: datetime | None = None
) -> str:
    """Return the sentence of `explain`."""
    return explain(state, code, detail, names, now).sentence
