"""System configurations of AccaSim (Galleguillos et al. 2020) as cluster files.

    {"groups": {"mic": {"core": 16, "mem": 16777216, "mic": 2}}, "resources": {"mic": 32}}

Nodes of each group, with cores (`core`), KB of memory (`mem`) and GPUs (`gpu`); other names become
named resources. The counts of nodes are called `resources` or `nodes`. Nodes draw 0 W.

`equivalence` such as {"processor": {"core": 2}} says that a processor, which logs count, takes two
cores: such a node holds half as many processors as it has cores, and its `cores` count processors.
"""

from collections.abc import Mapping
from typing import Any

KB_PER_GB = 1e9 / 1024.0
COUNTS = ("resources", "nodes")
GPU_TYPE = "GPU"
OTHERS = ("groups", "name", "system_name", "start_time", "equivalence")
"""Known names beside those of COUNTS. The start time changes no schedule: logs count from 0."""


def is_accasim(document: Mapping[str, Any]) -> bool:
    """Return True for a configuration of AccaSim."""
    return isinstance(document.get("groups"), Mapping) and any(n in document for n in COUNTS)


def cluster_of_accasim(document: Mapping[str, Any]) -> dict[str, Any]:
    """Cluster file of a configuration. ValueError names the field and the remedy."""
    if unknown := [name for name in document if name not in (*COUNTS, *OTHERS)]:
        raise ValueError(f"{unknown[0]}: is not read here; leave it out")
    groups = document["groups"]
    field = next(name for name in COUNTS if name in document)
    counts = document[field]
    if not isinstance(counts, Mapping):
        raise ValueError(f"{field}: must give the number of nodes by group")
    if unknown := [name for name in counts if name not in groups]:
        raise ValueError(f"{field}.{unknown[0]}: is not among the groups: {', '.join(groups)}")
    if missing := [name for name in groups if name not in counts]:
        raise ValueError(f"{field}.{missing[0]}: is missing; say how many nodes the group has")
    processor_cores = _processor_cores(document.get("equivalence", {}))
    nodes = [
        _group(str(name), group, _number(counts[name], f"{field}.{name}", least=1), processor_cores)
        for name, group in groups.items()
    ]
    name = document.get("system_name", document.get("name", "AccaSim"))
    return {"name": str(name), "nodes": nodes}


def _processor_cores(equivalence: Any) -> int:
    """Cores of a processor. ValueError for another equivalence, which changes what jobs ask for."""
    if equivalence == {}:
        return 1
    processor = equivalence.get("processor") if isinstance(equivalence, Mapping) else None
    is_alone = isinstance(equivalence, Mapping) and set(equivalence) == {"processor"}
    if not is_alone or not isinstance(processor, Mapping) or set(processor) != {"core"}:
        form = '{"processor": {"core": 2}}'
        raise ValueError(f"equivalence: must be such as {form}; convert other resources in the log")
    return int(_number(processor["core"], "equivalence.processor.core", least=1))


def _group(name: str, group: Any, count: float, processor_cores: int) -> dict[str, Any]:
    path = f"groups.{name}"
    if not isinstance(group, Mapping):
        raise ValueError(f'{path}: must give amounts by resource, such as {{"core": 16}}')
    amounts = {str(n): _number(value, f"{path}.{n}") for n, value in group.items()}
    if not amounts.get("core"):
        raise ValueError(f"{path}.core: a node needs a number of cores, at least 1")
    gpus = int(amounts.pop("gpu", 0.0))
    cores = amounts.pop("core") // processor_cores
    if not cores:
        raise ValueError(f"{path}.core: must be >= {processor_cores}, the cores of a processor")
    memory_kb = amounts.pop("mem", None)
    node: dict[str, Any] = {
        "name": name,
        "count": int(count),
        "gpus": gpus,
        "cores": cores,
        "power_w": [0.0] * (gpus + 1),
        "resources": {n: amount for n, amount in amounts.items() if amount},
    }
    if memory_kb is not None:
        node["memory_gb"] = memory_kb / KB_PER_GB
    return {**node, "gpu_type": GPU_TYPE, "gpu_memory_gb": 0.0} if gpus else node


def _number(value: Any, path: str, least: int = 0) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < float("inf") or value != int(value):
        raise ValueError(f"{path}: must be a whole number >= {least}, not {value!r:.40}")
    return float(value)
