"""Gavel's throughput tables (JSON), measured by job type, GPU type and count, and of pairs that
share one GPU.

    {gpu type: {"('job type', GPUs)": {"null": steps/s, "('another', GPUs)": [steps/s, steps/s of
    the other]}}}

A GPU type with `_unconsolidated` behind it is one whose GPUs are on several nodes. Shockwave's
tables have this form too.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.simulation.workloads.base import WorkloadError
from controlplane.simulation.workloads.lines import quoted, read_text
from policies.contract.snapshot import KindView, PairThroughput, Source, Throughput

SPREAD = "_unconsolidated"
MOST_STEPS_PER_S = 1e12
_KEY = re.compile(r"\('(?P<type>[^']+)', (?P<gpus>\d+)\)")

Rates = Mapping[tuple[str, int], float]
"""steps/s of (job type, GPUs) on one GPU type."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Gavel's tables.

    `rates`: by column, which is a GPU type, perhaps with `_unconsolidated` behind it. `pairs`: by
    the job type of the first job, those that share a GPU.
    """

    rates: Mapping[str, Rates]
    pairs: Mapping[str, Sequence[PairThroughput]]

    @property
    def job_types(self) -> tuple[str, ...]:
        """Job types of the tables, by name."""
        return tuple(sorted({name for rates in self.rates.values() for name, _ in rates}))

    def kind(self, name: str, *, pairs: bool) -> KindView:
        """Return a job type's throughputs, without zeros (too large for that GPU's memory).

        `pairs`: also those of two jobs that share a GPU.
        """
        throughputs = []
        for column, rates in sorted(self.rates.items()):
            gpu_type = column.removesuffix(SPREAD).upper()
            spread = column.endswith(SPREAD)
            for (job_type, gpus), rate in sorted(rates.items()):
                if job_type == name and rate > 0:
                    throughputs.append(
                        Throughput(gpu_type, gpus, rate, Source.MEASURED, spread=spread)
                    )
        of_pairs: tuple[PairThroughput, ...] = ()
        if pairs:
            of_pairs = tuple(self.pairs.get(name, ()))
        return KindView(name, name, tuple(throughputs), of_pairs)


def tables_of(path: str, text: str) -> Tables:
    """Read the tables of a file or text. WorkloadError unless exactly one is given and valid."""
    if bool(path) == bool(text):
        raise WorkloadError(
            "throughputs: give either the path of Gavel's throughput tables (JSON), or their text"
            " as `tables`"
        )
    return read_tables(text or read_text(Path(path)))


def read_tables(text: str) -> Tables:
    """Parse the tables in a text; WorkloadError if it holds none."""
    try:
        raw = json.loads(text)
        rates: dict[str, Rates] = {}
        for column, table in raw.items():
            rates[column] = {_key(text): _rate(cell["null"]) for text, cell in table.items()}
        return Tables(rates, _pairs(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkloadError(f"throughputs: that is no table of Gavel's: {error}") from None


def _pairs(raw: Mapping[str, Any]) -> dict[str, list[PairThroughput]]:
    """Pairs of jobs of one GPU each, by the job type of the first."""
    pairs: dict[str, list[PairThroughput]] = defaultdict(list)
    for column, table in sorted(raw.items()):
        if column.endswith(SPREAD):
            continue
        gpu_type = column.upper()
        for text, cell in table.items():
            job_type, gpus = _key(text)
            if gpus != 1:
                continue
            for other_text, both in cell.items():
                if other_text == "null":
                    continue  # the job alone
                other_type, other_gpus = _key(other_text)
                if other_gpus != 1:
                    continue
                own_rate, other_rate = map(_rate, both)
                pairs[job_type].append(
                    PairThroughput(other_type, gpu_type, own_rate, other_rate, Source.MEASURED)
                )
    return pairs


def _key(text: str) -> tuple[str, int]:
    """Read a text such as ('ResNet-18 (batch size 64)', 1) as (job type, GPUs). ValueError."""
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not like ('ResNet-18 (batch size 64)', 1)")
    return match["type"], int(match["gpus"])


def _rate(value: Any) -> float:
    """Read steps/s. ValueError for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_STEPS_PER_S:
        raise ValueError(f"{value!r:.80} is no throughput")
    return float(value)
