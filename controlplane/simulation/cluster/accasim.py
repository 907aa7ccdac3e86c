"""System configurations of AccaSim (Galleguillos et al. 2020) as cluster files.

    {"groups": {"mic": {"core": 16, "mem": 16777216, "mic": 2}}, "resources": {"mic": 32}}

Nodes of each group, with cores (`core`), KB of memory (`mem`) and GPUs (`gpu`); other names become
named resources. The counts of nodes are called `resources` or `nodes`. Nodes draw 0 W.
"""

from collections.abc import Mapping
from typing import Any

KB_PER_GB = 1e9 / 1024.0
COUNTS = ("resources", "nodes")
GPU_TYPE = "GPU"


def is_accasim(document: Mapping[str, Any]) -> bool:
    """Return True for a configuration of AccaSim."""
    return isinstance(document.get("groups"), Mapping) and any(n in document for n in COUNTS)


def cluster_of_accasim(document: Mapping[str, Any]) -> dict[str, Any]:
    """Cluster file of a configuration. ValueError names the field and the remedy."""
    groups = document["groups"]
    field = next(name for name in COUNTS if name in document)
    counts = document[field]
    if not isinstance(counts, Mapping):
        raise ValueError(f"{field}: must give the number of nodes by group")
    if unknown := [name for name in counts if name not in groups]:
        raise ValueError(f"{field}.{unknown[0]}: is not among the groups: {', '.join(groups)}")
    if missing := [name for name in groups if name not in counts]:
        raise ValueError(f"{field}.{missing[0]}: is missing; say how many nodes the group has")
    nodes = [
        _group(str(name), group, _number(counts[name], f"{field}.{name}", least=1))
        for name, group in groups.items()
    ]
    return {"name": str(document.get("name", "AccaSim")), "nodes": nodes}


def _group(name: str, group: Any, count: float) -> dict[str, Any]:
    path = f"groups.{name}"
    if not isinstance(group, Mapping):
        raise ValueError(f'{path}: must give amounts by resource, such as {{"core": 16}}')
    amounts = {str(n): _number(value, f"{path}.{n}") for n, value in group.items()}
    if not amounts.get("core"):
        raise ValueError(f"{path}.core: a node needs a number of cores, at least 1")
    gpus = int(amounts.pop("gpu", 0.0))
    cores, memory_kb = amounts.pop("core"), amounts.pop("mem", None)
    node: dict[str, Any] = {
        "name": name, "count": int(count), "gpus": gpus, "cores": cores,
        "power_w": [0.0] * (gpus + 1),
        "resources": {n: amount for n, amount in amounts.items() if amount},
    }  # fmt: skip
    if memory_kb is not None:
        node["memory_gb"] = memory_kb / KB_PER_GB
    return {**node, "gpu_type": GPU_TYPE, "gpu_memory_gb": 0.0} if gpus else node


def _number(value: Any, path: str, least: int = 0) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < float("inf") or value != int(value):
        raise ValueError(f"{path}: must be a whole number >= {least}, not {value!r:.40}")
    return float(value)
