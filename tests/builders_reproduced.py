"""A folder with throughput tables in Gavel's form, made up, and experiments small enough for a
test.
"""

import json
from pathlib import Path
from typing import Any

from experiments.reproduce.gavel.scale import Data, Scale

SPEEDS = {"v100": 4.0, "p100": 2.0, "k80": 1.0}
KINDS = {"ResNet-50 (batch size 16)": 1.0, "A3C": 3.0, "LM (batch size 5)": 0.5}
GPUS = (1, 2, 4, 8)
BESIDE = 0.7
"""What a job keeps of its speed beside another."""

TINY = Scale(
    "tiny", each=1, jobs=8, window=(1, 6), single=(4.0, 6.0), multiple=(2.0,), static=(4,),
    cost_jobs=6, active=(16,),
    rounds_s=(3600.0,), small=(0.5,),
)  # fmt: skip


def tables() -> dict[str, Any]:
    """steps/s of three kinds on three types; faster types gain the less the faster a kind is
    anyhow.
    """

    def rate(name: str, gpu_type: str, gpus: int) -> float:
        return 0.01 * KINDS[name] * float(SPEEDS[gpu_type] ** (1.0 / KINDS[name])) * gpus

    def row(name: str, gpu_type: str, gpus: int) -> dict[str, Any]:
        pairs = (
            {f"('{q}', 1)": [BESIDE * rate(k, gpu_type, 1) for k in (name, q)] for q in KINDS}
            if gpus == 1
            else {}
        )
        return {"null": rate(name, gpu_type, gpus), **pairs}

    return {
        t: {f"('{name}', {g})": row(name, t, g) for name in KINDS for g in GPUS} for t in SPEEDS
    }


def a_data_folder(folder: Path) -> Data:
    """Its tables alone: every workload is drawn."""
    for name in ("simulation", "physical_cluster"):
        (folder / f"{name}_throughputs.json").write_text(json.dumps(tables()))
    return Data(folder)
