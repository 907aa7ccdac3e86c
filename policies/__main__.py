"""The policies by themselves: list them, show their parameters, solve any snapshot file, serve a
control plane.

python -m policies list python -m policies schema --policy randomized_greedy python -m policies
solve --policy randomized_greedy --snapshot FILE [--parameters '{"mode": "coded"}'] [--json]
[--output FILE] python -m policies serve
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foundation.child_processes.limits import half_of_memory, set_up_child
from foundation.child_processes.messages import reserve_pipes
from foundation.forms import FormError
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import Plan
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Snapshot
from policies.contract.validation import validate_plan
from policies.host import registry
from policies.host.serving import serve
from policies.placement.profiling import merge, reserve_profiling

FAILED, REFUSED, BROKEN = 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit: 0; 1 the policy failed; 2 bad input; 3 the plan breaks a rule."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.command(given))
    except PolicyError as error:
        return _complain(str(error), FAILED)
    except (FormError, OSError) as error:
        return _complain(str(error), REFUSED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m policies", description="Scheduling policies by themselves."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    of_list = commands.add_parser("list", help="the policies, one a line")
    of_list.set_defaults(command=_list)
    of_schema = commands.add_parser(
        "schema", help="JSON Schema of a policy's parameters; of all of them without --policy"
    )
    of_schema.add_argument("--policy", help="one of: " + ", ".join(registry.names()))
    of_schema.set_defaults(command=_schema)
    of_solve = commands.add_parser("solve", help="decide about a snapshot file")
    of_solve.add_argument("--policy", required=True, help="one of: " + ", ".join(registry.names()))
    of_solve.add_argument(
        "--snapshot", required=True, help="file with a snapshot's JSON form, - for standard input"
    )
    of_solve.add_argument(
        "--parameters", default="{}", help="JSON object of the policy's parameters"
    )
    of_solve.add_argument(
        "--json", action="store_true", help="print the plan's JSON form instead of a table"
    )
    of_solve.add_argument(
        "--output", type=Path, help="write a JSON file of the plan and its CPU seconds as well"
    )
    of_solve.set_defaults(command=_solve)
    of_serve = commands.add_parser("serve", help="answer one JSON request a line on standard input")
    of_serve.set_defaults(command=_serve)
    return parser


def _list(_: argparse.Namespace) -> int:
    for entry in registry.entries():
        line = f"broken: {entry.error}" if entry.error else entry.summary
        print(f"{entry.name:<20} {line}")
    return 0


def _schema(given: argparse.Namespace) -> int:
    wanted = (
        registry.schema(given.policy)
        if given.policy
        else {n.name: registry.schema(n.name) for n in registry.entries() if not n.error}
    )
    print(json.dumps(wanted, indent=2))
    return 0


def _solve(given: argparse.Namespace) -> int:
    snapshot = snapshot_json.from_json(_json(_text(given.snapshot), given.snapshot))
    parameters = _json(given.parameters, "--parameters")
    if not isinstance(parameters, dict):
        raise FormError("--parameters", f"must be a JSON object, not {given.parameters}")
    reserved, runs = reserve_profiling(snapshot)
    policy, began_s = registry.make(given.policy, parameters), time.process_time()
    plan = merge(policy(reserved), runs)
    cpu_s = time.process_time() - began_s
    print(plan_json.canonical_bytes(plan).decode() if given.json else _table(plan, snapshot))
    if given.output is not None:
        solved = {"policy": given.policy, "parameters": parameters, "cpu_s": cpu_s}
        written = json.loads(plan_json.canonical_bytes(plan))
        given.output.write_text(json.dumps({**solved, "plan": written}) + "\n")
    for violation in (broken := validate_plan(plan, snapshot)):
        print(violation, file=sys.stderr)
    return BROKEN if broken else 0


def _serve(_: argparse.Namespace) -> int:
    set_up_child(memory_bytes=half_of_memory())
    requests, answers = reserve_pipes()
    serve(requests, answers)
    return 0


def _text(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FormError(what, f"is not JSON: {error}") from error


def _table(plan: Plan, snapshot: Snapshot) -> str:
    """Plan for people: a line per placement and per waiting job."""
    rows = [("job", "decision", "where or why", "run s", "cost")]
    nodes = snapshot.node_by_id
    for placed in plan.placements:
        where = " ".join(f"{nodes[s.node].name}:{','.join(s.devices)}" for s in placed.ranks)
        cost = placed.predicted_energy_cost
        run_s = "" if placed.predicted_run_s is None else f"{placed.predicted_run_s:.0f}"
        rows.append(
            (placed.job, placed.purpose.value, where, run_s, "" if cost is None else f"{cost:.4f}")
        )
    for waiting in plan.waiting:
        why = " ".join([waiting.code.value, *waiting.jobs, *waiting.nodes])
        rows.append((waiting.job, "waiting", why, "", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    objective = (
        "" if plan.objective is None else f", objective {plan.objective:.6g} {snapshot.currency}"
    )
    return "\n".join([*lines, f"{plan.policy}: {plan.status.value}{objective}"])


def _complain(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
