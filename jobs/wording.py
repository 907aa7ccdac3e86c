"""Reasons for waiting in words: a sentence of at most 15 words, its remedy, and full lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

RESTING = "resting"
"""Code of a job that backs off after a failure, hidden from policies."""

BEGINS_LATER = "begins_later"
"""Code of a job whose time to begin has not come, hidden from policies."""

ARRAY_LIMIT = "array_limit"
"""Code of an element whose array runs as many as it may, hidden from policies."""

BY_ITSELF = "None: it starts by itself."
ANOTHER_TYPE = "Clone it with other allowed_types or fewer GPUs, or wait."

UNITS: Mapping[str, str] = {
    "gpus": "{:g} GPUs", "cores": "{:g} cores", "memory_gb": "{:g} GB of memory",
    "units": "{:g} units",
}  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class Facts:
    """Details of a reason. `names`: of nodes and of jobs that the reader may see, by id."""

    detail: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    now: datetime | None = None

    @property
    def jobs(self) -> str:
        """Jobs in the way, shortened."""
        hidden = self._hidden("jobs")
        of_others = "a job of another team" if hidden == 1 else f"{hidden} jobs of other teams"
        return _short(self._known("jobs"), hidden, of_others)

    @property
    def nodes(self) -> str:
        """Nodes in question, shortened."""
        hidden = self._hidden("nodes")
        return _short(self._known("nodes"), hidden, "a node" if hidden == 1 else f"{hidden} nodes")

    @property
    def is_one_node(self) -> bool:
        return len(_texts(self.detail.get("nodes"))) == 1

    def texts(self, name: str) -> str:
        """Texts of a detail, shortened."""
        return _short(_texts(self.detail.get(name)), 0, "")

    def at(self, name: str) -> str:
        """Time of a detail, "" if there is none or it has passed."""
        return time_in_words(self.detail.get(name), self.now)

    def lists(self) -> tuple[tuple[str, str], ...]:
        """Everything that is known, with headings, for a reader who asks."""
        found = [
            ("Nodes", self._all("nodes", "of unknown name")),
            ("Jobs", self._all("jobs", "of other teams")),
            ("Not here", ", ".join(_texts(self.detail.get("missing")))),
            ("There are", ", ".join(_texts(self.detail.get("offered")))),
            ("Too little", "; ".join(map(_lack, _lacks(self.detail)))),
            ("Last failure", str(self.detail.get("why") or "")),
        ]
        return tuple((heading, text) for heading, text in found if text)

    def _known(self, name: str) -> list[str]:
        return [self.names[i] for i in _texts(self.detail.get(name)) if i in self.names]

    def _hidden(self, name: str) -> int:
        return len(_texts(self.detail.get(name))) - len(self._known(name))

    def _all(self, name: str, others: str) -> str:
        hidden = self._hidden(name)
        return ", ".join([*self._known(name), *([f"{hidden} {others}"] if hidden else [])])


@dataclass(frozen=True, slots=True)
class Reason:
    """Words of one code: its sentence from the facts, and what helps."""

    sentence: Callable[[Facts], str]
    remedy: str


def _no_capacity(facts: Facts) -> str:
    if not facts.jobs:
        return "All GPUs it could use are taken."
    where = f"{facts.nodes}, held" if facts.nodes else "GPUs held"
    return f"It waits for {where} by {facts.jobs}."


def _preempted(facts: Facts) -> str:
    return f"It made way for {facts.jobs or 'other jobs'} on {facts.nodes or 'its GPUs'}."


def _cheaper_later(facts: Facts) -> str:
    where, at = facts.nodes or "free GPUs", facts.at("from_s")
    return f"It could use {where}, but a cheaper hour begins {at or 'soon'}."


def _better_node(facts: Facts) -> str:
    if not facts.nodes:
        return "Another node costs less in all."
    held = f", held by {facts.jobs}" if facts.jobs else ""
    return f"{facts.nodes} cost{'s' if facts.is_one_node else ''} less in all{held}."


def _reserved(facts: Facts) -> str:
    gpus, at = facts.detail.get("gpus"), facts.at("from_s")
    start = f" from {at}" if at else ""
    if not facts.is_one_node:
        return f"Free GPUs are reserved for {facts.jobs or 'another job'}{start}."
    much = f", {gpus} GPU{'' if gpus == 1 else 's'}" if isinstance(gpus, int) else ""
    return f"{facts.nodes} is reserved for {facts.jobs or 'another job'}{much}{start}."


def _awaiting_profile(facts: Facts) -> str:
    if facts.nodes:
        return f"Its kind is being measured first, on {facts.nodes}."
    return "Its kind is measured first, once a node for profiling is free."


def _no_throughput(facts: Facts) -> str:
    return f"Its speed on {facts.texts('missing') or 'the GPU types here'} is not known."


def _no_node_fits(facts: Facts) -> str:
    lacks = _lacks(facts.detail)
    if not lacks:
        return "No node is large enough for it."
    if all(most >= wanted for _, wanted, most in lacks):
        return "No node has all that it needs at once."
    return f"It needs {_lack(lacks[0])}."


def _missing(what: str) -> Callable[[Facts], str]:
    def sentence(facts: Facts) -> str:
        offered = facts.texts("offered")
        there = f"; there are {offered}" if offered else ""
        return f"No node has {what} {facts.texts('missing') or 'it needs'}{there}."

    return sentence


def _runtime_unavailable(facts: Facts) -> str:
    return f"No node that suits it has the runtime {facts.texts('missing') or 'it needs'}."


def _agent_too_old(facts: Facts) -> str:
    return f"Agents too old for its limits, signal, units or script: {facts.nodes or 'all'}."


def _nodes_of_other_teams(facts: Facts) -> str:
    serves = "serves another team" if facts.is_one_node else "serve other teams"
    return f"{facts.nodes or 'Its node'} {serves}: jobs are not isolated there."


def _nodes_unavailable(facts: Facts) -> str:
    if not facts.nodes:
        return "The cluster has no nodes yet."
    takes = "takes" if facts.is_one_node else "take"
    return f"Only {facts.nodes} could run it, and {takes} no new jobs now."


def _nodes_lost(facts: Facts) -> str:
    if not facts.nodes:
        return "It waits for a node that is lost."
    return f"It waits for {facts.nodes}, which {'is' if facts.is_one_node else 'are'} lost."


def _power_cap(facts: Facts) -> str:
    watts = facts.detail.get("watts")
    short = f"is {watts:.0f} W too low for it" if isinstance(watts, (int, float)) else "is reached"
    until = facts.at("from_s")
    return f"The cluster's power cap {short}{f' until {until}' if until else ''}."


def _resting(facts: Facts) -> str:
    at = facts.at("retry_s")
    return f"It rests before it is tried again{f' at {at}' if at else ''}."


def _begins_later(facts: Facts) -> str:
    at = facts.at("retry_s")
    return f"It does not begin before {at}." if at else "Its time to begin has come."


def _array_limit(facts: Facts) -> str:
    limit = facts.detail.get("at_once", 1)
    return f"Its array runs at most {limit} element{'' if limit == 1 else 's'} at a time."


def _team_limit(facts: Facts) -> str:
    gpus, team = facts.detail.get("gpus", 0), facts.detail.get("team", "")
    return f"Team {team} may use {gpus} GPU{'' if gpus == 1 else 's'} at a time."


def _said(text: str) -> Callable[[Facts], str]:
    return lambda facts: text


REASONS: Mapping[str, Reason] = {
    "": Reason(_said("It waits for the next decision."), BY_ITSELF),
    "no_capacity": Reason(_no_capacity, ANOTHER_TYPE),
    "postponed": Reason(
        _said("GPUs are free, but the policy expects less cost from a later start."),
        "A due date with a tardiness_weight, or a greater value_of_time of the cluster.",
    ),
    "preempted": Reason(_preempted, f"{BY_ITSELF} It goes on from its checkpoint."),
    "cheaper_later": Reason(
        _cheaper_later,
        "A due date with a tardiness_weight, or a greater value_of_time of the cluster.",
    ),
    "better_node": Reason(
        _better_node,
        "A due date with a tardiness_weight, or a greater value_of_time of the cluster.",
    ),
    "reserved": Reason(_reserved, "A greater priority or tardiness_weight, or other GPU types."),
    "awaiting_profile": Reason(_awaiting_profile, "Clone it with profiling: first_run, or wait."),
    "no_throughput": Reason(_no_throughput, "Clone it with profiling: first_run or dedicated."),
    "no_node_fits": Reason(_no_node_fits, "Clone it with less, or add a larger node."),
    "types_unavailable": Reason(
        _missing("the type"), "Clone it with other allowed_types, or add such a node."
    ),
    "label_unavailable": Reason(
        _missing("the label"), "Clone it without the label, or give a node the label."
    ),
    "runtime_unavailable": Reason(
        _runtime_unavailable, "Clone it with another runtime, or offer it on a node."
    ),
    "agent_too_old": Reason(
        _agent_too_old,
        "Upgrade the agents, or clone it with on_walltime: warn, no deadline and one unit.",
    ),
    "nodes_of_other_teams": Reason(
        _nodes_of_other_teams,
        "An operator lets the agent isolate jobs (docs/agent.md, Isolation), or adds a node.",
    ),
    "dependency": Reason(
        lambda facts: f"It waits for {facts.jobs or 'other jobs'} to complete.",
        f"{BY_ITSELF} A job that failed or is held must be requeued or released.",
    ),
    "power_cap": Reason(_power_cap, "None but time, or a higher power cap by an operator."),
    "nodes_unavailable": Reason(
        _nodes_unavailable, "An operator uncordons a node, ends its drain or changes its role."
    ),
    "nodes_lost": Reason(
        _nodes_lost, "An operator starts the node's agent again; or clone it for other nodes."
    ),
    "nodes_avoided": Reason(
        lambda facts: f"It failed on {facts.nodes or 'its node'} and avoids that for ten minutes.",
        BY_ITSELF,
    ),
    "solver_failed": Reason(
        _said("The last decision failed; what runs goes on and it is tried again."),
        f"{BY_ITSELF} Operators see the cause under Rounds.",
    ),
    "refused": Reason(
        _said("The policy's place for it breaks a rule, so it was left out."),
        f"{BY_ITSELF} Operators see the rule under Rounds, and can choose another policy.",
    ),
    RESTING: Reason(_resting, "Mend the cause of its last failure; `release` ends the pause."),
    BEGINS_LATER: Reason(_begins_later, f"{BY_ITSELF} `release` lets it begin now."),
    "team_limit": Reason(_team_limit, f"{BY_ITSELF} An operator can raise the team's max_gpus."),
    ARRAY_LIMIT: Reason(_array_limit, "None: it starts when an earlier element has ended."),
    "deferred": Reason(_said("It starts when another job has left its GPUs."), BY_ITSELF),
    "stale": Reason(
        _said("Its GPUs were taken or lost meanwhile; the next decision finds others."), BY_ITSELF
    ),
}
"""Sentence and remedy of every code: of plans, of rejected launches, and of the program's own."""


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
    known = REASONS.get(code)
    if known is None:
        return Explanation(f"{code.replace('_', ' ').capitalize()}.", lists=facts.lists())
    return Explanation(known.sentence(facts), known.remedy, facts.lists())


