"""`python -m experiments.reproduce.pcp20`: simulates, solves instances, writes results.json,
timings.json and report.html.

    --data ../shared/data --settings eurora,kit,seth --processes 2 --folder out --quick
    --first 1000 --kit-log hpc/KIT-FH2-2016-1.swf --report

--settings: eurora, eurora-first, eurora-gpu-first, eurora-killed, eurora-timed, kit, seth; all
unless given. --first: jobs of Eurora in eurora-first and eurora-timed, which have PCP'19. --quick:
the first jobs of each log, in minutes. --report: computes nothing, and writes the files of what is
there. DATA is a folder with the logs in hpc/. --kit-log: KIT's own log in that folder, in place of
the drawn load.

A run that was stopped goes on where it was. results.json is the same for the same options; times
on this machine are in timings.json.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.reproduce.files import each
from experiments.reproduce.pcp20.cells import Cell, run
from experiments.reproduce.pcp20.claims import claims_of, timed_claims
from experiments.reproduce.pcp20.instances import Solve, ratios, solve, time_ratios
from experiments.reproduce.pcp20.page import page
from experiments.reproduce.pcp20.scenarios import (
    FIRST,
    FULL,
    PCP19,
    QUICK,
    Scale,
    cases,
    settings,
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """Parts to reproduce, the data, and the folder of the results."""

    scale: Scale
    data: Path
    folder: Path
    processes: int
    wanted: tuple[str, ...] = ()
    kit_log: str = ""
    computes: bool = True


def reproduce(asked: Asked, say: Say) -> Path:
    """Run everything and write the three files; the page's path."""
    of = settings(asked.scale, asked.kit_log)
    planned = list(cases(of, asked.wanted))
    cells = [_cell(case, asked) for case in planned if case.dispatcher.is_there]
    not_run = [
        f"Not run: {case.setting.title}, {case.label}: this release has no policy"
        f" {case.dispatcher.policy}."
        for case in planned
        if not case.dispatcher.is_there
    ]
    rows = _all(cells, run, asked, "cells", say)
    not_run += _left(cells, asked)
    solved = _all(_solves(cells, asked), solve, asked, "instances", say)
    results: dict[str, Any] = {
        "scale": asked.scale.name,
        "titles": {name: setting.title for name, setting in of.items()},
        "not_run": not_run,
        "rows": [_less_timing(row) for row in rows],
        "instances": ratios(solved),
        "claims": claims_of(rows),
    }
    timed, times = timed_claims(rows), time_ratios(solved)
    _write(asked.folder / "results.json", results)
    _write(asked.folder / "timings.json", _timings(rows, timed, times))
    text = page(results, timed, solved, times)
    (asked.folder / "report.html").write_text(text, encoding="utf-8")
    _tell(rows, timed, results["instances"], times, say)
    return asked.folder / "report.html"


def _cell(case: Any, asked: Asked) -> Cell:
    """The cell of a case; those with PCP'19 on Eurora's first jobs write their instances."""
    if case.setting.id != FIRST or case.dispatcher is not PCP19:
        return Cell(case, asked.data)
    folder = asked.folder / "snapshots" / case.label.replace("'", "")
    return Cell(case, asked.data, str(folder), asked.scale.instances_every)


def _left(cells: Sequence[Cell], asked: Asked) -> list[str]:
    """A sentence for each setting with simulations that were not run yet."""
    left: dict[str, list[str]] = {}
    for cell in cells:
        if not (asked.folder / "cells" / cell.file).exists():
            left.setdefault(cell.case.setting.title, []).append(cell.case.label)
    return [f"Not run yet: {title}: {', '.join(labels)}." for title, labels in left.items()]


def _solves(cells: Sequence[Cell], asked: Asked) -> list[Solve]:
    """Instances evenly from the written ones, as many of each simulation."""
    found = []
    for cell in cells:
        if not cell.every:
            continue
        paths = sorted(Path(cell.snapshots).glob("*.json"))
        step = max(1, -(-len(paths) // asked.scale.most_instances))
        source = Path(cell.snapshots).name
        found += [Solve(path, source) for path in paths[::step]]
    return found


def _all(
    items: Sequence[Any], compute: Any, asked: Asked, kind: str, say: Say
) -> list[dict[str, Any]]:
    """Results of all items in order; those that a file has are not computed again."""
    folder = asked.folder / kind
    folder.mkdir(parents=True, exist_ok=True)
    left = [item for item in items if not (folder / item.file).exists()]
    say(f"{kind}: {len(items)}, {len(items) - len(left)} of them done before")
    to_do = left if asked.computes else []
    for done, path in enumerate(each(to_do, compute, folder, asked.processes), start=1):
        say(f"{kind}: {done} of {len(left)}, {path.stem}")
    files = [folder / item.file for item in items]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _less_timing(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "timing"}


def _timings(
    rows: Sequence[Mapping[str, Any]], timed: Sequence[Mapping[str, Any]], times: Any
) -> dict[str, Any]:
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    own = [{n: row[n] for n in ("setting", "label", "timing")} for row in rows]
    return {"machine": machine, "tables": timed, "figure_7": times, "simulations": own}


def _tell(
    rows: Sequence[Mapping[str, Any]],
    timed: Sequence[Mapping[str, Any]],
    found: Mapping[str, Any],
    times: Mapping[str, Any],
    say: Say,
) -> None:
    for row in rows:
        wait, slowdown = row["wait_s"]["mean"], row["slowdown"]["mean"]
        say(
            f"{row['setting']}, {row['label']}: wait {_g(wait)} s, slowdown {_g(slowdown)},"
            f" decision {_g(row['timing']['mean_ms'])} ms (CPU)"
        )
    for line in timed:
        told = f"paper {_g(line['paper_ratio'])}, here {_g(line['here_ratio'])}"
        say(f"Table {line['table']}, {line['label']}: time over HCP'19's: {told}")
    counts = (found["variables"], found["variables_on_every_node"])
    words = ("variables", "variables on every node", "times")
    for name, of in zip(words, (*counts, times), strict=True):
        say(f"PCP'20 over PCP'19, {name}: median {_g(of['median'])}, most {_g(of['most'])}")


def _g(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _write(path: Path, data: object) -> None:
    path.write_text(
        json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8"
    )


def options(arguments: Sequence[str] | None = None) -> Asked:
    """Options. Ends the process if wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproduce.pcp20", description=__doc__
    )
    data = os.environ.get("LOADMASTER_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(data))
    parser.add_argument("--settings", default="")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("pcp20-reproduced"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kit-log", default="")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args(arguments)
    scale = QUICK if given.quick else FULL
    if given.first < 0:
        parser.error(f"--first {given.first}: give a number of jobs above 0")
    scale = replace(scale, first=given.first or scale.first)
    known = settings(scale, given.kit_log)
    wanted = tuple(name for name in given.settings.split(",") if name)
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no such setting: {unknown[0]}; known are: {', '.join(known)}")
    logs = {s.log for s in known.values() if s.log and (not wanted or s.id in wanted)}
    if missing := sorted(log for log in logs if not (given.data / log).is_file()):
        parser.error(f"{given.data} has no {missing[0]}: name the data's folder with --data")
    folder = given.folder / scale.name
    return Asked(
        scale, given.data, folder, given.processes, wanted, given.kit_log, not given.report
    )


if __name__ == "__main__":
    written = reproduce(options(), say=lambda line: print(line, flush=True))
    print(f"Written: {written}")
