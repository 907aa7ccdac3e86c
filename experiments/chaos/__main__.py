"""`python -m experiments.chaos --kills 200` or `--partitions 50`; see docs/chaos.md."""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from experiments.chaos.checks.findings import holds
from experiments.chaos.clocks.wall_clocks import ClockError
from experiments.chaos.engine import RESULT
from experiments.chaos.faults.choice import chosen, jumps_of
from experiments.chaos.faults.filling import DiskError, keep_mounts_private
from experiments.chaos.faults.network import NetworkError
from experiments.chaos.jobs.forms import TURN, turn_of
from experiments.chaos.scenarios import GRACE_S, Order, run_kills, run_partitions
from experiments.chaos.schedule import FAULTS
from experiments.chaos.system import ChaosError
from experiments.chaos.workload import Load


def main() -> int:
    """Run what is asked for; 0 only if every invariant was checked and none was violated."""
    options = _options()
    form = f"kills-{options.kills}"
    if options.partitions:
        form = f"partitions-{options.partitions}"
    folder = Path(options.folder or f".loadmaster/chaos/{form}-{options.seed}").resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("chaos: stopped by SIGTERM"))
    try:
        keep_mounts_private()
        result = _run(options, folder)
    except (ChaosError, ClockError, DiskError, NetworkError, ValueError) as error:
        sys.exit(f"chaos: {error}")
    _show(result, folder)
    return 0 if holds(result) else 1


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    load = Load(options.active, options.steps, options.most, turn_of(options.jobs.split(",")))
    parts = () if options.partitions else chosen(options.only, options.without, folder, _say)
    order = Order(
        options.partitions or options.kills,
        options.seed,
        folder,
        options.gap,
        load,
        jumps_of(options.jumps, options.kills, parts),
        parts,
        options.grace,
        say=_say,
    )
    if options.partitions:
        return run_partitions(order, short=options.short_leases)
    return run_kills(order)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.chaos",
        description="Strike a real system and check the jobs' journals.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kills", type=int, help="how many times a part is struck")
    what.add_argument(
        "--partitions", type=int, default=0, help="how many times an agent is cut off (needs root)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the schedule; the same seed in the same folder goes on"
    )
    parser.add_argument(
        "--jumps",
        type=int,
        help="how many times a clock jumps between the kills (default: six for ten kills)",
    )
    parser.add_argument(
        "--only", default="", help=f"strike these parts alone, of {','.join(FAULTS)}"
    )
    parser.add_argument("--without", default="", help="strike all parts but these")
    parser.add_argument(
        "--jobs", default=",".join(sorted(set(TURN))), help="submit these forms of jobs alone"
    )
    parser.add_argument(
        "--grace", type=float, default=GRACE_S, help="seconds that jobs get to leave"
    )
    parser.add_argument("--folder", default="", help="where everything is kept")
    parser.add_argument("--gap", type=float, default=2.0, help="seconds between blows on average")
    parser.add_argument("--active", type=int, default=10, help="jobs unfinished at a time")
    parser.add_argument(
        "--steps",
        type=int,
        default=25,
        help="steps of a job, a fifth of a second each; others have two and three times as many",
    )
    parser.add_argument(
        "--most", type=int, default=100_000, help="jobs after which one runs at a time"
    )
    parser.add_argument(
        "--short-leases",
        action="store_true",
        help="partitions: all intervals divided by two and a half",
    )
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, flush=True)


def _show(result: dict[str, Any], folder: Path) -> None:
    _say("struck: " + ", ".join(f"{part} {count}" for part, count in result["struck"].items()))
    _say(
        f"{result['seconds']:.0f} s of blows, {result['rest_s']:.0f} s to rest,"
        f" {result['whole_s']:.0f} s in all"
    )
    for name, figure in result["figures"].items():
        _say(f"{name.replace('_', ' ')}: {figure}")
    if result["died_by_themselves"]:
        _say(f"ended by themselves (exit codes): {result['died_by_themselves']}")
    _say("\n checked  violated  invariant")
    for one in result["invariants"]:
        note = "" if one["checked"] else "   NEVER CHECKED"
        _say(f"{one['checked']:8}  {len(one['wrong']):8}  {one['name']}{note}")
        for text in one["wrong"]:
            _say(f"                      {text}")
    _say(f"\nresult: {folder / RESULT}")


if __name__ == "__main__":
    sys.exit(main())
