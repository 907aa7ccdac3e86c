"""The policies by themselves: list, show parameters, solve a snapshot file, serve a control plane.

python -m policies list
python -m policies schema --policy randomized_greedy
python -m policies solve --policy randomized_greedy --snapshot FILE
    [--parameters '{"mode": "coded"}'] [--json] [--output FILE]
python -m policies serve
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

# Exit statuses.
FAILED = 1
"""The policy failed."""

REFUSED = 2
"""The input is bad."""

BROKEN = 3
"""The plan breaks a rule."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0, FAILED, REFUSED or BROKEN."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except PolicyError as error:
        return _complain(str(error), FAILED)
    except (FormError, OSError) as error:
        return _complain(str(error), REFUSED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m policies", description="Scheduling policies by themselves."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    list_command = commands.add_parser("list", help="the policies, one a line")
    list_command.set_defaults(command=_list)
    schema_command = commands.add_parser(
        "schema", help="JSON Schema of a policy's parameters; of all of them without --policy"
    )
    schema_command.add_argument("--policy", help="one of: " + ", ".join(registry.names()))
    schema_command.set_defaults(command=_schema)
    solve_command = commands.add_parser("solve", help="decide about a snapshot file")
    solve_command.add_argument(
        "--policy", required=True, help="one of: " + ", ".join(registry.names())
    )
    solve_command.add_argument(
        "--snapshot", required=True, help="file with a snapshot's JSON form, - for standard input"
    )
    solve_command.add_argument(
        "--parameters", default="{}", help="JSON object of the policy's parameters"
    )
    solve_command.add_argument(
        "--json", action="store_true", help="print the plan's JSON form instead of a table"
    )
    solve_command.add_argument(
        "--output", type=Path, help="write a JSON file of the plan and its CPU seconds as well"
    )
    solve_command.set_defaults(command=_solve)
    serve_command = commands.add_parser(
        "serve", help="answer one JSON request a line on standard input"
    )
    serve_command.set_defaults(command=_serve)
    return parser


def _list(_: argparse.Namespace) -> int:
    """Print the policies, one a line."""
    for entry in registry.entries():
        line = f"broken: {entry.error}" if entry.error else entry.summary
        print(f"{entry.name:<20} {line}")
    return 0


def _schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of one policy's parameters, or of all policies that can be loaded."""
    schemas: object
    if options.policy:
        schemas = registry.schema(options.policy)
    else:
        entries = [entry for entry in registry.entries() if not entry.error]
        schemas = {entry.name: registry.schema(entry.name) for entry in entries}
    print(json.dumps(schemas, indent=2))
    return 0


def _solve(options: argparse.Namespace) -> int:
    """Print, and on request write, a policy's plan for a snapshot, and the rules that it breaks."""
    # 1. Read the input.
    snapshot = snapshot_json.from_json(_parse_json(_read_text(options.snapshot), options.snapshot))
    parameters = _parse_json(options.parameters, "--parameters")
    if not isinstance(parameters, dict):
        raise FormError("--parameters", f"must be a JSON object, not {options.parameters}")

    # 2. Decide, as in a round: profile runs first.
    remaining, profile_runs = reserve_profiling(snapshot)
    policy = registry.make(options.policy, parameters)
    began_s = time.process_time()
    plan = merge(policy(remaining), profile_runs)
    cpu_s = time.process_time() - began_s

    # 3. Show the plan and its violations.
    form = plan_json.canonical_bytes(plan).decode()
    print(form if options.json else _table(plan, snapshot))
    if options.output is not None:
        result = {
            "policy": options.policy,
            "parameters": parameters,
            "cpu_s": cpu_s,
            "plan": json.loads(form),
        }
        options.output.write_text(json.dumps(result) + "\n")
    violations = validate_plan(plan, snapshot)
    for violation in violations:
        print(violation, file=sys.stderr)
    return BROKEN if violations else 0


def _serve(_: argparse.Namespace) -> int:
    """Answer requests until the input ends."""
    set_up_child(memory_bytes=half_of_memory())
    requests, answers = reserve_pipes()
    serve(requests, answers)
    return 0


def _read_text(path: str) -> str:
    """Return the text of a file; - is the standard input."""
    return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")


def _parse_json(text: str, source: str) -> Any:
    """Parse JSON. Raises FormError, which names the source."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FormError(source, f"is not JSON: {error}") from error


def _table(plan: Plan, snapshot: Snapshot) -> str:
    """Return the plan for people: a line per placement and per waiting job."""
    # 1. The cells.
    rows = [("job", "decision", "where or why", "run s", "cost")]
    nodes = snapshot.node_by_id
    for placement in plan.placements:
        seats = [f"{nodes[seat.node].name}:{','.join(seat.devices)}" for seat in placement.ranks]
        run_s = placement.predicted_run_s
        cost = placement.predicted_energy_cost
        rows.append(
            (
                placement.job,
                placement.purpose.value,
                " ".join(seats),
                "" if run_s is None else f"{run_s:.0f}",
                "" if cost is None else f"{cost:.4f}",
            )
        )
    for waiting in plan.waiting:
        reason = " ".join([waiting.code.value, *waiting.jobs, *waiting.nodes])
        rows.append((waiting.job, "waiting", reason, "", ""))

    # 2. Columns as wide as their longest cell.
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    objective = ""
    if plan.objective is not None:
        objective = f", objective {plan.objective:.6g} {snapshot.currency}"
    return "\n".join([*lines, f"{plan.policy}: {plan.status.value}{objective}"])


def _complain(message: str, status: int) -> int:
    """Print an error; return the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
