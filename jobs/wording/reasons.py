"""Sentence and remedy of each reason for waiting; a sentence has at most 15 words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jobs.wording.facts import Facts, amount_in_words, lack_in_words, lacks_of, texts_of

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

FEATURES: Mapping[str, str] = {
    "limits": "time limits",
    "signal": "signals before the end",
    "batch": "scripts and units",
    "container_scripts": "scripts in images",
}
"""Words for each feature that an old agent may lack."""

VERBS: Mapping[str, str] = {
    "afterok": "to complete",
    "afternotok": "to fail",
    "afterany": "to end",
    "after": "to start",
    "singleton": "to end",
}
"""Words for what the other job must do, by the condition of the dependency."""


Words = Callable[[Facts], str]
"""Function from the facts of a reason to a text."""


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
    costs = "costs" if facts.is_one_node else "cost"
    if facts.jobs:
        are = "is" if facts.is_one_node else "are"
        return f"{facts.nodes} {costs} less and {are} held by {facts.jobs}."
    return f"{facts.nodes} {costs} less."


def _reserved(facts: Facts) -> str:
    jobs = facts.jobs or "another job"
    at = facts.at("from_s")
    start = f" from {at}" if at else ""
    if not facts.is_one_node:
        return f"Free GPUs are reserved for {jobs}{start}."
    gpus = facts.detail.get("gpus")
    count = ""
    if isinstance(gpus, int) and gpus:
        count = f", {amount_in_words('gpus', gpus)}"
    return f"{facts.nodes} is reserved for {jobs}{count}{start}."


def _awaiting_profile(facts: Facts) -> str:
    if facts.nodes:
        return f"Its kind is being measured first, on {facts.nodes}."
    return "Its kind is measured first, once a node for profiling is free."


def _no_throughput(facts: Facts) -> str:
    return f"Its speed on {facts.texts('missing') or 'the GPU types here'} is not known."


def _no_node_fits(facts: Facts) -> str:
    lacks = lacks_of(facts.detail)
    if not lacks:
        return "No node is large enough for it."
    if all(most >= wanted for _, wanted, most in lacks):
        return "No node has all that it needs at once."
    return f"It needs {lack_in_words(lacks[0])}."


def _ask_for_less(facts: Facts) -> str:
    """Return what helps a job that is too large, naming the most that would do."""
    for name, wanted, most in lacks_of(facts.detail):
        if 0.0 < most < wanted:
            where = "more nodes" if name == "units" else "a larger node"
            return f"Clone it with at most {amount_in_words(name, most)}, or add {where}."
        if most < wanted:
            return "Clone it without, or add a node that has it."
    return "Clone it with less, or add a larger node."


def _types_unavailable(facts: Facts) -> str:
    offered = facts.texts("offered")
    there = f"; there are {offered}" if offered else ""
    return f"No node is of type {facts.texts('missing', 'or') or 'that it allows'}{there}."


def _label_unavailable(facts: Facts) -> str:
    missing = texts_of(facts.detail.get("missing"))
    offered = texts_of(facts.detail.get("offered"))
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
    missing = texts_of(facts.detail.get("missing"))
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
    # 1. The jobs by their conditions.
    conditions = facts.detail.get("conditions")
    groups: dict[str, list[str]] = {}
    for job in texts_of(facts.detail.get("jobs")):
        condition = str(conditions.get(job, "")) if isinstance(conditions, Mapping) else ""
        groups.setdefault(condition, []).append(job)
    if not groups:
        return "It waits for other jobs."

    # 2. A part of the sentence for each condition.
    one_suffices = bool(facts.detail.get("one_suffices"))
    joined_by = "or" if one_suffices else "and"
    parts = []
    for condition, jobs in groups.items():
        parts.append(_what_must_happen(condition, facts.some_jobs(jobs, joined_by)))

    # 3. The sentence, without the parts that make it too long.
    words = 2 + len(f" {joined_by} ".join(parts).split())  # with "It waits"
    if len(parts) > 2 or words > MOST_WORDS:
        parts = [parts[0], "for other jobs"]
    return f"It waits {f' {joined_by} '.join(parts)}."


def _what_must_happen(condition: str, jobs: str) -> str:
    """Return the condition in words: for A to complete; until 5 minutes after the start of A."""
    name, _, minutes = condition.partition("+")
    if minutes:
        unit = "minute" if minutes == "1" else "minutes"
        return f"until {minutes} {unit} after the start of {jobs}"
    return f"for {jobs} {VERBS.get(name, VERBS['afterok'])}"


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
    return f"Team {team} may use {amount_in_words('gpus', facts.detail.get('gpus', 0))} at a time."


def _outbid(facts: Facts) -> str:
    price = facts.detail.get("price")
    worth = facts.detail.get("worth")
    if not isinstance(price, (int, float)) or not isinstance(worth, (int, float)) or worth <= 0:
        return "GPUs are free, but cost more than it is worth to the policy."
    return f"GPUs are free, but cost {price / worth:.2g} times what it is worth to the policy."


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
    "outbid": Reason(_outbid, _text("Wait, or clone it with a greater priority or weight.")),
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
        _text("No node has enough GPUs for it; this policy spreads no job over nodes."),
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
        _text("The policy's placement of it breaks a rule, so it was left out."),
        _text("Nothing to do; operators see the rule under Rounds, and can change the policy."),
    ),
    "stale": Reason(
        _text("Its GPUs were taken or lost meanwhile; the next decision finds others."),
        _text(BY_ITSELF),
    ),
}
"""Sentence and remedy of every code: of plans, of rejected launches, and of the program's own.

`policies.placement.waiting.reason_rules.RULES` says when a code of a plan is true.
"""
