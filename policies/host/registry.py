"""Registry of policies, imported on first use; third parties add theirs by an entry point.

An entry point of the group `loadmaster.policies` names a frozen dataclass (see
`policies.contract.policy`). A broken one is listed with its error. Only `make` imports a third
party's policy; all other functions ask another process about it, as an import may never end
(`policies.host.third_parties`, ADR 0020).
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getsourcefile
from typing import Any, cast

from policies.contract import policy as of_policy
from policies.contract.policy import (
    Policy,
    PolicyError,
    UnknownPolicyError,
    checked,
    parameters_schema,
)
from policies.host import third_parties

GROUP = "loadmaster.policies"

BUILT_IN: Mapping[str, str] = {
    "cost_search": "policies.search.cost_search:CostSearch",
    "randomized_greedy": "policies.andreas.randomized_greedy:RandomizedGreedy",
    "fifo": "policies.baselines.fifo:Fifo",
    "edf": "policies.baselines.edf:Edf",
    "priority": "policies.baselines.priority:Priority",
    "tiresias": "policies.baselines.tiresias:Tiresias",
    "yarn_cs": "policies.baselines.yarn_cs:YarnCs",
    "area_backfilling": "policies.batch.area_backfilling:AreaBackfilling",
    "backfilling": "policies.batch.backfilling:Backfilling",
    "hcp19": "policies.batch.cp.hcp19:Hcp19",
    "pcp20": "policies.batch.cp.pcp20:Pcp20",
    "pcp19": "policies.batch.cp.pcp19:Pcp19",
    "exact": "policies.andreas.exact:Exact",
    "max_min_fairness": "policies.gavel.max_min_fairness:MaxMinFairness",
    "finish_time_fairness": "policies.gavel.finish_time_fairness:FinishTimeFairness",
    "makespan": "policies.gavel.makespan:Makespan",
    "fifo_shares": "policies.gavel.fifo_shares:FifoShares",
    "shortest_first": "policies.gavel.shortest_first:ShortestFirst",
    "max_throughput": "policies.gavel.max_throughput:MaxThroughput",
    "min_cost": "policies.gavel.min_cost:MinCost",
    "hierarchical": "policies.gavel.hierarchical:Hierarchical",
    "allox": "policies.gavel.allox:AlloX",
    "gandiva": "policies.gavel.gandiva:Gandiva",
    "hadar": "policies.hadar.hadar:Hadar",
}
"""Name -> "module:class", best first for lists."""

DEFAULT = "cost_search"
"""Policy of a new cluster, of least total cost in all simulations."""

AT_ONCE = 4
"""Third parties' policies described at the same time."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """Entry of the list of policies; `error` says why a broken one cannot be used."""

    name: str
    summary: str
    error: str | None = None
    third_party: bool = False


def names() -> tuple[str, ...]:
    """Return the names of all policies, without importing any."""
    return (*BUILT_IN, *_entry_points())


def make(name: str, parameters: Mapping[str, object] | None = None) -> Policy:
    """Import and return the policy with these parameters, others at their defaults.

    Raises UnknownPolicyError, PolicyParameterError naming the parameter and the remedy, or
    PolicyError where a third party's policy cannot be loaded.
    """
    if name in BUILT_IN:
        policy = _built_in(name)
        return cast(Policy, policy(**checked(policy, parameters or {})))
    return made(name, imported(_entry_point(name)), parameters or {})


def places_batch(name: str) -> bool:
    """Return True if a policy decides about batch jobs itself, in bounded time.

    One that is unknown or cannot be loaded does not.
    """
    if name in BUILT_IN:
        return of_policy.places_batch(_built_in(name))
    try:
        return third_parties.describe(_entry_point(name)).places_batch
    except PolicyError:
        return False


