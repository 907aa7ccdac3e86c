"""Progress of the training library, from JSON lines in a stream; bad lines are skipped."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.agent.runtimes.base import PROGRESS, RunId, Runtime
from loadmaster.protocol import ProgressSample

EVENTS = frozenset({"start", "progress", "checkpoint", "preempted", "quota", "end"})
FELL = "fell"
"""The last word of a rank whose gang has lost another one."""

CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a run: steps done, whether and why it leaves, why its gang broke."""

    step: int | None = None
    left: bool = False
    why: str = ""
    fell: str = ""


def read_samples(
    runtime: Runtime, run: RunId, offset: int
) -> tuple[tuple[ProgressSample, ...], int]:
    """The samples in the next chunk from an offset, and the offset after its last whole line."""
    chunk = runtime.read(run, PROGRESS, offset, CHUNK)
    end = chunk.rfind(b"\n") + 1
    if end == 0:  # no whole line yet, or one that is too long to be one of ours
        return (), offset + (len(chunk) if len(chunk) == CHUNK else 0)
    samples = (sample_of(_parsed(line)) for line in chunk[:end].splitlines())
    return tuple(_with_setup(runtime, run, sample) for sample in samples if sample), offset + end


def _with_setup(runtime: Runtime, run: RunId, sample: ProgressSample) -> ProgressSample:
    """Set-up time from the launch, as the job knows only the age of its process."""
    started_at_s = runtime.started_at_s(run) if sample.setup_s is not None else None
    if sample.setup_s is None or started_at_s is None:
        return sample
    return replace(sample, setup_s=max(sample.setup_s, sample.at_s - started_at_s))


def standing(runtime: Runtime, run: RunId) -> Standing:
    """Where the run stands by the last lines of its progress."""
    size = runtime.size(run, PROGRESS)
    chunk = runtime.read(run, PROGRESS, max(0, size - CHUNK), CHUNK)
    found = Standing()
    for line in chunk.splitlines():
        data = _parsed(line)
        if data.get("event") == FELL:
            found = replace(
                found, left=False, fell=str(data.get("reason") or "its gang fell apart")
            )
        elif sample := sample_of(data):
            found = Standing(
                sample.step, sample.event == "preempted", str(data.get("reason") or ""), found.fell
            )
    return found


def sample_of(data: dict[str, Any]) -> ProgressSample | None:
    """The sample in a line's data, or None if it is none."""
    event, at_s = data.get("event"), _number(data.get("at_s"))
    step, launch_steps = _count(data.get("step")), _count(data.get("launch_steps", 0))
    if event not in EVENTS or at_s is None or step is None or launch_steps is None:
        return None
    optional = {
        name: _number(data.get(name))
        for name in ("steps_per_s", "loss", "overrun_fraction", "setup_s")
    }
    return ProgressSample(
        at_s, str(event), step, launch_steps, _number(data.get("elapsed_s")) or 0.0, **optional
    )


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _count(value: object) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
        else None
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
