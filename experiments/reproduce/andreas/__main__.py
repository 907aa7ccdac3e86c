"""`python -m experiments.reproduce.andreas`: simulates the grid, writes results.json,
timings.json and report.html.

    --nodes 10,30 --tunings 2.5,1.0 --scenarios 1,2 --policies "FIFO,EDF,PS,RG as coded" --seeds 5
    --processes 2 --folder out

Each of them restricts it to a part. The validation on ARMIDA (Table V) always comes with it;
`--nodes none` simulates nothing else.

A run that was stopped goes on where it was. results.json is the same for the same options; times of
calls are in timings.json.
"""

import argparse
import json
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.reproduce.andreas.armida import told, validate
from experiments.reproduce.andreas.grid import BASELINES, POLICIES, Grid, known_policies, run_all
from experiments.reproduce.andreas.page import page
from experiments.reproduce.andreas.summary import claims, summarise, worst


def reproduce(grid: Grid, folder: Path, *, processes: int, say: Callable[[str], None]) -> Path:
    """Simulate the grid and write the three files; the page's path."""
    rows = run_all(grid, folder / "cells", processes, say)
    validation = validate(grid.seeds)
    summary = summarise(rows)
    found = claims(summary, rows, validation)
    results = {
        "grid": asdict(grid),
        "claims": [c for c in found if not c.get("timing")],
        "validation": validation,
        "summary": summary,
        "cells": [{k: v for k, v in row.items() if k != "timing"} for row in rows],
    }
    timings = _timings(rows)
    _write(folder / "results.json", results)
    _write(
        folder / "timings.json",
        {"machine": _machine(), "calls": timings, "claims": [c for c in found if c.get("timing")]},
    )
    (folder / "report.html").write_text(
        page({**results, "claims": found}, timings), encoding="utf-8"
    )
    _tell(summary, found, say)
    for line in told(validation):
        say(line)
    return folder / "report.html"


def _timings(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["timing"]["mean_ms"] is not None:
            groups[row["scenario"], row["nodes"], row["tuning"], row["policy"]].append(
                row["timing"]["mean_ms"]
            )
    names = ("scenario", "nodes", "tuning", "policy")
    return [
        {**dict(zip(names, key, strict=True)), "mean_ms": fmean(spans)}
        for key, spans in groups.items()
    ]


def _tell(
    summary: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]], say: Callable[[str], None]
) -> None:
    for claim in found:
        say(
            f"{claim['claim']} [{claim['policy']}]: paper {claim['paper']:.4g}, here"
            f" {claim['here']:.4g}"
        )
    for policy in dict.fromkeys(e["policy"] for e in summary if e["policy"] not in BASELINES):
        if (least := worst(summary, policy)) is not None:
            where = f"scenario {least['scenario']}, N={least['nodes']}, tuning {least['tuning']:g}"
            say(
                f"{policy}: least saving against the best baseline {least['saving_on_best']:.1%}"
                f" ({where})"
            )


def _machine() -> str:
    return f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"


def _write(path: Path, data: object) -> None:
    path.write_text(
        json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8"
    )


def _options() -> argparse.Namespace:
    usual = Grid()
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproduce.andreas", description=__doc__
    )
    parser.add_argument("--scenarios", type=_ints, default=usual.scenarios)
    parser.add_argument("--nodes", type=_sizes, default=usual.nodes)
    parser.add_argument("--tunings", type=_floats, default=usual.tunings)
    parser.add_argument("--policies", type=_labels, default=known_policies())
    parser.add_argument("--seeds", type=int, default=usual.seeds)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("andreas-reproduced"))
    return parser.parse_args()


def _sizes(text: str) -> tuple[int, ...]:
    return () if text == "none" else _ints(text)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(t) for t in text.split(","))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(t) for t in text.split(","))


def _labels(text: str) -> tuple[str, ...]:
    labels = tuple(t.strip() for t in text.split(","))
    if unknown := [label for label in labels if label not in POLICIES]:
        raise argparse.ArgumentTypeError(
            f"no such policy: {unknown[0]}; known are: {', '.join(POLICIES)}"
        )
    return labels


if __name__ == "__main__":
    options = _options()
    wanted = Grid(
        options.scenarios, options.nodes, options.tunings, options.policies, options.seeds
    )
    written = reproduce(
        wanted,
        options.folder,
        processes=options.processes,
        say=lambda line: print(line, flush=True),
    )
    print(f"Written: {written}")
