"""A study from a YAML file or a command line, as the document that `Study.of` checks."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from controlplane.simulation.cluster.accasim import cluster_of_accasim, is_accasim
from controlplane.simulation.study.document import MOST_SEEDS, StudyError
from controlplane.simulation.workloads import FILES
from loadmaster.strict_yaml import DocumentError, StrictLoader, parse_yaml, read_fields

LARGEST = 50_000_000
TRACES: Mapping[str, str] = {".swf": "swf", ".csv": "csv"}
"""Formats of traces by file extension; others are named by type: gavel:path=FILE."""

_DOCUMENTS = (".yaml", ".yml", ".json")


class _Loader(StrictLoader):
    """The strict loader that also reads 1e9 as a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_study(path: Path) -> dict[str, Any]:
    """Read the document of a study's file; paths count from its folder."""
    document = _document(path)
    for field, read in (("cluster", cluster_of), ("workload", workload_of)):
        value = document.get(field)
        if isinstance(value, str) and not is_live(value):
            document[field] = read(value, path.parent)
        elif isinstance(value, Mapping) and field == "workload":
            document[field] = _placed(value, path.parent)
    policies = document.get("policies")
    if isinstance(policies, list):
        document["policies"] = [_policy_placed(item, path.parent) for item in policies]
    return document


def is_live(cluster: str) -> bool:
    """Return True for a cluster of the database: `live`, or `live:NAME`."""
    return cluster == "live" or cluster.startswith("live:")


def cluster_of(words: str, folder: Path) -> dict[str, Any]:
    """Read the cluster in a file, or a system configuration of AccaSim."""
    document = _document(folder / words)
    try:
        return cluster_of_accasim(document) if is_accasim(document) else document
    except ValueError as error:
        raise StudyError(f"cluster.{error}") from None


def workload_of(words: str, folder: Path) -> dict[str, Any]:
    """Parse a workload: a YAML file, a trace's file, or TYPE[:name=value,...]."""
    path = folder / words
    if path.suffix in _DOCUMENTS and "=" not in words:
        return _placed(_document(path), path.parent)
    if path.suffix in TRACES and "=" not in words:
        return {"type": TRACES[path.suffix], "path": str(path.resolve())}
    kind, _, values = words.partition(":")
    return _placed({"type": kind, **values_of(values, f"workload {kind}")}, folder)


def policy_of(words: str) -> dict[str, Any]:
    """Parse a policy: NAME[:parameter=value,...], or FILE.py in place of the name."""
    name, _, values = words.partition(":")
    source = {"file": str(Path(name).resolve())} if name.endswith(".py") else {"name": name}
    return {**source, "parameters": values_of(values, f"policy {name}")}


def seeds_of(words: str) -> list[int]:
    """Parse seeds: 1,2,3 or 1-5."""
    seeds: list[int] = []
    for part in words.split(","):
        found = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part)
        if not found:
            raise StudyError(f"seeds: write 1,2,3 or 1-5, not {words!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < first + MOST_SEEDS:
            raise StudyError(f"seeds: {part} must go upwards, over at most {MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    return seeds


def switches_of(words: Iterable[str]) -> dict[str, Any]:
    """Parse switches, name=value each."""
    return {name: value for word in words for name, value in values_of(word, "switch").items()}


def values_of(words: str, of: str) -> dict[str, Any]:
    """Parse name=value,...; values are YAML, so that brackets may hold commas."""
    values: dict[str, Any] = {}
    for word in _parts(words):
        name, sign, value = word.partition("=")
        if not sign or not name.strip().isidentifier():
            raise StudyError(f"{of}: write name=value, not {word!r}")
        if name.strip() in values:
            raise StudyError(f"{of}: {name.strip()} is given twice")
        try:
            values[name.strip()] = parse_yaml(value, _Loader)
        except DocumentError as error:
            raise StudyError(f"{of}: {name.strip()}: {error}") from None
    return values


def _parts(words: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for sign in words:
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part.strip()]


def _placed(workload: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    paths = {name: path for name in FILES if isinstance(path := workload.get(name), str) and path}
    return {**workload, **{name: str((folder / path).resolve()) for name, path in paths.items()}}


def _policy_placed(item: object, folder: Path) -> object:
    if isinstance(item, str) and ":" in item:
        item = policy_of(item)
    elif isinstance(item, str):
        item = {"file" if item.endswith(".py") else "name": item}
    if isinstance(item, Mapping) and isinstance(item.get("file"), str):
        return {**item, "file": str((folder / item["file"]).resolve())}
    return item


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_fields(path, LARGEST, example="name: ...", loader=_Loader)
    except DocumentError as error:
        raise StudyError(str(error)) from None
