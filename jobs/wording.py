"""Reasons for waiting in words: a sentence of at most 15 words, its remedy, and full lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from policies.placement.reasons import MOST_NAMED

MOST_WORDS = 15
"""Most words of a sentence."""

RESTING = "resting"
"""Code of a job that backs off after a failure, hidden from policies."""

BEGINS_LATER = "begins_later"
"""Code of a job whose time to begin has not come, hidden from policies."""

ARRAY_LIMIT = "array_limit"
"""Code of an element whose array runs as many as it may, hidden from policies."""

BY_ITSELF = "Nothing to do: it starts by itself."
COST_OF_WAITING = (
    "Wait, or clone it with a due date and a tardiness_weight; operators can raise value_of_time."
)

UNITS: Mapping[str, tuple[str, str]] = {
    "gpus": ("GPU", "GPUs"), "healthy_gpus": ("healthy GPU", "healthy GPUs"),
    "cores": ("core", "cores"), "memory_gb": ("GB of memory", "GB of memory"),
    "units": ("unit", "units"),
}  # fmt: skip
"""Words of one and of several of what a node may have too little of."""

FEATURES: Mapping[str, str] = {
    "limits": "time limits", "signal": "signals before the end", "batch": "scripts and units",
}  # fmt: skip
"""Words of what agents may be too old for."""

VERBS: Mapping[str, str] = {
    "afterok": "to complete", "afternotok": "to fail", "afterany": "to end", "after": "to start",
    "singleton": "to end",
}  # fmt: skip
"""Words of what a job waits for, by the condition of its dependency."""

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
        return self.some_jobs(_texts(self.detail.get("jobs")))

    def some_jobs(self, jobs: Sequence[str]) -> str:
        """Return these jobs, shortened; those that the reader may not see by their number."""
        known = [self.names[job] for job in jobs if job in self.names]
        hidden = len(jobs) - len(known)
        of_others = "a job of another team" if hidden == 1 else f"{hidden} jobs of other teams"
        if len(jobs) >= MOST_NAMED:
            of_others = "jobs of other teams"
        return _short(known, hidden, of_others)

    @property
    def nodes(self) -> str:
        """Nodes in question, shortened."""
        hidden = self._hidden("nodes")
        of_hidden = "a node" if hidden == 1 else f"{hidden} nodes"
        return _short(self._known("nodes"), hidden, of_hidden)

    def needs(self, what: str) -> bool:
        """Return True if the job asks for this.

        `what`: `cores` (and no GPU), `several` cores or GPUs, or certain GPU `types`.
        """
        return what in _texts(self.detail.get("needs"))

    @property
    def is_one_node(self) -> bool:
        return len(_texts(self.detail.get("nodes"))) == 1

    def texts(self, name: str, joined_by: str = "and") -> str:
        """Texts of a detail, shortened."""
        return _short(_texts(self.detail.get(name)), 0, "", joined_by)

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
        hidden, named = self._hidden(name), self._known(name)
        if hidden:
            named.append(f"{hidden} {others}")
        if len(_texts(self.detail.get(name))) >= MOST_NAMED:
            named.append("perhaps more")
        return ", ".join(named)


Words = Callable[[Facts], str]


@dataclass(frozen=True, slots=True)
class Reason:
    """Words of one code: its sentence from the facts, and what helps."""

    sentence: Words
    remedy: Words


def _no_capacity(facts: Facts) -> str:
    if facts.jobs and facts.nodes:
        return f"It waits for {facts.nodes}, held by {facts.jobs}."
    what = "cores" if facts.needs("cores") else "GPUs"
    if facts.jobs:
        return f"It waits for {what} held by {facts.jobs}."
    return f"All {what} that it could use are taken."


def _wait_or_ask_for_less(facts: Facts) -> str:
    """Return what helps a job that waits for others to end: what it could do without."""
    changes = []
    if facts.needs("types"):
        changes.append("other allowed_types")
    if facts.needs("several"):
        changes.append("fewer cores" if facts.needs("cores") else "fewer GPUs")
    if not changes:
        return BY_ITSELF
    return f"Wait, or clone it with {' or '.join(changes)}."


def _preempted(facts: Facts) -> str:
    return f"It made way for {facts.jobs or 'other jobs'} on {facts.nodes or 'its node'}."


def _cheaper_later(facts: Facts) -> str:
    at = facts.at("from_s")
    return f"It could use {facts.nodes or 'free GPUs'}, but energy is cheaper {_from(at)}."


def _from(at: str) -> str:
    return f"from {at}" if at else "soon"


def _better_node(facts: Facts) -> str:
    if not facts.nodes:
        return "Another node costs less."
    costs, are = ("costs", "is") if facts.is_one_node else ("cost", "are")
    if facts.jobs:
        return f"{facts.nodes} {costs} less and {are} held by {facts.jobs}."
    return f"{facts.nodes} {costs} less."


def _reserved(facts: Facts) -> str:
    gpus, at = facts.detail.get("gpus"), facts.at("from_s")
    start = f" from {at}" if at else ""
    if not facts.is_one_node:
        return f"Free GPUs are reserved for {facts.jobs or 'another job'}{start}."
    count = ""
    if isinstance(gpus, int) and gpus:
        count = f", {_amount('gpus', gpus)}"
    return f"{facts.nodes} is reserved for {facts.jobs or 'another job'}{count}{start}."


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


def _ask_for_less(facts: Facts) -> str:
    """Return what helps a job that is too large, naming the most that would do."""
    for name, wanted, most in _lacks(facts.detail):
        if 0.0 < most < wanted:
            where = "more nodes" if name == "units" else "a larger node"
            return f"Clone it with at most {_amount(name, most)}, or add {where}."
        if most < wanted:
            return "Clone it without, or add a node that has it."
    return "Clone it with less, or add a larger node."


def _types_unavailable(facts: Facts) -> str:
    offered = facts.texts("offered")
    there = f"; there are {offered}" if offered else ""
    return f"No node is of type {facts.texts('missing', 'or') or 'that it allows'}{there}."


def _label_unavailable(facts: Facts) -> str:
    missing, offered = _texts(facts.detail.get("missing")), _texts(facts.detail.get("offered"))
    if not missing:
        return "No node has the labels that it needs."
    noun = "label" if len(missing) == 1 else "labels"
    labels = f"{noun} {facts.texts('missing')}"
    if facts.nodes:
        lacks = "lacks" if facts.is_one_node else "lack"
        return f"{facts.nodes} could run it, but {lacks} the {labels}."
    if set(missing) <= set(offered):
        return f"No node has the {labels} together."
    there = f"; nodes have {facts.texts('offered')}" if offered else ""
    return f"No node has the {labels}{there}."


def _runtime_unavailable(facts: Facts) -> str:
    return f"No node that suits it offers the runtime {facts.texts('missing') or 'it needs'}."


def _agent_too_old(facts: Facts) -> str:
    missing = _texts(facts.detail.get("missing"))
    unknown = [FEATURES[name] for name in missing if name in FEATURES]
    what = unknown[0] if unknown else "what it needs"
    if not facts.nodes:
        return f"The agents here are too old for {what}."
    if facts.is_one_node:
        return f"The agent of {facts.nodes} is too old for {what}."
    return f"The agents of {facts.nodes} are too old for {what}."


def _nodes_of_other_teams(facts: Facts) -> str:
    serves = "serves another team" if facts.is_one_node else "serve other teams"
    return f"{facts.nodes or 'Its node'} {serves}: jobs are not isolated there."


def _nodes_unavailable(facts: Facts) -> str:
    if not facts.nodes:
        return "The cluster has no nodes yet."
    takes = "takes" if facts.is_one_node else "take"
    return f"Only {facts.nodes} could run it, but {takes} no new jobs now."


def _open_a_node(facts: Facts) -> str:
    if not facts.nodes:
        return "An operator starts an agent on a node (docs/quickstart.md)."
    return "An operator uncordons a node, ends its drain or changes its role."


def _nodes_lost(facts: Facts) -> str:
    if not facts.nodes:
        return "It waits for a node that is lost."
    return f"It waits for {facts.nodes}, which {'is' if facts.is_one_node else 'are'} lost."


def _dependency(facts: Facts) -> str:
    """Return the jobs that it waits for, with what each must do."""
    conditions = facts.detail.get("conditions")
    groups: dict[str, list[str]] = {}
    for job in _texts(facts.detail.get("jobs")):
        condition = str(conditions.get(job, "")) if isinstance(conditions, Mapping) else ""
        groups.setdefault(VERBS.get(condition, VERBS["afterok"]), []).append(job)
    parts = [f"for {facts.some_jobs(jobs)} {verb}" for verb, jobs in groups.items()]
    if not parts:
        return "It waits for other jobs."
    words = 2 + len(" and ".join(parts).split())  # with "It waits"
    if len(parts) > 2 or words > MOST_WORDS:
        parts = [parts[0], "for other jobs"]
    return f"It waits {' and '.join(parts)}."


def _free_what_it_waits_for(facts: Facts) -> str:
    if facts.detail.get("conditions"):
        return BY_ITSELF
    return "Nothing to do, unless that job is held or failed: release or requeue it."


def _power_cap(facts: Facts) -> str:
    watts = facts.detail.get("watts")
    cap = "The cluster's power cap is reached"
    if isinstance(watts, (int, float)):
        cap = f"The cluster's power cap is {watts:.0f} W too low for it"
    until = facts.at("from_s")
    return f"{cap} until {until}." if until else f"{cap}."


def _nodes_avoided(facts: Facts) -> str:
    them = "it" if facts.is_one_node else "them"
    return f"It failed on {facts.nodes or 'its node'}, and avoids {them} for ten minutes."


def _resting(facts: Facts) -> str:
    at = facts.at("retry_s")
    if not at:
        return "It pauses after a failure, and is tried again soon."
    return f"It pauses after a failure until {at}."


def _begins_later(facts: Facts) -> str:
    at = facts.at("retry_s")
    return f"It does not begin before {at}." if at else "Its time to begin has come."


def _array_limit(facts: Facts) -> str:
    limit = facts.detail.get("at_once", 1)
    elements = "element" if limit == 1 else "elements"
    return f"Its array runs at most {limit} {elements} at a time."


def _team_limit(facts: Facts) -> str:
    team = facts.detail.get("team", "")
    return f"Team {team} may use {_amount('gpus', facts.detail.get('gpus', 0))} at a time."


def _text(text: str) -> Words:
    """Return words that are the same whatever the facts."""
    return lambda facts: text


REASONS: Mapping[str, Reason] = {
    "": Reason(_text("It waits for the next decision."), _text(BY_ITSELF)),
    "no_capacity": Reason(_no_capacity, _wait_or_ask_for_less),
    "postponed": Reason(
        _text("Enough is free, but the policy starts it later."), _text(COST_OF_WAITING)
    ),
    "preempted": Reason(_preempted, _text(f"{BY_ITSELF} It goes on from its checkpoint.")),
    "cheaper_later": Reason(_cheaper_later, _text(COST_OF_WAITING)),
    "better_node": Reason(_better_node, _text(COST_OF_WAITING)),
    "reserved": Reason(
        _reserved, _text("Wait, or clone it with a greater priority or tardiness_weight.")
    ),
    "awaiting_profile": Reason(
        _awaiting_profile, _text("Wait, or clone it with profiling: first_run.")
    ),
    "no_throughput": Reason(
        _no_throughput, _text("Clone it with profiling: first_run or dedicated.")
    ),
    "no_node_fits": Reason(_no_node_fits, _ask_for_less),
    "types_unavailable": Reason(
        _types_unavailable, _text("Clone it with other allowed_types, or add such a node.")
    ),
    "label_unavailable": Reason(
        _label_unavailable, _text("Clone it without the label, or give a node the label.")
    ),
    "runtime_unavailable": Reason(
        _runtime_unavailable, _text("Clone it with another runtime, or offer it on a node.")
    ),
    "agent_too_old": Reason(
        _agent_too_old,
        _text("Upgrade the agents, or clone it with on_walltime: warn, no deadline and one unit."),
    ),
    "nodes_of_other_teams": Reason(
        _nodes_of_other_teams,
        _text("An operator lets the agent isolate jobs (docs/agent.md), or adds a node."),
    ),
    "dependency": Reason(_dependency, _free_what_it_waits_for),
    "power_cap": Reason(_power_cap, _text("Wait, or ask an operator to raise the power cap.")),
    "nodes_unavailable": Reason(_nodes_unavailable, _open_a_node),
    "nodes_lost": Reason(
        _nodes_lost,
        _text("An operator starts the node's agent again; or clone it for other nodes."),
    ),
    "nodes_avoided": Reason(_nodes_avoided, _text(BY_ITSELF)),
    "not_spread": Reason(
        _text("No node has all its GPUs, and this policy does not spread a job over nodes."),
        _text("Clone it with fewer GPUs, add a larger node, or ask for another policy."),
    ),
    "solver_failed": Reason(
        _text("The last decision failed; running jobs go on, and it is tried again."),
        _text("Nothing to do; operators see the cause under Rounds."),
    ),
    RESTING: Reason(
        _resting,
        _text("Fix the cause of the last failure, then run `loadmaster release` to retry now."),
    ),
    BEGINS_LATER: Reason(
        _begins_later, _text("Wait, or run `loadmaster release` to let it begin now.")
    ),
    "team_limit": Reason(
        _team_limit, _text("Wait, or ask an operator to raise the team's max_gpus.")
    ),
    ARRAY_LIMIT: Reason(
        _array_limit, _text("Nothing to do: it starts when an earlier element has ended.")
    ),
    "deferred": Reason(
        _text("It starts as soon as another job has made room for it."), _text(BY_ITSELF)
    ),
    "refused": Reason(
        _text("The policy's place for it breaks a rule, so it was left out."),
        _text("Nothing to do; operators see the rule under Rounds, and can change the policy."),
    ),
    "stale": Reason(
        _text("Its place was taken or lost meanwhile; the next decision finds another."),
        _text(BY_ITSELF),
    ),
}
"""Sentence and remedy of every code: of plans, of rejected launches, and of the program's own.

