"""`python -m experiments.reproduce.gavel`: runs the experiments, writes results.json,
timings.json and report.html.

    --data ../shared/data/gavel --figures 8,9,T3 --seeds 3 --processes 2 --folder out --quick

--figures: 8 to 14, 16 to 21, T3 (table 3), cost (section 7.3); all of them unless given. --quick: a
small version of them, in about ten minutes. DATA is a folder with Gavel's throughput tables and
traces (stanford-futuredata/gavel).

A run that was stopped goes on where it was. What cannot be run, a policy that this release does not
have for instance, stands in the report with the reason. results.json is the same for the same
options; times on this machine are in timings.json.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.reproduce.gavel.cells import run_all
from experiments.reproduce.gavel.figures import experiments
from experiments.reproduce.gavel.model import Experiment
from experiments.reproduce.gavel.report.page import heading, page
from experiments.reproduce.gavel.report.summary import claims_of, points_of, remarks_of
from experiments.reproduce.gavel.scale import FULL, QUICK, Data

TIMED = "seconds"
"""The metric that no two runs share."""


def reproduce(
    wanted: Sequence[Experiment],
    folder: Path,
    *,
    scale: str,
    seeds: int,
    processes: int,
    say: Callable[[str], None],
) -> Path:
    """Run the experiments and write the three files; the page's path."""
    rows = run_all(wanted, seeds, folder / "cells", processes, say)
    about = {
        "scale": scale,
        "seeds": seeds,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
    }
    found = {
        e.id: _found(e, [r for r in rows if r["experiment"] == e.id], whole=scale == FULL.name)
        for e in wanted
    }
    timed = {
        figure for figure, of in found.items() if any(TIMED in p["means"] for p in of["points"])
    }
    _write(
        folder / "results.json", {"about": _without_machine(about), "found": _untimed(found, timed)}
    )
    _write(
        folder / "timings.json",
        {
            "about": about,
            "found": {figure: found[figure]["claims"] for figure in sorted(timed)},
            "cells": _timings(rows),
        },
    )
    (folder / "report.html").write_text(page(wanted, found, about), encoding="utf-8")
    for experiment in wanted:
        _tell(experiment, found[experiment.id], say)
    return folder / "report.html"


def _found(
    experiment: Experiment, rows: Sequence[Mapping[str, Any]], *, whole: bool
) -> dict[str, Any]:
    points = points_of(rows)
    claims = claims_of(experiment, points, whole=whole)
    return {
        "title": heading(experiment),
        "points": points,
        "claims": claims,
        "remarks": remarks_of(experiment, points),
    }


def _untimed(found: Mapping[str, Mapping[str, Any]], timed: set[str]) -> dict[str, Any]:
    """Without what depends on the machine."""
    names = {TIMED, "wall_s", "deciding_s"}
    kept = {}
    for figure, of in found.items():
        points = [
            {**p, **{part: _less(p[part], names) for part in ("means", "deviations")}}
            for p in of["points"]
        ]
        kept[figure] = {**of, "points": points, "claims": [] if figure in timed else of["claims"]}
    return kept


def _less(of: Mapping[str, float], names: set[str]) -> dict[str, float]:
    return {name: value for name, value in of.items() if name not in names}


def _without_machine(about: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if name != "machine"}


def _timings(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = ("experiment", "series", "x", "seed")
    return [{**{n: row[n] for n in names}, **row["timing"]} for row in rows if row.get("timing")]


def _tell(experiment: Experiment, found: Mapping[str, Any], say: Callable[[str], None]) -> None:
    say(heading(experiment))
    for claim in found["claims"]:
        told = [f"{name} {claim[key]:.4g}" for name, key in _COLUMNS if claim[key] is not None]
        say(f"  {claim['words']}: {', '.join((*told, claim['verdict']))}")
    for remark in found["remarks"]:
        say(f"  {remark}")


_COLUMNS = (("paper", "paper"), ("published", "published"), ("here", "here"))


def _write(path: Path, data: object) -> None:
    path.write_text(
        json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8"
    )


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options: experiments, scale, seeds, processes, folder. Ends the process if wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproduce.gavel", description=__doc__
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "gavel",
    )
    parser.add_argument("--figures", default="")
    parser.add_argument("--seeds", type=_positive)
    parser.add_argument("--processes", type=_positive, default=2)
    parser.add_argument("--folder", type=Path, default=Path("gavel-reproduced"))
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    if not Path(Data(asked.data).tables()).is_file():
        parser.error(
            f"{asked.data} has no throughput tables of Gavel's: name their folder with --data"
            " (make: DATA=...)"
        )
    asked.scale = QUICK if asked.quick else FULL
    asked.seeds = asked.seeds or (1 if asked.quick else 3)
    asked.wanted = _wanted(parser, asked.figures, experiments(asked.scale, Data(asked.data)))
    return asked


def _wanted(
    parser: argparse.ArgumentParser, figures: str, known: Sequence[Experiment]
) -> list[Experiment]:
    asked = [f.strip() for f in figures.split(",") if f.strip()]
    ids = [e.id for e in known]
    if unknown := [f for f in asked if f not in ids]:
        parser.error(f"no such figure: {unknown[0]}; known are: {', '.join(ids)}")
    return [e for e in known if not asked or e.id in asked]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


if __name__ == "__main__":
    given = options()
    written = reproduce(
        given.wanted,
        given.folder,
        scale=given.scale.name,
        seeds=given.seeds,
        processes=given.processes,
        say=lambda line: print(line, flush=True),
    )
    print(f"Written: {written}")
