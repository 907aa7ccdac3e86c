"""Simulations in files, so that a stopped run goes on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.simulation.report.run_metrics import metrics_of, quantiles
from controlplane.simulation.study.run_keys import digest, digest_of_code, digest_of_file
from experiments.bench.hadar.traces import HOUR_S, POLICIES, run

PARTS = (0.25, 0.5, 0.75, 0.9, 1.0)
"""Parts of the jobs whose completion times figure 4 is given by."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A trace to simulate under a policy."""

    trace: str
    policy: str
    data: Path

    @property
    def file(self) -> str:
        """Name of its file: equal simulations under equal code have the same."""
        parameters = dict(POLICIES[self.policy])
        content = digest_of_file(self.data / self.trace)
        facts = [self.trace, content, self.policy, parameters, digest_of_code()]
        return f"{Path(self.trace).stem}-{self.policy}-{digest(facts)[:16]}.json"


def simulated(cell: Cell) -> dict[str, Any]:
    """Simulate a cell; the metrics of every study, and completion times at PARTS in hours."""
    outcome = run(cell.trace, cell.policy, POLICIES[cell.policy], cell.data)
    completed_h = outcome.jct_s[outcome.ran] / HOUR_S
    return {
        "trace": cell.trace,
        "policy": cell.policy,
        "completed_h": [float(hours) for hours in quantiles(completed_h, np.array(PARTS))],
        "metrics": {n: v for n, v in metrics_of(outcome).items() if np.isfinite(v)},
    }