`policies.placement.reason_rules.RULES` says when a code of a plan is true.
"""


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
    return Explanation(known.sentence(facts), known.remedy(facts), facts.lists())


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


def _short(known: Sequence[str], hidden: int, of_hidden: str, joined_by: str = "and") -> str:
    """Return the first name and the number of others, or two names, or `of_hidden`.

    A list that may have been cut says "others" without their number.
    """
    if not known:
        return of_hidden if hidden else ""
    others = len(known) + hidden - 1
    if not others:
        return known[0]
    if others == 1 and not hidden:
        return f"{known[0]} {joined_by} {known[1]}"
    if others + 1 >= MOST_NAMED:
        return f"{known[0]} {joined_by} others"
    nouns = "other" if others == 1 else "others"
    return f"{known[0]} {joined_by} {others} {nouns}"


def _texts(values: object) -> list[str]:
    """Return a stored list as texts; [] if it is none."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [str(value) for value in values]


def _lacks(detail: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return (name, amount wanted, most that a node has) of what nodes have too little of."""
    stored = detail.get("lacks")
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        return []
    return [(str(name), float(wanted), float(most)) for name, wanted, most in stored]


def _lack(lack: tuple[str, float, float]) -> str:
    name, wanted, most = lack
    has = f"at most {most:g}" if most else "none"
    return f"{_amount(name, wanted)}, and nodes that suit it have {has}"


def _amount(name: str, amount: float) -> str:
    """Return an amount in words, as "1 core", "64 GB of memory" or "2 fpga"."""
    one, several = UNITS.get(name, (name, name))
    return f"{amount:g} {one if amount == 1 else several}"
