"""Child process of a simulation: python -m controlplane.studies.running.child FOLDER.

It uses no database. It writes one JSON object a line to standard output:

- {"progress": 0.25, "message": "...", "left_s": 60} now and then;
- {"done": true} at the end;
- {"error": "..."} if the study cannot be run;
- {"busy": true} if another process works in the folder.

It is nice, limits its memory, and ends with its parent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.child_processes.limits import set_up_child
from foundation.child_processes.messages import reserve_pipes, write_message

if TYPE_CHECKING:
    from controlplane.simulation.study.study import StudyProgress

GB = 10**9
NICE = 10
MOST_NAMED = 3
"""Runs under way that a message names."""

Say = Callable[[Mapping[str, Any]], None]


def main() -> int:
    """Run the study; return 0 if done, 1 on failure."""
    arguments = _arguments()

    # A policy that prints does not garble the messages.
    _, messages = reserve_pipes()

    def say(message: Mapping[str, Any]) -> None:
        write_message(messages, message)

    memory_bytes = int(arguments.memory_gb * GB) if arguments.memory_gb else None
    set_up_child(nice=NICE, memory_bytes=memory_bytes)
    from controlplane.simulation.study.study import StudyBusyError  # after the limits are set

    try:
        run(arguments.folder, arguments.processes, say)
    except StudyBusyError:
        say({"busy": True})
    except MemoryError:
        say({"error": f"it needs more than {arguments.memory_gb:g} GB of memory"})
    except Exception as error:  # anybody's policy runs here: it raises what it likes
        prefix = "" if _is_for_people(error) else f"{type(error).__name__}: "
        say({"error": f"{prefix}{error}"})
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
        results = run_choices(document, processes, lambda part: say(_progress_of_what_if(part)))
        (folder / "results.json").write_text(json.dumps(results, allow_nan=False))
    else:
        study = Study.of(document)
        run_study(study, folder, processes=processes, on_progress=lambda p: say(_progress_of(p)))


def _progress_of_what_if(part: float) -> dict[str, Any]:
    """Message of a what-if's progress, 0 to 1."""
    return {"progress": part, "message": "to the end of the queue", "left_s": None}


def _progress_of(progress: StudyProgress) -> dict[str, Any]:
    """Message of a study's progress, with the first of the runs that are under way."""
    ended = progress.finished + progress.failed
    words = f"{ended} of {progress.total} runs done"
    if progress.failed:
        words += f", {progress.failed} failed"
    for under_way in progress.running[:MOST_NAMED]:
        percent = f"{100 * under_way.fraction:.0f}%"
        words += f", {under_way.label} with seed {under_way.seed}: {percent}"
    return {"progress": progress.fraction, "message": words, "left_s": progress.left_s}


def _is_for_people(error: Exception) -> bool:
    """Return True for errors whose text is for users: of studies, workloads, clusters, policies."""
    from policies.contract.policy import PolicyError

    return isinstance(error, ValueError | PolicyError) and type(error) is not ValueError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m controlplane.studies.running.child")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--memory-gb", type=float, default=0.0, help="0: no limit")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
