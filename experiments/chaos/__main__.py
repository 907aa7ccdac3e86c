"""`python -m experiments.chaos --kills 200` or `--partitions 50`; see docs/chaos.md."""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments.chaos.checks.findings import holds
from experiments.chaos.engine import RESULT
from experiments.chaos.network import NetworkError
from experiments.chaos.scenarios import Order, run_kills, run_partitions
from experiments.chaos.system import ChaosError
from experiments.chaos.workload import Load


def main() -> int:
    """Run what is asked for; 0 only if nothing was lost and nothing ran twice."""
    options = _options()
    form = f"kills-{options.kills}" if options.kills else f"partitions-{options.partitions}"
    folder = Path(options.folder or f".loadmaster/chaos/{form}-{options.seed}").resolve()
    load = Load(options.active, options.steps, options.most)
    order = Order(
        options.kills or options.partitions, options.seed, folder, options.gap, load, say=_say
    )
    try:
        result = (
            run_kills(order) if options.kills else run_partitions(order, short=options.short_leases)
        )
    except (ChaosError, NetworkError) as error:
        sys.exit(f"chaos: {error}")
    _show(result, folder)
    return 0 if holds(result) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.chaos",
        description="Strike a real system and check the jobs' journals.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--kills", type=int, default=0, help="how many times a part is killed by SIGKILL"
    )
    what.add_argument(
        "--partitions", type=int, default=0, help="how many times an agent is cut off (needs root)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the schedule; the same seed in the same folder goes on"
    )
    parser.add_argument("--folder", default="", help="where everything is kept")
    parser.add_argument("--gap", type=float, default=2.0, help="seconds between blows on average")
    parser.add_argument("--active", type=int, default=6, help="jobs unfinished at a time")
    parser.add_argument(
        "--steps",
        type=int,
        default=25,
        help="steps of a job, a fifth of a second each; others have two and three times as many",
    )
    parser.add_argument("--most", type=int, default=100_000, help="jobs in all")
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
    counts = {name: len(result[name]) for name in ("lost", "overlaps", "held_twice")}
    figures = {name: result[name] for name in ("jobs", "launches", "steps", "doubled")} | counts
    _say(", ".join(f"{name.replace('_', ' ')} {figure}" for name, figure in figures.items()))
    limited, batch = result["limited"], result["batch"]
    away = ", ".join(f"{part} {n}" for part, n in limited["while_away"].items() if n)
    _say(
        f"batch jobs {limited['jobs']}, ended at their walltime {limited['ended_at_walltime']},"
        f" on a silent node {limited['on_silent_node']}, while away: {away or 'nothing'}"
    )
    _say(f"other batch jobs {batch['jobs']}, launches {batch['launches']}, {batch['states']}")
    wrong = [*result["lost"], *result["overlaps"], *result["held_twice"]]
    wrong += [*limited["wrong"], *batch["wrong"]]
    for text in wrong:
        _say(f"  {text}")
    if result["died_by_themselves"]:
        _say(f"ended by themselves (exit codes): {result['died_by_themselves']}")
    _say(f"states: {result['states']}; result: {folder / RESULT}")


if __name__ == "__main__":
    sys.exit(main())