def reason_for_waiting(
    state: str, code: str, detail: object, names: Mapping[str, str], now: datetime | None = None
) -> str:
    """Return the sentence of `explain`."""
    return explain(state, code, detail, names, now).sentence


def time_in_words(seconds: object, now: datetime | None) -> str:
    """Return a moment as 22:00 UTC, with its day unless today; "" if it is no later than now."""
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 4e9:
        return ""
    moment = datetime.fromtimestamp(seconds, UTC)
    if now is not None and moment <= now:
        return ""
    is_today = now is not None and moment.date() == now.astimezone(UTC).date()
    return f"{moment:%H:%M} UTC" if is_today else f"{moment:%Y-%m-%d %H:%M} UTC"


def _short(known: Sequence[str], hidden: int, of_hidden: str) -> str:
    """Return the first name and the number of others, or two names, or `of_hidden`."""
    if not known:
        return of_hidden if hidden else ""
    others = len(known) + hidden - 1
    if others == 1 and not hidden:
        return f"{known[0]} and {known[1]}"
    return known[0] if not others else f"{known[0]} and {others} other{'s' * (others > 1)}"


def _texts(values: object) -> list[str]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [str(value) for value in values]


def _lacks(detail: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    given = detail.get("lacks")
    rows = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    return [(str(name), float(wanted), float(most)) for name, wanted, most in rows]


def _lack(lack: tuple[str, float, float]) -> str:
    name, wanted, most = lack
    amount = UNITS.get(name, "{:g} of " + name).format(wanted)
    return f"{amount}, and nodes that suit it have at most {most:g}"
