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
    """Gavel's throughputs by (GPU type, spread), and pairs that share a GPU by job type."""

    rates: Mapping[str, Rates]
    pairs: Mapping[str, Sequence[PairThroughput]]

    @property
    def job_types(self) -> tuple[str, ...]:
        """Job types of the tables, by name."""
        return tuple(sorted({name for rates in self.rates.values() for name, _ in rates}))

    def kind(self, name: str, *, pairs: bool) -> KindView:
        """Known throughputs of a job type, without zeros (too large for that GPU's memory)."""
        found = [
            Throughput(
                column.removesuffix(SPREAD).upper(),
                gpus,
                rate,
                Source.MEASURED,
                spread=column.endswith(SPREAD),
            )
            for column, rates in sorted(self.rates.items())
            for (kind, gpus), rate in sorted(rates.items())
            if kind == name and rate > 0
        ]
        return KindView(name, name, tuple(found), tuple(self.pairs.get(name, ()) if pairs else ()))


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
        rates = {
            column: {_key(k): _rate(of["null"]) for k, of in table.items()}
            for column, table in raw.items()
        }
        return Tables(rates, _pairs(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkloadError(f"throughputs: that is no table of Gavel's: {error}") from None


def _pairs(raw: Mapping[str, Any]) -> dict[str, list[PairThroughput]]:
    """Pairs of jobs of one GPU each, by the job type of the first."""
    found: dict[str, list[PairThroughput]] = defaultdict(list)
    of_nodes = [(c, table) for c, table in sorted(raw.items()) if not c.endswith(SPREAD)]
    rows = [(c.upper(), _key(key), of) for c, table in of_nodes for key, of in table.items()]
    for gpu_type, (name, gpus), of in rows:
        for other_key, pair in of.items() if gpus == 1 else ():
            if other_key != "null" and (other := _key(other_key))[1] == 1:
                own, others = map(_rate, pair)
                view = PairThroughput(other[0], gpu_type, own, others, Source.MEASURED)
                found[name].append(view)
    return found


def _key(text: str) -> tuple[str, int]:
    if (match := _KEY.fullmatch(text)) is None:
        raise ValueError(f"{quoted(text)} is not like ('ResNet-18 (batch size 64)', 1)")
    return match["type"], int(match["gpus"])


def _rate(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_STEPS_PER_S:
        raise ValueError(f"{value!r:.80} is no throughput")
    return float(value)