def check(name: str, parameters: Mapping[str, object] | None = None) -> None:
    """Check policy and parameters in bounded time. Raises as `make`."""
    if name in BUILT_IN:
        checked(_built_in(name), parameters or {})
    else:
        third_parties.describe(_entry_point(name), parameters or {})


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a policy's parameters, in bounded time. Raises as `make`."""
    if name in BUILT_IN:
        return parameters_schema(_built_in(name))
    return dict(third_parties.describe(_entry_point(name)).schema)


def source_file(name: str) -> str:
    """Return the source file of a policy, in bounded time; "" if none. Raises as `make`."""
    if name in BUILT_IN:
        return getsourcefile(_built_in(name)) or ""
    return third_parties.describe(_entry_point(name)).file


def entries() -> tuple[PolicyEntry, ...]:
    """Return all policies with their first documentation line or their error, in bounded time."""
    built_in = [PolicyEntry(name, str(schema(name)["description"])) for name in BUILT_IN]
    with ThreadPoolExecutor(AT_ONCE) as pool:  # threads mostly wait for processes that import
        third_party = pool.map(_third_party_entry, _entry_points().values())
        return (*built_in, *third_party)


def imported(entry_point: EntryPoint) -> type:
    """Import a third party's class. PolicyError if it is broken or no policy."""
    subject = f"policy {entry_point.name!r} ({entry_point.value})"
    try:
        policy = entry_point.load()
    except (Exception, SystemExit) as error:  # an import may raise anything, or want to end us
        raise PolicyError(f"{subject} cannot be loaded: {_worded(error)}") from error
    if not _is_policy(policy):
        raise PolicyError(f"{subject} is not a frozen dataclass with __call__(snapshot)")
    try:
        parameters_schema(policy)
    except Exception as error:
        # fields that are no parameters, or no documentation: it could neither be shown nor set
        cause = f"has parameters that cannot be shown: {_worded(error)}"
        raise PolicyError(f"{subject} {cause}") from error
    return cast(type, policy)


def made(name: str, policy: type, parameters: Mapping[str, object]) -> Policy:
    """Make a third party's policy with these parameters. PolicyError for any failure."""
    values = checked(policy, parameters)
    try:
        return cast(Policy, policy(**values))
    except PolicyError:
        raise
    except (Exception, SystemExit) as error:  # what it does with its parameters is its own affair
        raise PolicyError(
            f"policy {name!r} cannot be made with these parameters: {_worded(error)}"
        ) from error


def _third_party_entry(entry_point: EntryPoint) -> PolicyEntry:
    """Return a third party's policy with its summary or its error."""
    try:
        summary = third_parties.describe(entry_point).summary
        return PolicyEntry(entry_point.name, summary, third_party=True)
    except PolicyError as error:
        return PolicyEntry(entry_point.name, "", str(error), third_party=True)


def _entry_points() -> dict[str, EntryPoint]:
    """Return third parties' entry points by name, sorted; built-in names are not theirs to take."""
    by_name: dict[str, EntryPoint] = {}
    for entry_point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        if entry_point.name not in BUILT_IN:
            by_name[entry_point.name] = entry_point
    return by_name


def _built_in(name: str) -> type:
    """Import a built-in policy's class."""
    module, _, class_name = BUILT_IN[name].partition(":")
    return cast(type, getattr(import_module(module), class_name))


def _entry_point(name: str) -> EntryPoint:
    """Return a third party's entry point. UnknownPolicyError if there is none."""
    entry_point = _entry_points().get(name)
    if entry_point is None:
        raise UnknownPolicyError(f"{name!r}: no such policy; known are: {', '.join(names())}")
    return entry_point


def _is_policy(loaded: object) -> bool:
    """Return True for a frozen dataclass that can be called."""
    if not (isinstance(loaded, type) and is_dataclass(loaded)):
        return False
    params = getattr(loaded, "__dataclass_params__")  # noqa: B009  # not in the stubs
    has_call = any("__call__" in vars(base) for base in loaded.__mro__)
    return bool(params.frozen) and has_call


def _worded(error: BaseException) -> str:
    """Return class and message of an error; the class alone if the message cannot be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an exception's own text may be broken as well
        return type(error).__name__
