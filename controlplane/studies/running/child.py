"""Child process of a simulation: python -m controlplane.studies.running.child FOLDER.

Without database. Standard output gets one JSON object a line: {"progress": 0.25, "message": "...",
"left_s": 60}, at the end {"done": true}, {"error": "..."} if the study cannot be run, {"busy":
true} if another process works in the folder. It is nice, limits its memory, and ends with its
parent.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.host.lifetime import be_nice, die_with

if TYPE_CHECKING:
    from controlplane.simulation.study.study import StudyProgress

GB = 10**9
NICE = 10
SHOWN = 3

Say = Callable[[Mapping[str, Any]], None]


def main() -> int:
    """Run the study; return 0 if done, 1 on failure."""
    given = _arguments()
    answers, sys.stdout = sys.stdout, sys.stderr  # a policy that prints must not garble the answers

    def say(what: Mapping[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    _settle(given.parent, given.memory_gb)
    from controlplane.simulation.study.study import StudyBusyError  # after the limits are set

    try:
        run(given.folder, given.processes, say)
    except StudyBusyError:
        say({"busy": True})
    except MemoryError:
        say({"error": f"it needs more than {given.memory_gb:g} GB of memory"})
    except Exception as error:  # anybody's policy runs here: it raises what it likes
        kind = "" if _is_expected(error) else f"{type(error).__name__}: "
        say({"error": f"{kind}{error}"})
    else:
        say({"done": True})
        return 0
    return 1


def run(folder: Path, processes: int, say: Say) -> None:
    """Run the study or what-if of the folder and report its progress."""
    from controlplane.simulation.choices import run_choices
    from controlplane.simulation.study.study import Study, run_study

    document = json.loads((folder / "study.json").read_text())
    if "choices" in document:
        found = run_choices(document, processes, lambda done: say(_part(done)))
        (folder / "results.json").write_text(json.dumps(found, allow_nan=False))
        return
    study = Study.of(document)
    run_study(study, folder, processes=processes, on_progress=lambda progress: say(_told(progress)))


def _part(done: float) -> dict[str, Any]:
    return {"progress": done, "message": "to the end of the queue", "left_s": None}


def _told(progress: StudyProgress) -> dict[str, Any]:
    over = progress.finished + progress.failed
    under_way = "".join(
        f", {r.label} with seed {r.seed}: {100 * r.fraction:.0f}%" for r in progress.running[:SHOWN]
    )
    failed = f", {progress.failed} failed" if progress.failed else ""
    message = f"{over} of {progress.total} runs done{failed}{under_way}"
    return {"progress": progress.fraction, "message": message, "left_s": progress.left_s}


def _is_expected(error: Exception) -> bool:
    """True for messages meant for people: of studies, workloads, clusters, policies."""
    from policies.contract.policy import PolicyError

    return isinstance(error, ValueError | PolicyError) and type(error) is not ValueError


def _settle(parent: int | None, memory_gb: float) -> None:
    if parent is not None:
        die_with(parent)
    be_nice(NICE)
    if memory_gb:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = int(memory_gb * GB)
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m controlplane.studies.running.child")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--memory-gb", type=float, default=0.0)
    parser.add_argument("--parent", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
