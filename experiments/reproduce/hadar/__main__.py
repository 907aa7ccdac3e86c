"""`python -m experiments.reproduce.hadar`: simulates, times decisions, writes report.md.

    --data ../shared/data --processes 2 --folder hadar-reproduced --quick

The worked example of figure 1, figures 3 and 4 on the two traces of 480 jobs, figure 5 by
`experiments.bench.hadar.decisions`, and figure 6(a). --quick: the capped trace alone, without
figure 5. A run that was stopped goes on where it was.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.figures import Figure
from experiments.bench.hadar.decisions import figures as decision_figures
from experiments.bench.hadar.traces import CAPPED, POLICIES, TRACES
from experiments.reproduce.files import each
from experiments.reproduce.hadar.cells import Cell, simulated
from experiments.reproduce.hadar.rounds_of_jobs import NODES, rounds_of_jobs
from experiments.reproduce.hadar.worked_example import decided_rounds, fewest_rounds

Row = Mapping[str, Any]

EXAMPLES = (
    ("whole, of one type", False, False, "effective_throughput"),
    ("whole, of several types", True, False, "effective_throughput"),
    ("elastic, of several types", True, True, "critical_path"),
)
"""Gangs of the worked example: name, may mix types, elastic, utility."""

PAPER_TOTAL: Mapping[str, float] = {
    "hadar": 1.0, "max_min_fairness": 1.21, "tiresias": 1.35, "yarn_cs": 1.67,
}  # fmt: skip
"""Figure 4: total time over Hadar's, which is 40 h."""
PAPER_MEDIAN: Mapping[str, float] = {"hadar": 1.0, "max_min_fairness": 1.2, "tiresias": 1.4}
"""Figure 4: time until half of the jobs are done, over Hadar's."""
NOTES = """\
All jobs are there at the start: 60 GPUs (20 V100, 20 P100, 20 K80) on 15 nodes of four, rounds of
360 s, 10 s a restart. The paper's own draw of jobs is not published: compare ratios, not hours.
Figure 3 is printed without numbers; the paper gives 30% for rounds that change jobs.
Figure 6 is an illustration; its part (b) needs forked training (HadarE), which is not built yet.
"""


def reproduce(
    data: Path, folder: Path, processes: int, traces: Sequence[str], *,
    times_decisions: bool, say: Callable[[str], None],
) -> Path:  # fmt: skip
    """Run what is left, write results.json and report.md, and return the report's path."""
    cells_folder = folder / "cells"
    cells_folder.mkdir(parents=True, exist_ok=True)
    cells = [Cell(trace, policy, data) for trace in traces for policy in POLICIES]
    left = [cell for cell in cells if not (cells_folder / cell.file).exists()]
    say(f"{len(cells)} simulations, {len(left)} to do")
    for path in each(left, simulated, cells_folder, processes):
        say(f"done: {path.stem}")
    rows = [json.loads((cells_folder / cell.file).read_text()) for cell in cells]
    (folder / "results.json").write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")

    text = ["# Hadar reproduced", "", NOTES, *example_table()]
    for trace in traces:
        text += trace_tables(trace, [row for row in rows if row["trace"] == trace])
    text += rounds_table(data)
    if times_decisions:
        text += ["## Figure 5: time of a decision (paper: below 7 minutes at 2,000 jobs)", ""]
        text += decision_table(decision_figures(data))
    report = folder / "report.md"
    report.write_text("\n".join(text) + "\n", encoding="utf-8")
    return report


def trace_tables(trace: str, rows: Sequence[Row]) -> list[str]:
    """Return figures 3 and 4 of a trace as lines of Markdown."""
    ours = next(row for row in rows if row["policy"] == "hadar")
    total_h, half_h = ours["completed_h"][-1], ours["completed_h"][1]
    lines = [f"## {Path(trace).stem}", "", "Figure 3: GPUs in use, and rounds that change jobs", ""]
    lines += ["| policy | mean | 10% | 50% | 90% of the time | changed rounds |", "|---" * 6 + "|"]
    names = (
        "utilisation", "utilisation_p10", "utilisation_p50", "utilisation_p90",
        "part_of_rounds_changed",
    )  # fmt: skip
    for row in rows:
        parts = [f"{row['metrics'].get(name, 0.0):.1%}" for name in names]
        lines.append(f"| {row['policy']} | {' | '.join(parts)} |")

    head = "| policy | 25% | half | 75% | 90% | all, h | all over hadar's: ours, paper |"
    lines += ["", "Figure 4: hours until parts of the jobs are done", ""]
    lines += [f"{head} half: ours, paper |", "|---" * 8 + "|"]
    for row in rows:
        policy, hours = row["policy"], row["completed_h"]
        cells = [policy, *(f"{one:.2f}" for one in hours)]
        cells.append(f"{hours[-1] / total_h:.2f}, {PAPER_TOTAL.get(policy, '-')}")
        cells.append(f"{hours[1] / half_h:.2f}, {PAPER_MEDIAN.get(policy, '-')}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def example_table() -> list[str]:
    """Return figure 1's example as lines of Markdown."""
    lines = ["## Figure 1: rounds until three jobs are done", ""]
    lines += ["| gangs | least | hadar | GPUs in use | utility |", "|---" * 5 + "|"]
    for name, may_mix, elastic, utility in EXAMPLES:
        least = fewest_rounds(may_mix=may_mix, elastic=elastic)
        rounds, part = decided_rounds(may_mix=may_mix, elastic=elastic, utility=utility)
        lines.append(f"| {name} | {least} | {rounds} | {part:.0%} | {utility} |")
    return [
        *lines,
        "",
        "The paper shows 5 rounds of whole gangs, which 1e forbids, and 87% in use.",
        "",
    ]


def rounds_table(data: Path) -> list[str]:
    """Return figure 6(a) as lines of Markdown: the job of each node in each round."""
    lines = ["## Figure 6(a): three jobs on five nodes of one GPU, by round", ""]
    lines += [f"| round | {' | '.join(NODES)} |", "|---" * (len(NODES) + 1) + "|"]
    for number, job_of in enumerate(rounds_of_jobs(data), start=1):
        lines.append(f"| {number} | {' | '.join(job_of[node] or 'idle' for node in NODES)} |")
    return [*lines, ""]


def decision_table(decisions: Iterable[Figure]) -> list[str]:
    """Return figure 5 as lines of Markdown."""
    lines = ["| decision | measured | goal |", "|---" * 3 + "|"]
    for one in decisions:
        goal = "" if one["goal"] is None else f"{one['goal']:g} {one['unit']}"
        lines.append(f"| {one['name']} | {one['median']:.1f} {one['unit']} | {goal} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Reproduce the asked part. Ends the process if the data is not there."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce.hadar")
    data = Path(os.environ.get("LOADMASTER_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("hadar-reproduced"))
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    if not (asked.data / CAPPED).is_file():
        parser.error(f"{asked.data} has no {CAPPED}: name the data's folder with --data")
    traces = (CAPPED,) if asked.quick else tuple(TRACES)
    report = reproduce(
        asked.data, asked.folder, asked.processes, traces, times_decisions=not asked.quick,
        say=lambda line: print(line, flush=True),
    )  # fmt: skip
    print(f"Written: {report}")


if __name__ == "__main__":
    main()
